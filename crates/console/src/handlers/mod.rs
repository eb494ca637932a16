//! Handlers of requests.

pub(crate) mod live;
pub(crate) mod session;
pub(crate) mod views;
