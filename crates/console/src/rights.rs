//! Permissions of a user, as the API server's RBAC decides them: the shared objects are filtered with them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::call::{CallError, with_timeout};
use berth_views::machines::tenant_of_namespace;
use berth_views::{Kind, ObjectName};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::objects::visible::{Scope, Visible};
use crate::vm_stream::kind::StreamKind;

/// Time for which a permission is used without asking the API server again: a revoked permission ends after this time.
const PERMITTED_TIME: Duration = Duration::from_secs(30);
/// Time for which a refusal is used. It is longer, because users in clusters with many namespaces have many refusals.
const REFUSED_TIME: Duration = Duration::from_secs(120);
/// Number of requests that are sent at the same time.
const PARALLEL_REVIEWS: usize = 16;

/// Question whether a user may read or create objects, or open streams.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// Lists all objects of a kind, in all namespaces.
    ListAll(Kind),
    /// Lists the objects of a kind in a namespace.
    ListIn(Kind, String),
    /// Reads one cluster-scoped object.
    Get(Kind, String),
    /// Creates objects of a kind in a namespace.
    Create(Kind, String),
    /// Opens a stream to a VM.
    Open(StreamKind, ObjectName),
}

impl Question {
    /// Returns the request that the API server would have to permit.
    fn attributes(&self) -> ResourceAttributes {
        let (verb, kind, namespace, name) = match self {
            Self::ListAll(kind) => ("list", kind, None, None),
            Self::ListIn(kind, namespace) => ("list", kind, Some(namespace.clone()), None),
            Self::Get(kind, name) => ("get", kind, None, Some(name.clone())),
            Self::Create(kind, namespace) => ("create", kind, Some(namespace.clone()), None),
            Self::Open(kind, machine) => {
                return ResourceAttributes {
                    group: Some("subresources.kubevirt.io".to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("virtualmachineinstances".to_owned()),
                    subresource: Some(kind.subresource().to_string()),
                    verb: Some("get".to_owned()),
                    namespace: Some(machine.namespace.clone()),
                    name: Some(machine.name.clone()),
                    ..ResourceAttributes::default()
                };
            }
        };
        let [group, version, _, plural] = kind.resource();
        ResourceAttributes {
            group: Some(group.to_owned()),
            version: Some(version.to_owned()),
            resource: Some(plural.to_owned()),
            verb: Some(verb.to_owned()),
            namespace,
            name,
            ..ResourceAttributes::default()
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    is_permitted: bool,
    at: Instant,
}

impl Answer {
    fn is_current(self, now: Instant) -> bool {
        let limit = if self.is_permitted { PERMITTED_TIME } else { REFUSED_TIME };
        now.duration_since(self.at) < limit
    }
}

/// Reason why the permissions of a user are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RightsError {
    #[error("the API server no longer accepts the credential")]
    SignedOut,
    #[error("the API server did not answer")]
    Unavailable(#[source] CallError),
}

/// Permissions of a user, from the API server, which receives the user's own credential.
pub(crate) struct Rights {
    client: Client,
    answers: Mutex<HashMap<Question, Answer>>,
    /// Held while reviews are sent: parallel requests of a session need the same reviews, and find the answers afterwards.
    turn: tokio::sync::Mutex<()>,
}

impl Rights {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, answers: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Returns the objects that the user may see. A namespace is visible if the user may list its VirtualMachines;
    /// `namespaces` are those in which objects exist. If the user may not list TenantClusters, those of visible namespaces
    /// are visible if the user may read them by name.
    pub(crate) async fn visible(
        &self,
        namespaces: &BTreeSet<String>,
    ) -> Result<Visible, RightsError> {
        self.remove_old_answers();
        let everything = self.permitted(Kind::ALL.map(Question::ListAll).to_vec()).await?;
        let lists_all = |kind: Kind| everything.contains(&Question::ListAll(kind));
        if Kind::ALL.into_iter().all(lists_all) {
            return Ok(Visible::new(Kind::ALL.map(|kind| (kind, Scope::All)).into()));
        }
        let shown = if lists_all(Kind::VirtualMachine) {
            namespaces.clone()
        } else {
            self.permitted_namespaces(Kind::VirtualMachine, namespaces).await?
        };
        let mut scopes = BTreeMap::new();
        for kind in Kind::ALL {
            let scope = if lists_all(kind) {
                Scope::All
            } else if kind == Kind::VirtualMachine {
                Scope::Some(shown.clone())
            } else if kind.is_namespaced() {
                Scope::Some(self.permitted_namespaces(kind, &shown).await?)
            } else if kind == Kind::TenantCluster {
                let names = shown.iter().filter_map(|namespace| tenant_of_namespace(namespace));
                let questions = names.map(|name| Question::Get(kind, name.to_owned()));
                Scope::Some(names_of(self.permitted(questions.collect()).await?))
            } else {
                Scope::Some(BTreeSet::new())
            };
            scopes.insert(kind, scope);
        }
        Ok(Visible::new(scopes))
    }

    /// Returns true if the user may create objects of a kind in a namespace.
    pub(crate) async fn may_create(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> Result<bool, RightsError> {
        let question = Question::Create(kind, namespace.to_owned());
        Ok(!self.permitted(vec![question]).await?.is_empty())
    }

    /// Returns the kinds of streams to a VM that the user may open.
    pub(crate) async fn openable_streams(
        &self,
        machine: &ObjectName,
    ) -> Result<Vec<StreamKind>, RightsError> {
        let question = |kind| Question::Open(kind, machine.clone());
        let permitted = self.permitted(StreamKind::ALL.map(question).to_vec()).await?;
        let is_permitted = |kind: &StreamKind| permitted.contains(&question(*kind));
        Ok(StreamKind::ALL.into_iter().filter(is_permitted).collect())
    }

    /// Asks the API server whether the user may still use an open stream to a VM, also if an answer is known: it may be a
    /// refusal from the time before the permission was granted.
    pub(crate) async fn may_stay(
        &self,
        kind: StreamKind,
        machine: &ObjectName,
    ) -> Result<bool, RightsError> {
        self.review(&Question::Open(kind, machine.clone())).await
    }

    async fn permitted_namespaces(
        &self,
        kind: Kind,
        namespaces: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, RightsError> {
        let questions =
            namespaces.iter().map(|namespace| Question::ListIn(kind, namespace.clone()));
        Ok(names_of(self.permitted(questions.collect()).await?))
    }

    /// Returns the questions to which the answer is yes.
    async fn permitted(&self, questions: Vec<Question>) -> Result<Vec<Question>, RightsError> {
        let are_known = questions.iter().all(|question| self.known_answer(question).is_some());
        let _turn = if are_known { None } else { Some(self.turn.lock().await) };
        let answers = questions.into_iter().map(|question| async move {
            let is_permitted = self.is_permitted(&question).await?;
            Ok::<_, RightsError>(is_permitted.then_some(question))
        });
        let answers: Vec<Option<Question>> =
            stream::iter(answers).buffer_unordered(PARALLEL_REVIEWS).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the answer to a question, if it is current.
    fn known_answer(&self, question: &Question) -> Option<bool> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answers.get(question).copied()?;
        answer.is_current(Instant::now()).then_some(answer.is_permitted)
    }

    async fn is_permitted(&self, question: &Question) -> Result<bool, RightsError> {
        if let Some(is_permitted) = self.known_answer(question) {
            return Ok(is_permitted);
        }
        let at = Instant::now();
        let is_permitted = self.review(question).await?;
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(question.clone(), Answer { is_permitted, at });
        Ok(is_permitted)
    }

    /// Removes old answers, for example those about deleted namespaces.
    fn remove_old_answers(&self) {
        let now = Instant::now();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, answer| answer.is_current(now));
    }

    async fn review(&self, question: &Question) -> Result<bool, RightsError> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(question.attributes()),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        match with_timeout(reviews.create(&PostParams::default(), &review)).await {
            Ok(answer) => Ok(answer.status.is_some_and(|status| status.allowed)),
            Err(error) if error.status_code() == Some(401) => Err(RightsError::SignedOut),
            Err(error) => Err(RightsError::Unavailable(error)),
        }
    }
}

/// Returns the namespaces or names of questions about single namespaces or objects.
fn names_of(questions: Vec<Question>) -> BTreeSet<String> {
    let names = questions.into_iter().filter_map(|question| match question {
        Question::ListAll(_) | Question::Create(..) | Question::Open(..) => None,
        Question::ListIn(_, name) | Question::Get(_, name) => Some(name),
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::to_bytes;
    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client of a simulated API server that permits what `is_permitted` accepts: verb, resource, namespace and
    /// name of the review.
    fn reviewing_client(
        count: &Arc<AtomicUsize>,
        is_permitted: fn(&str, &str, &str, &str) -> bool,
    ) -> Client {
        let count = Arc::clone(count);
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let body = to_bytes(axum::body::Body::new(request.into_body()), 1 << 16).await;
                let mut review: Value = serde_json::from_slice(&body.unwrap()).unwrap();
                let asked = review["spec"]["resourceAttributes"].clone();
                let field = |name: &str| asked[name].as_str().unwrap_or_default().to_owned();
                let allowed = is_permitted(
                    &field("verb"),
                    &field("resource"),
                    &field("namespace"),
                    &field("name"),
                );
                review["status"] = json!({"allowed": allowed});
                let response = Response::builder().status(201);
                let body = Body::from(review.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(response.body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn user_of_one_namespace_sees_only_its_objects() {
        let count = Arc::default();
        let client =
            reviewing_client(&count, |verb, resource, namespace, name| match (verb, resource) {
                ("list", "virtualmachines" | "pods") => namespace == "cluster-bank",
                ("get", "tenantclusters") => name == "bank",
                _ => false,
            });
        let rights = Rights::new(client);
        let all = names(&["cluster-bank", "cluster-shop", "default"]);
        let visible = rights.visible(&all).await.unwrap();
        assert_eq!(visible.scope(Kind::VirtualMachine), &Scope::Some(names(&["cluster-bank"])));
        assert_eq!(visible.scope(Kind::LauncherPod), &Scope::Some(names(&["cluster-bank"])));
        assert_eq!(visible.scope(Kind::TenantCluster), &Scope::Some(names(&["bank"])));
        for kind in [Kind::InfraNode, Kind::Node, Kind::VirtualMachineInstance, Kind::VlanClaim] {
            assert_eq!(visible.scope(kind), &Scope::Some(BTreeSet::new()), "{kind:?}");
        }
        assert!(!rights.may_create(Kind::MachineDeployment, "cluster-bank").await.unwrap());
        // The second time, no request is needed.
        let before = count.load(Ordering::SeqCst);
        assert_eq!(rights.visible(&all).await.unwrap(), visible);
        assert_eq!(count.load(Ordering::SeqCst), before);
    }

    #[tokio::test]
    async fn administrator_needs_one_review_for_each_kind() {
        let count = Arc::default();
        let rights = Rights::new(reviewing_client(&count, |_, _, _, _| true));
        let visible = rights.visible(&names(&["a", "b", "c"])).await.unwrap();
        assert!(visible.is_everything());
        assert_eq!(count.load(Ordering::SeqCst), Kind::ALL.len());
    }

    #[tokio::test]
    async fn parallel_requests_of_a_session_send_each_review_once() {
        let count = Arc::default();
        let rights = Rights::new(reviewing_client(&count, |_, _, _, _| true));
        let all = names(&["a", "b", "c"]);
        let creates = rights.may_create(Kind::MachineDeployment, "a");
        let again = rights.may_create(Kind::MachineDeployment, "a");
        let (first, second, creates, again) =
            tokio::join!(rights.visible(&all), rights.visible(&all), creates, again);
        assert!(first.unwrap().is_everything() && second.unwrap().is_everything());
        assert!(creates.unwrap() && again.unwrap());
        assert_eq!(count.load(Ordering::SeqCst), Kind::ALL.len() + 1);
    }

    #[tokio::test]
    async fn refused_credential_ends_the_session() {
        for (code, is_signed_out) in [(401, true), (403, false), (500, false)] {
            let client = crate::test_helpers::test_client(move |_| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "no", "reason": "No", "code": code});
                (code, status.to_string())
            });
            let error = Rights::new(client).visible(&BTreeSet::new()).await.unwrap_err();
            assert_eq!(matches!(error, RightsError::SignedOut), is_signed_out, "{code}");
        }
    }
}
