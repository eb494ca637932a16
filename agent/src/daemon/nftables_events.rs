//! Watches the kernel's events of nf_tables: a program that flushes all rules (`systemctl restart nftables`, a reload
//! of a firewall) also removes the rules that drop control frames of guests.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::mpsc::Sender;

use super::link_events::{OVERFLOW_DELAY, WatchedLinks};
use super::trigger::Trigger;
use berth_host_facts::netlink::split_messages;
use berth_host_facts::nftables::{NFNLGRP_NFTABLES, TABLE_NAME, is_about_table};

/// Size of the receive buffer. When kube-proxy writes thousands of rules, the kernel sends some MiB
/// at once.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Sends a trigger for each change of Berth's table. A listener makes the kernel load nf_tables, so the listener starts
/// only when a host network is desired.
pub(super) async fn watch(watched_links: Arc<Mutex<WatchedLinks>>, events: Sender<Trigger>) {
    let network_desired =
        Arc::clone(&watched_links.lock().unwrap_or_else(PoisonError::into_inner).network_desired);
    network_desired.notified().await;
    let socket = match open_socket() {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "failed to listen for nf_tables events, relying on the timer");
            return;
        }
    };
    loop {
        let is_relevant = match socket.recv_from_full().await {
            Ok((datagram, _)) => {
                split_messages(&datagram).any(|message| is_about_table(message, TABLE_NAME))
            }
            // The socket overflowed, and events were lost, so the table is read.
            Err(_) => {
                tokio::time::sleep(OVERFLOW_DELAY).await;
                true
            }
        };
        if is_relevant && events.try_send(Trigger::Links).is_err() && events.is_closed() {
            return;
        }
    }
}

fn open_socket() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    let inner = socket.socket_mut();
    inner.bind(&SocketAddr::new(0, 0))?;
    inner.add_membership(NFNLGRP_NFTABLES)?;
    if setsockopt(&*inner, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        setsockopt(&*inner, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
    }
    Ok(socket)
}
