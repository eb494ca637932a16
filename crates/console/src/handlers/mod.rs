//! Handlers of requests.

mod change_input;
pub(crate) mod create;
pub(crate) mod live;
mod reads;
pub(crate) mod session;
pub(crate) mod simulations;
pub(crate) mod streams;
mod subject;
pub(crate) mod views;
pub(crate) mod what_if;
