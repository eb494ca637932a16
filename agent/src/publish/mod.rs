//! What the cluster is told of the host, as data: from the status to the Node's labels, conditions and extended
//! resources, and to the one apply that makes the Node say so; and to its NodeResourceTopology. Pure: who sends it is `cluster`.
//!
//! Three rules. What is not known leaves what was said before. What is withdrawn is removed, never set to 0, as a
//! kubelet refuses pods on its restart for a resource of 0, and drops from its sums one that is not there. And
//! while pods run that a scheduler may have placed by a label, a label does not change: a kubelet that restarts
//! looks at node selectors again, and fails pods that no longer match.

pub mod node;
pub mod resources;
pub mod topology;

pub use node::{NodeSays, Told};
