//! Identity of users: each user has a credential of the API server, and the console has no rights of its own to share.

pub(crate) mod credential;
pub(crate) mod link;
pub(crate) mod user;
