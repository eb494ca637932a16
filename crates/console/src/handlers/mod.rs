//! Handlers of requests.

pub(crate) mod live;
mod reads;
pub(crate) mod session;
mod subject;
pub(crate) mod views;
