//! Computes the published state of the host: the labels, conditions and extended resources of the Node, the single
//! apply that writes these fields, and the NodeResourceTopology. The functions are pure: `cluster` sends the
//! requests.
//!
//! There are three rules. An unknown fact leaves the published value unchanged. A withdrawn value is removed and
//! never set to 0, because a restarting kubelet refuses pods that request a resource of 0, but ignores an absent
//! resource. While pods run that a scheduler may have placed by a label, labels do not change, because a
//! restarting kubelet evaluates node selectors again and fails pods that no longer match.

pub mod node;
pub mod resources;
pub mod topology;

pub use node::{DesiredNode, PublishedNode};
