//! Serial console and screen of a VM. Streams are in the audit log, without their content.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use berth_runtime::cli::text::error_chain;
use berth_runtime::vm_stream;
use berth_views::ObjectName;
use hyper::upgrade::OnUpgrade;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::views::{check_names, frame};
use crate::error::PageError;
use crate::headers::StreamPage;
use crate::pages::layout::{Html, Section, page};
use crate::pages::stream;
use crate::requests::{ClientAddress, SignedIn, is_own_socket};
use crate::session::store::Use;
use crate::state::{Console, Shared};
use crate::vm_stream::browser::{Browser, upgrade};
use crate::vm_stream::ending::Ending;
use crate::vm_stream::kind::StreamKind;
use crate::vm_stream::relay::relay;
use crate::vm_stream::viewers::Viewer;

/// Interval between checks whether the session of an open stream has ended; shorter in unit tests.
const SESSION_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 2000 });
/// Number of these checks between two questions whether the user still has the permission.
const CHECKS_PER_REVIEW: u32 = 15;

/// Time until the reason for the end of a stream is known.
const EXPLAIN_DELAY: Duration = Duration::from_secs(1);

/// Namespace, name and kind in the path.
type StreamPath = Path<(String, String, String)>;

fn parse_path(Path((namespace, name, kind)): StreamPath) -> Result<Target, PageError> {
    check_names(&[&namespace, &name])?;
    let kind = kind.parse().map_err(|_| PageError::NotFound)?;
    Ok(Target { kind, machine: ObjectName::new(namespace, name) })
}

/// A stream to a VM.
struct Target {
    kind: StreamKind,
    machine: ObjectName,
}

/// Shows the page of a stream. It has no objects, so that users need no permission but that for the stream.
pub(crate) async fn show(
    State(console): State<Shared>,
    user: SignedIn,
    path: StreamPath,
) -> Result<Response, PageError> {
    let Target { kind, machine } = parse_path(path)?;
    let title = format!("{} of {}", kind.label(), machine.name);
    let content = stream::content(&machine, kind);
    let page = page(&frame(&console, &user, Section::Machines, &title, false), &content);
    let mut response = Html(page).into_response();
    response.extensions_mut().insert(StreamPage(kind));
    Ok(response)
}

/// Opens a stream for a page.
pub(crate) async fn open(
    State(console): State<Shared>,
    user: SignedIn,
    ClientAddress(address): ClientAddress,
    path: StreamPath,
    request: Request,
) -> Result<Response, PageError> {
    let target = parse_path(path)?;
    if !is_own_socket(request.headers(), console.cookies.are_secure()) {
        let user = user.session.user.as_str();
        tracing::warn!(user, %address, "audit: refused a stream that another site has opened");
        return Err(PageError::ForeignSocket);
    }
    let (response, upgrade) = match upgrade(request) {
        Ok(accepted) => accepted,
        Err(code) => return Ok(code.into_response()),
    };
    tokio::spawn(async move { serve(&console, &user, &target, upgrade).await });
    Ok(response)
}

/// Serves a stream until it ends, and reports the reason to the page.
async fn serve(console: &Console, user: &SignedIn, target: &Target, upgrade: OnUpgrade) {
    let Some(mut browser) = Browser::accept(upgrade).await else { return };
    let ending = connect(console, user, target, &mut browser).await;
    browser.close(&ending).await;
}

/// Connects a browser with a VM, and returns the reason for the end.
async fn connect(
    console: &Console,
    user: &SignedIn,
    target: &Target,
    browser: &mut Browser,
) -> Ending {
    let Target { kind, machine } = target;
    let viewer = console.viewers.admit(user.session.owner, *kind, machine);
    let Some(mut viewer) = viewer else { return Ending::TooManyStreams };
    let name = user.session.user.as_str();
    let client = &user.session.client;
    let opened =
        vm_stream::open(client, &machine.namespace, &machine.name, kind.subresource()).await;
    let vm = match opened {
        Ok(vm) => vm,
        Err(error) => {
            let ending = Ending::of_refusal(&error);
            let error = error_chain(&error);
            tracing::warn!(user = name, %machine, %kind, error, "audit: refused a stream to a VM");
            if ending == Ending::SessionEnded {
                user.end_session(console);
            }
            return ending;
        }
    };
    viewer.record_open();
    tracing::info!(user = name, %machine, %kind, "audit: opened a stream to a VM");
    let begin = Instant::now();
    let host = console.store.host_of(machine);
    let ending = if browser.report_open().await.is_ok() {
        let has_input = AtomicBool::new(false);
        let on_message = |message: &[u8]| {
            if kind.is_user_input(message) {
                has_input.store(true, Ordering::Relaxed);
            }
        };
        let ended = wait_for_end(console, user, target, &has_input);
        relay(browser, vm, on_message, ended).await
    } else {
        Ending::UserLeft
    };
    let ending = match ending {
        Ending::Ended => {
            // KubeVirt ends the stream before it opens that of another viewer, and before the VM is deleted.
            sleep(EXPLAIN_DELAY).await;
            explain_end(console, &viewer, machine, host.as_deref())
        }
        ending => ending,
    };
    let (reason, seconds) = (ending.text(), begin.elapsed().as_secs());
    tracing::info!(user = name, %machine, %kind, reason, seconds, "audit: closed a stream to a VM");
    ending
}

/// Returns when the session has ended, or when the user has no permission any more. Input of the user keeps the session in use.
async fn wait_for_end(
    console: &Console,
    user: &SignedIn,
    target: &Target,
    has_input: &AtomicBool,
) -> Ending {
    let mut checks = interval(SESSION_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately.
    checks.tick().await;
    for count in 1_u32.. {
        checks.tick().await;
        let is_used = has_input.swap(false, Ordering::Relaxed);
        let usage = if is_used { Use::ByUser } else { Use::ByRefresh };
        if console.sessions.get(&user.id, usage, Instant::now()).is_none() {
            return Ending::SessionEnded;
        }
        if !count.is_multiple_of(CHECKS_PER_REVIEW) {
            continue;
        }
        match user.may_stay(console, target.kind, &target.machine).await {
            Ok(true) => {}
            Ok(false) => return Ending::Forbidden,
            Err(PageError::SignedOut { .. }) => return Ending::SessionEnded,
            // If the API server stays unavailable, the stream ends too.
            Err(_) => {}
        }
    }
    Ending::SessionEnded
}

/// Returns the reason why a stream has ended for which KubeVirt gives no reason. `host` is the host of the VM when the stream
/// was opened.
fn explain_end(
    console: &Console,
    viewer: &Viewer,
    machine: &ObjectName,
    host: Option<&str>,
) -> Ending {
    if viewer.is_replaced() {
        return Ending::OtherViewer;
    }
    match (host, console.store.host_of(machine).as_deref()) {
        (Some(_), None) => Ending::Stopped,
        (Some(before), Some(now)) if before != now => Ending::Moved,
        _ => Ending::Ended,
    }
}
