//! Helpers of the unit tests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{Request, Response};
use berth_api::Problem;
use berth_views::Kind;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::identity::link::LinkCode;
use crate::keyed_limit::KeyedLimit;
use crate::objects::store::Store;
use crate::session::attempts::SignInLimit;
use crate::session::cookie::Cookies;
use crate::session::csrf::CsrfKey;
use crate::session::store::SessionStore;
use crate::simulation::{DrainReport, PlacementReport, SimulationError, Simulator};
use crate::state::{Console, Identity, Shared};
use crate::vm_stream::viewers::Viewers;
use crate::what_if::{Change, Totals, WhatIfReport};

/// A simulator for which every drain is possible, which knows no VM, and which refuses all profiles.
struct TestSimulator;

impl Simulator for TestSimulator {
    fn drain(&self, _: &Client, _: &str) -> Result<DrainReport, SimulationError> {
        Ok(DrainReport { is_possible: true, ..DrainReport::default() })
    }

    fn explain(&self, _: &Client, _: &str, _: &str) -> Result<PlacementReport, SimulationError> {
        Err(SimulationError::SignedOut)
    }

    fn what_if(&self, _: &Client, change: &Change) -> Result<WhatIfReport, SimulationError> {
        match change {
            Change::AddHosts { count, .. } => {
                let after = Totals { hosts: *count as usize, ..Totals::default() };
                Ok(WhatIfReport { after, ..WhatIfReport::default() })
            }
            Change::Machines { yaml, .. } if yaml.contains("kind: Secret") => {
                Err(SimulationError::OtherKind(Problem::new("x", "kind", "Secret", "is wrong")))
            }
            Change::Machines { .. } => Ok(WhatIfReport::default()),
            Change::Profile { .. } => Err(SimulationError::Invalid(vec![Problem::new(
                "HostProfile x",
                "spec.priority",
                "",
                "is wrong",
            )])),
        }
    }
}

/// Returns a client of a simulated API server, which answers each request with a status code and a body.
pub(crate) fn test_client(
    answer: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static,
) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, body) = answer(request.uri().path());
        async move {
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}

/// Returns a console with two Nodes, whose user may list everything.
pub(crate) fn test_console(is_secure: bool) -> Shared {
    let client = test_client(|_| {
        let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "metadata": {}, "spec": {}, "status": {"allowed": true}});
        (201, review.to_string())
    });
    console_of(client, is_secure)
}

/// Returns a console with two Nodes, and with this client of its user.
pub(crate) fn console_of(client: Client, is_secure: bool) -> Shared {
    let store = Store::default();
    for name in ["rack1-a", "rack1-b"] {
        store.add(Kind::Node, &json!({"metadata": {"name": name}}));
    }
    Arc::new(Console {
        identity: Identity::Kubeconfig {
            client,
            user: "<alice>".to_owned(),
            link: LinkCode::default(),
        },
        cookies: Cookies::new(is_secure, 1),
        csrf: CsrfKey::generate().unwrap(),
        sessions: SessionStore::default(),
        attempts: SignInLimit::new(Instant::now()),
        store: Arc::new(store),
        has_proxy: false,
        is_local: !is_secure,
        renders: Arc::new(Semaphore::new(1)),
        reads: Semaphore::new(1),
        streams: Arc::new(Semaphore::new(1)),
        user_streams: KeyedLimit::new(1),
        viewers: Viewers::new(2, 2),
        simulator: Arc::new(TestSimulator),
        simulations: Arc::new(Semaphore::new(1)),
        user_simulations: KeyedLimit::new(1),
    })
}

/// Returns the path of a new link to the console.
pub(crate) fn test_link(console: &Console) -> String {
    let Identity::Kubeconfig { link, .. } = &console.identity else {
        panic!("the console has no link");
    };
    format!("/open/{}", link.renew(Instant::now()).unwrap())
}
