//! Berth's node agent, in the order data flows through it.
//!
//! [`root`] opens the host's files, [`observe`] reads them into plain facts and [`notes`], [`report`]
//! says the facts as an InfraNode, [`check`] judges them. [`cli`] is the only part that prints.

pub mod apply;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod conditions;
pub mod daemon;
pub mod document;
pub mod ledger;
pub mod manifest;
pub mod netlink;
pub mod nftables;
pub mod notes;
pub mod observe;
pub mod parsers;
pub mod plan;
pub mod publish;
pub mod report;
pub mod root;
pub mod setting;
pub mod systemd;
