//! Streams between browsers and VMs: the serial console and the screen. They go through the API server with the credential
//! of the user, so that RBAC alone decides who may open them.

pub(crate) mod browser;
pub(crate) mod ending;
pub(crate) mod kind;
pub(crate) mod relay;
#[cfg(test)]
mod tests;
pub(crate) mod viewers;
