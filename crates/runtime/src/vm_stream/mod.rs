//! Byte streams to a VM through subresources of KubeVirt, as WebSockets through the API server.

mod error;
mod liveness;
mod open;
mod subresource;
mod transfer;

pub use error::StreamError;
pub use liveness::PING_INTERVAL;
pub use open::{VmStream, open};
pub use subresource::Subresource;
pub use tokio_tungstenite::tungstenite::Bytes;
pub use transfer::{End, GRACE, Input, transfer};
