//! Content of a probe frame before encryption.

use berth_api::VlanId;

/// Purpose of a message. Every message is also a probe of its VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A probe of a round of the [`Schedule`](crate::schedule::Schedule).
    Probe,
    /// Solicits an answer in this VLAN.
    Solicit {
        /// Session that must answer. Other sessions ignore the message, so it causes at most one answer.
        session: u64,
    },
    /// Solicits an answer in this VLAN, and reports that the solicited session's probes do not arrive in another VLAN.
    ReportLoss {
        /// Session that must answer, and whose probes do not arrive.
        session: u64,
        /// VLAN in which the probes do not arrive.
        vlan: VlanId,
    },
    /// Answer to a solicitation, which is identified by its session and counter. These values prove that the answer is
    /// not a replay.
    Answer {
        /// Session that sent the solicitation.
        session: u64,
        /// Counter of the solicitation.
        counter: u64,
    },
}

/// A message between agents on a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: MessageKind,
    /// Session of the sender: a random number that the sender's process chose at its start.
    pub(crate) session: u64,
    /// Counter of the session. It increases with every message.
    pub(crate) counter: u64,
    /// VLAN in which the message was sent. The frame may arrive in another VLAN.
    pub(crate) vlan: VlanId,
    /// Current round of the sender's schedule.
    pub(crate) round: u32,
    /// Name of the sender's Node.
    pub(crate) node: &'a str,
    /// Name of the host network.
    pub(crate) network: &'a str,
    /// VLANs that the sender probes, encoded by [`crate::vlan_list`]. The receiver decodes them only when they change.
    pub(crate) vlans: &'a [u8],
}

impl MessageKind {
    /// Returns the session that must answer the message; `None` if no answer is solicited.
    pub(crate) const fn solicited_session(self) -> Option<u64> {
        match self {
            Self::Solicit { session } | Self::ReportLoss { session, .. } => Some(session),
            Self::Probe | Self::Answer { .. } => None,
        }
    }
}

impl<'a> Message<'a> {
    /// Appends the part of the message that will be encrypted.
    pub(crate) fn write_body(&self, bytes: &mut Vec<u8>) {
        let (kind, addressee, number) = match self.kind {
            MessageKind::Probe => (0, 0, 0),
            MessageKind::Solicit { session } => (1, session, 0),
            MessageKind::Answer { session, counter } => (2, session, counter),
            MessageKind::ReportLoss { session, vlan } => (3, session, u64::from(u16::from(vlan))),
        };
        bytes.push(kind);
        bytes.extend(addressee.to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.extend(self.round.to_be_bytes());
        for name in [self.node, self.network] {
            // A longer name would be an error of the caller: Kubernetes names have at most 253 bytes.
            let name = name.as_bytes().get(..255).unwrap_or(name.as_bytes());
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend(name);
        }
        bytes.extend(self.vlans);
    }

    /// Parses the decrypted part of a message; `None` if it is malformed.
    pub(crate) fn parse_body(
        body: &'a [u8],
        (session, counter, vlan): (u64, u64, VlanId),
    ) -> Option<Self> {
        let (kind, rest) = body.split_first()?;
        let (addressee, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (round, rest) = rest.split_first_chunk()?;
        let (addressee, number) = (u64::from_be_bytes(*addressee), u64::from_be_bytes(*number));
        let kind = match kind {
            0 => MessageKind::Probe,
            1 => MessageKind::Solicit { session: addressee },
            2 => MessageKind::Answer { session: addressee, counter: number },
            3 => MessageKind::ReportLoss {
                session: addressee,
                vlan: u16::try_from(number).ok()?.try_into().ok()?,
            },
            _ => return None,
        };
        let (node, rest) = split_name(rest)?;
        let (network, vlans) = split_name(rest)?;
        let round = u32::from_be_bytes(*round);
        Some(Self { kind, session, counter, vlan, round, node, network, vlans })
    }
}

/// Splits off a Kubernetes name. Names are written to the status and the log, so characters that are invalid in a
/// Kubernetes name are refused.
fn split_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let is_valid = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    Some((std::str::from_utf8(name).ok().filter(|_| is_valid)?, rest))
}
