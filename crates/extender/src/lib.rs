//! The scheduler's sidecar: kube-scheduler asks which host takes a pod, and is told one, which is booked at that moment.
//!
//! ```text
//! watches ─► Desk: engine + book of who has what, and since when ◄─ filter: one host, reserved
//!              │                                                  ◄─ bind: looked at again, in the order of binding
//!              ▼
//!            waiting pods that a change has made room for ─► wake
//! ```
//!
//! There is no store. The book is made again from pods that are bound, from reports, from nominated nodes and from the
//! nodes that volumes' claims have selected. Pure: the time is told, and what is to be done is answered.

mod awaited;
mod binding;
mod book;
mod desk;
mod events;
mod fence;
mod figures;
mod instance;
mod orders;
mod pending;
mod pods;
mod refusals;
mod seen;
mod unknown;
mod waiting;
pub mod wire;

pub use awaited::{Awaited, selected};
pub use berth_api::names::SCHEDULER;
pub use binding::Bind;
pub use desk::{Answer, Desk};
pub use fence::{Fence, LOOK, SEND};
pub use figures::{Figures, SIZES, Stages};
pub use instance::Instance;
pub use seen::{KubeletRefusal, Seen};
