//! Handlers of requests.

pub(crate) mod create;
pub(crate) mod live;
mod reads;
pub(crate) mod session;
pub(crate) mod simulations;
pub(crate) mod streams;
mod subject;
pub(crate) mod views;
