//! Creation of MachineDeployments with the credential of the user. Each creation is in the audit log.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use berth_api::TenantCluster;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::cli::text::error_chain;
use berth_views::{Kind, Snapshot};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;

use super::session::redirect;
use super::views::{check_names, frame};
use crate::error::PageError;
use crate::new_deployment::NewDeployment;
use crate::objects::resource::api_resource;
use crate::pages::create::{Checked, Choices, CreatePage, content, forbidden_content};
use crate::pages::layout::{Html, Section, page};
use crate::query::Fields;
use crate::requests::{ClientAddress, SignedIn, read_form};
use crate::session::cookie::Cookie;
use crate::state::{Console, Shared};

/// Field manager of the objects that users create.
const FIELD_MANAGER: &str = "berth-console";

/// Reason why an object was not created.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error("the API server no longer accepts the credential")]
    SignedOut,
    /// The API server refuses the object.
    #[error("{0}")]
    Refused(String),
    /// The API server may have created the object nevertheless: it did not answer, or an error of the server occurred.
    #[error("the API server did not confirm the request")]
    Unknown(#[source] CallError),
    /// A bug.
    #[error("the object cannot be written as YAML or JSON")]
    Unwritable,
}

/// Shows the form.
pub(crate) async fn show_form(
    State(console): State<Shared>,
    user: SignedIn,
    Path(tenant): Path<String>,
) -> Result<Html, PageError> {
    check_names(&[&tenant])?;
    let choices = read_choices(&console, &user, &tenant).await?;
    if !user.may_create_machines(&console, &tenant).await? {
        let namespace = TenantCluster::namespace_of(&tenant);
        let content = forbidden_content(&tenant, &namespace);
        let frame = frame(&console, &user, Section::Tenants, "Create machines", false);
        return Ok(Html(page(&frame, &content)));
    }
    Ok(form_page(&console, &user, &tenant, None, &choices, &Checked::Nothing))
}

/// Checks the form with a dry run; or creates the object if it is that of the last check.
pub(crate) async fn submit(
    State(console): State<Shared>,
    user: SignedIn,
    ClientAddress(address): ClientAddress,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    let (fields, _) = read_form(&console, &headers, Cookie::Session, &body)?;
    check_names(&[&tenant])?;
    let choices = read_choices(&console, &user, &tenant).await?;
    let show = |checked: &Checked| {
        form_page(&console, &user, &tenant, Some(&fields), &choices, checked).into_response()
    };
    let new = match NewDeployment::parse(&tenant, &fields) {
        Ok(new) => new,
        Err(errors) => return Ok(show(&Checked::Invalid(errors))),
    };
    let object = new.to_object();
    let yaml = serde_saphyr::to_string(&object).map_err(|_| unwritable(&user))?;
    // The token shows that this user has seen this YAML.
    let seen = format!("{}\n{yaml}", user.id);
    let is_checked = console.csrf.is_valid(&seen, fields.get("checked"));
    let is_creation = fields.get("action") == "create" && is_checked;
    let sent = send(&user, &new, object, !is_creation).await;
    if is_creation {
        let (user, namespace, name) = (&user.session.user, &new.namespace, &new.name);
        match &sent {
            Ok(()) => {
                tracing::info!(user, namespace, name, %address, "audit: created a MachineDeployment");
            }
            Err(error) => {
                let error = error_chain(error);
                tracing::warn!(user, namespace, name, %address, error, "audit: failed to create a MachineDeployment");
            }
        }
    }
    match sent {
        Ok(()) if is_creation => Ok(redirect(&format!("/tenants/{tenant}"))),
        Ok(()) => {
            let token = console.csrf.token(&seen);
            Ok(show(&Checked::Accepted(yaml, token)))
        }
        Err(CreateError::SignedOut) => Err(user.end_session(&console)),
        Err(CreateError::Refused(message)) => Ok(show(&Checked::Refused(yaml, message))),
        Err(CreateError::Unknown(_)) if is_creation => Ok(show(&Checked::Unconfirmed(yaml))),
        Err(CreateError::Unknown(_)) => Err(PageError::Unavailable),
        Err(CreateError::Unwritable) => Err(unwritable(&user)),
    }
}

fn unwritable(user: &SignedIn) -> PageError {
    tracing::error!(user = user.session.user, "a MachineDeployment cannot be written");
    PageError::Unavailable
}

