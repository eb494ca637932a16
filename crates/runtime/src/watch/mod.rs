//! Watches of API objects with kube-runtime's watcher. Repeated errors are logged once, and retries have a backoff with
//! jitter.
//!
//! [`watch_events`] passes events to a function and stores nothing; [`event_stream`] returns them. An [`Informer`] stores
//! all objects of a kind. An [`OptionalInformer`] stores all objects of a kind that may not be installed.
//! [`watch_object`] watches one object with as few requests as possible.

mod health;
mod informer;
mod malformed;
mod object;
mod optional;
mod stream;

pub use health::WatchHealth;
pub use informer::{Change, Informer};
pub use kube::runtime::watcher::{Config, Error, Event};
pub use malformed::{MalformedObject, MalformedObjects, ObjectKey};
pub use object::{watch_object, watch_object_with_errors};
pub use optional::{OptionalInformer, OptionalKind};
pub use stream::{continue_after_error, event_stream, watch_events};
