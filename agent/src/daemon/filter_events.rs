//! The kernel's events of nf_tables: another program that flushes all rules (`systemctl restart nftables`, a
//! firewall's reload) takes those along that keep guests' control frames from the uplinks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::mpsc::Sender;

use super::link_events::{Interest, PAUSE};
use super::watch::Event;
use crate::netlink::parts;
use crate::nftables::{NFNLGRP_NFTABLES, TABLE, concerns};

/// A kube-proxy that writes thousands of rules sends some MiB at once.
const BUFFER: usize = 4 << 20;

/// Sends an event for each change of Berth's table. The kernel loads nf_tables for a listener, so it waits for a
/// host network.
pub(super) async fn watch(interest: Arc<Mutex<Interest>>, events: Sender<Event>) {
    let asked = Arc::clone(&interest.lock().unwrap_or_else(PoisonError::into_inner).asked);
    asked.notified().await;
    let socket = match socket() {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "failed to listen for nf_tables events, relying on the timer");
            return;
        }
    };
    loop {
        let matters = match socket.recv_from_full().await {
            Ok((datagram, _)) => parts(&datagram).any(|message| concerns(message, TABLE)),
            // More came than the socket holds.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                true
            }
        };
        if matters && events.try_send(Event::Links).is_err() && events.is_closed() {
            return;
        }
    }
}

fn socket() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    let inner = socket.socket_mut();
    inner.bind(&SocketAddr::new(0, 0))?;
    inner.add_membership(NFNLGRP_NFTABLES)?;
    if setsockopt(&*inner, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(&*inner, sockopt::RcvBuf, &BUFFER)?;
    }
    Ok(socket)
}