/// Sends the object with the credential of the user.
async fn send(
    user: &SignedIn,
    new: &NewDeployment,
    object: Value,
    is_dry_run: bool,
) -> Result<(), CreateError> {
    let resource = api_resource(Kind::MachineDeployment);
    let client = user.session.client.clone();
    let api: Api<DynamicObject> = Api::namespaced_with(client, &new.namespace, &resource);
    let object = serde_json::from_value(object).map_err(|_| CreateError::Unwritable)?;
    let params = PostParams { dry_run: is_dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let Err(error) = with_timeout(api.create(&params, &object)).await else { return Ok(()) };
    Err(match error.status() {
        Some(status) if status.code == 401 => CreateError::SignedOut,
        // A dry run creates nothing. Otherwise, the object may exist after an error of the server, such as a timeout of etcd.
        Some(status) if is_dry_run || (400..500).contains(&status.code) => {
            CreateError::Refused(status.message.clone())
        }
        _ => CreateError::Unknown(error),
    })
}

/// Returns the values that the form suggests.
///
/// # Errors
/// Returns an error if the user does not see the tenant.
async fn read_choices(
    console: &Console,
    user: &SignedIn,
    tenant: &str,
) -> Result<Choices, PageError> {
    let visible = user.visible(console).await?;
    let tenant = tenant.to_owned();
    let read = move |snapshot: &Snapshot| {
        snapshot.tenants.contains_key(&tenant).then(|| choices(snapshot))
    };
    console.render(&user.session, visible, read).await?.ok_or(PageError::NotFound)
}

fn choices(snapshot: &Snapshot) -> Choices {
    let Some(config) = &snapshot.config else { return Choices::default() };
    let http = config.images.iter().filter_map(|images| images.http.as_ref());
    let systems = http.flat_map(|http| &http.operating_systems);
    let mut images: Vec<String> =
        systems.clone().flat_map(|(_, versions)| versions.keys().cloned()).collect();
    images.sort();
    images.dedup();
    let classes = config.infra_storage_classes.iter().filter(|class| class.is_for_machines());
    Choices {
        operating_systems: systems.map(|(name, _)| name.clone()).collect(),
        images,
        storage_classes: classes.map(|class| class.name.clone()).collect(),
    }
}

fn form_page(
    console: &Console,
    user: &SignedIn,
    tenant: &str,
    sent: Option<&Fields>,
    choices: &Choices,
    checked: &Checked,
) -> Html {
    let frame = frame(console, user, Section::Tenants, "Create machines", false);
    let csrf = &frame.csrf;
    let content = content(&CreatePage { tenant, csrf, sent, choices, checked });
    Html(page(&frame, &content))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use axum::body::to_bytes;
    use axum::http::{Request, Response as HttpResponse, header};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;
    use crate::router::build_router;
    use crate::test_helpers::{console_of, test_link};

    type Requests = Arc<Mutex<Vec<String>>>;

    /// Returns a client of a simulated API server, which permits everything, and records requests for MachineDeployments.
    /// Creations that are no dry runs have this status code.
    fn recording_client(requests: &Requests, code: u16) -> Client {
        let requests = Arc::clone(requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let line = format!("{} {}", request.method(), request.uri());
            let is_deployment = line.contains("machinedeployments");
            let code = if is_deployment && !line.contains("dryRun") { code } else { 201 };
            if is_deployment {
                requests.lock().unwrap().push(line);
            }
            let answer = match code {
                201 => json!({"kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {},
                    "apiVersion": "authorization.k8s.io/v1", "status": {"allowed": true}}),
                _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "etcdserver: request timed out", "reason": "No", "code": code}),
            };
            let answer = HttpResponse::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        Client::new(service, "default")
    }

    /// Returns a console with the tenant `bank`, and the cookie of a session.
    async fn open_console(client: Client) -> (Shared, String) {
        let console = console_of(client, false);
        let tenant = json!({"metadata": {"name": "bank"}, "spec": {}});
        console.store.add(Kind::TenantCluster, &tenant);
        let link = test_link(&console);
        let request = Request::builder().uri(link).body(axum::body::Body::empty()).unwrap();
        let opened = build_router(Arc::clone(&console)).oneshot(request).await.unwrap();
        let cookie = opened.headers()[header::SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        (console, cookie)
    }

    /// Returns the status code, the header `Location`, and the body.
    async fn send(
        console: &Shared,
        method: &str,
        path: &str,
        cookie: &str,
        form: String,
    ) -> (u16, String, String) {
        let request = Request::builder().method(method).uri(path).header(header::COOKIE, cookie);
        let request = request.body(axum::body::Body::from(form)).unwrap();
        let response = build_router(Arc::clone(console)).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let location = head.headers.get(header::LOCATION);
        let location = location.map(|value| value.to_str().unwrap().to_owned());
        let body = String::from_utf8(body.to_vec()).unwrap();
        (head.status.as_u16(), location.unwrap_or_default(), body)
    }

    fn hidden_field(page: &str, name: &str) -> String {
        let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    }

    #[tokio::test]
    async fn object_may_exist_after_an_error_of_the_server() {
        let path = "/tenants/bank/create";
        for (code, expected) in [
            (504, (200, "may have created the object nevertheless")),
            (500, (200, "may have created the object nevertheless")),
            (422, (200, "etcdserver: request timed out")),
            (401, (303, "")),
        ] {
            let (console, cookie) =
                open_console(recording_client(&Requests::default(), code)).await;
            let (_, _, page) = send(&console, "GET", path, &cookie, String::new()).await;
            let csrf = hidden_field(&page, "csrf");
            let form =
                format!("csrf={csrf}&name=web&replicas=2&cpus=2&memory=4Gi&os=ubuntu&disk=20Gi");
            let (_, _, page) = send(&console, "POST", path, &cookie, form.clone()).await;
            let token = hidden_field(&page, "checked");
            let form = format!("{form}&action=create&checked={token}");
            let (answer, _, page) = send(&console, "POST", path, &cookie, form).await;
            assert!(answer == expected.0 && page.contains(expected.1), "{code}: {answer} {page}");
            let is_unknown = page.contains("may have created the object nevertheless");
            assert_eq!(is_unknown, code >= 500, "{page}");
        }
    }

    #[tokio::test]
    async fn objects_are_created_only_after_their_check() {
        let requests = Requests::default();
        let (console, cookie) = open_console(recording_client(&requests, 201)).await;
        let cookie = cookie.as_str();

        let path = "/tenants/bank/create";
        let (code, _, page) = send(&console, "GET", path, cookie, String::new()).await;
        assert_eq!(code, 200, "{page}");
        assert_eq!(send(&console, "GET", "/tenants/x/create", cookie, String::new()).await.0, 404);
        let csrf = hidden_field(&page, "csrf");
        let form = format!("csrf={csrf}&name=web&replicas=2&cpus=2&memory=4Gi&os=ubuntu&disk=20Gi");
        let (code, _, _) = send(&console, "POST", path, cookie, form.replace(&csrf, "x")).await;
        assert_eq!((code, requests.lock().unwrap().len()), (403, 0), "a form of another site");
        let invalid = form.replace("name=web", "name=..%2Fx");
        let (_, _, page) = send(&console, "POST", path, cookie, invalid).await;
        assert!(page.contains("Not valid") && requests.lock().unwrap().is_empty(), "{page}");

        let (code, _, page) = send(&console, "POST", path, cookie, form.clone()).await;
        assert!(code == 200 && page.contains("replicas: 2"), "{page}");
        let token = hidden_field(&page, "checked");
        // Without the token, and with the token of another object, the object is only checked.
        for unchecked in [
            format!("{form}&action=create"),
            format!("{form}&action=create&checked=AAAA"),
            format!("{}&action=create&checked={token}", form.replace("replicas=2", "replicas=900")),
        ] {
            let (code, _, _) = send(&console, "POST", path, cookie, unchecked).await;
            assert_eq!(code, 200);
        }
        let created = format!("{form}&action=create&checked={token}");
        let (code, location, _) = send(&console, "POST", path, cookie, created).await;
        assert_eq!((code, location.as_str()), (303, "/tenants/bank"));
        let requests = requests.lock().unwrap().clone();
        let dry_runs = requests.iter().filter(|line| line.contains("dryRun=All")).count();
        assert_eq!((requests.len(), dry_runs), (5, 4), "{requests:?}");
        let last = requests.last().unwrap();
        assert!(!last.contains("dryRun") && last.starts_with("POST"), "{last}");
        assert!(last.contains("/namespaces/cluster-bank/machinedeployments?"), "{last}");
    }
}
