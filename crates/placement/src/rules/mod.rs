//! The rules of the stock scheduler's plugins on plain data, fast enough to be asked for every pod and many hosts.
//!
//! A pod's rules are compiled once ([`Rules::compile`]) into numbers of one [`Counts`], which keeps what they need
//! counted right whenever a pod or a host comes, changes or goes. So a host is judged at the cost of the pod's own
//! terms, however many pods there are: [`Counts::ask`], [`Question::allows`], [`Question::reasons`], [`Scorer`].
//!
//! The rules are those of kube-scheduler 1.36 with its default configuration, of the plugins NodeUnschedulable,
//! TaintToleration, NodeAffinity, NodeResourcesFit, PodTopologySpread (without default constraints) and
//! InterPodAffinity. What they answer is held against the real one by `tests/tests/rules.rs`.

mod belongs;
mod bits;
mod compile;
mod counter;
mod counts;
mod fit;
mod groups;
mod hosts;
mod invalid;
mod leaning;
mod node_affinity;
mod parts;
mod question;
mod reason;
mod recent;
mod scores;
mod selector;
mod symbols;
mod taints;

pub use compile::{HostRules, Rules};
pub use counts::{Counts, HostId, PodId, Quirks};
pub use invalid::Invalid;
pub use leaning::{Leaning, Leanings, Preference};
pub use parts::{HostParts, PodSpecParts};
pub use question::Question;
pub use reason::Reason;
pub use scores::{Raw, Scorer, Scores};
pub use taints::Effect;
