//! Sessions of users: cookies, forms, and the server-side store.

pub(crate) mod attempts;
pub(crate) mod cookie;
pub(crate) mod csrf;
pub(crate) mod read_cache;
pub(crate) mod store;
