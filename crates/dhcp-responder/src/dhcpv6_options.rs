//! Parses the options of DHCPv6 messages (RFC 8415) without copying them.

use std::net::Ipv6Addr;

use dhcproto::v6::OptionCode;

use crate::outcome::IgnoredReason;

/// Maximum length in bytes of a DUID, a client or server identifier (RFC 8415, section 11.1).
const MAX_DUID_LENGTH: usize = 130;
/// Maximum number of identity associations in a request that are answered, so that the answer fits into one frame. No
/// client needs more of them.
const MAX_ASSOCIATIONS: usize = 8;

/// Encoded options of a message, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(OptionCode, &'a [u8]), IgnoredReason>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let next = self.0.split_first_chunk::<4>().and_then(|(&[a, b, c, d], rest)| {
            let length = usize::from(u16::from_be_bytes([c, d]));
            let (data, rest) = rest.split_at_checked(length)?;
            self.0 = rest;
            Some((OptionCode::from(u16::from_be_bytes([a, b])), data))
        });
        if next.is_none() {
            self.0 = &[];
        }
        Some(next.ok_or(IgnoredReason::Malformed))
    }
}

/// Kind of an identity association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AssociationKind {
    /// IA_NA: association for non-temporary addresses.
    Address,
    /// IA_TA: association for temporary addresses.
    TemporaryAddress,
    /// IA_PD: association for prefix delegation.
    Prefix,
}

/// An identity association in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Association {
    pub(crate) kind: AssociationKind,
    pub(crate) id: u32,
    pub(crate) addresses: Vec<Ipv6Addr>,
}

impl Association {
    fn parse(kind: AssociationKind, data: &[u8]) -> Result<Self, IgnoredReason> {
        let (id, rest) = data.split_first_chunk::<4>().ok_or(IgnoredReason::Malformed)?;
        // In the format of IA_NA and IA_PD, T1 and T2 (4 bytes each) precede the options.
        let times = if kind == AssociationKind::TemporaryAddress { 0 } else { 8 };
        let options = rest.get(times..).ok_or(IgnoredReason::Malformed)?;
        let mut addresses = Vec::new();
        for option in Options(options) {
            let (code, data) = option?;
            if code == OptionCode::IAAddr {
                // In the format of the option, two lifetimes (4 bytes each) follow the address.
                let address = data.first_chunk::<16>().filter(|_| data.len() >= 24);
                addresses.push(Ipv6Addr::from(*address.ok_or(IgnoredReason::Malformed)?));
            }
        }
        addresses.truncate(MAX_ASSOCIATIONS);
        Ok(Self { kind, id: u32::from_be_bytes(*id), addresses })
    }
}

/// Options of a request that determine the answer.
#[derive(Debug, Default)]
pub(crate) struct RequestOptions<'a> {
    pub(crate) client: Option<&'a [u8]>,
    pub(crate) server: Option<&'a [u8]>,
    pub(crate) has_rapid_commit: bool,
    pub(crate) associations: Vec<Association>,
}

impl<'a> RequestOptions<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, IgnoredReason> {
        let mut all = Self::default();
        for option in Options(bytes) {
            let (code, data) = option?;
            let kind = match code {
                OptionCode::ClientId => {
                    all.client = Some(data).filter(|data| data.len() <= MAX_DUID_LENGTH);
                    continue;
                }
                OptionCode::ServerId => {
                    all.server = Some(data);
                    continue;
                }
                OptionCode::RapidCommit => {
                    all.has_rapid_commit = true;
                    continue;
                }
                OptionCode::IANA => AssociationKind::Address,
                OptionCode::IATA => AssociationKind::TemporaryAddress,
                OptionCode::IAPD => AssociationKind::Prefix,
                _ => continue,
            };
            if all.associations.len() < MAX_ASSOCIATIONS {
                all.associations.push(Association::parse(kind, data)?);
            }
        }
        Ok(all)
    }
}
