//! Computes the published state of the host: the labels, conditions and extended resources of the Node, the body of
//! the single server-side apply that writes these fields, and the NodeResourceTopology. The functions are pure:
//! `cluster` sends the requests.
//!
//! Three rules apply. An unknown fact leaves the published value unchanged. An obsolete resource is removed and
//! never set to 0, because a restarting kubelet refuses pods that request a resource with an amount of 0, but
//! ignores a resource that is absent. Labels do not change while pods run that a scheduler may have placed because
//! of a label, because a restarting kubelet evaluates node selectors again and fails pods that no longer match.

pub mod node;
pub mod resources;
pub mod topology;

pub use node::{DesiredNode, PublishedNode};
