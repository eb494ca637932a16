//! Options of DHCPv4 messages (RFC 2132).

use std::net::Ipv4Addr;

use dhcproto::v4::borrowed::DhcpOptionIterator;
use dhcproto::v4::{DhcpOption, Encodable as _, Encoder, MessageType, OptionCode, UnknownOption};
use ipnet::Ipv4Net;

use crate::domain_name::encode_all;
use crate::identity::{LEASE_TIME, REBINDING_TIME, RENEWAL_TIME, SERVER_IDENTIFIER, seconds};
use crate::settings::{Ipv4Settings, Settings};

/// Number of bytes of a message before its options.
const HEADER_LENGTH: usize = 240;

/// Options of a request that determine the answer.
#[derive(Debug, Default)]
pub(crate) struct RequestOptions {
    pub(crate) message_type: Option<MessageType>,
    pub(crate) server: Option<Ipv4Addr>,
    pub(crate) address: Option<Ipv4Addr>,
    /// Maximum length of an IP datagram in bytes that the client accepts.
    pub(crate) limit: Option<u16>,
    client: Option<Vec<u8>>,
    requests_routes: bool,
}

impl RequestOptions {
    /// Parses the options. Ignores options with wrong lengths.
    pub(crate) fn parse(options: DhcpOptionIterator<'_>) -> Self {
        let mut all = Self::default();
        for option in options {
            let data = option.data();
            let address = || <[u8; 4]>::try_from(data).ok().map(Ipv4Addr::from);
            match option.code() {
                OptionCode::MessageType => {
                    all.message_type =
                        <[u8; 1]>::try_from(data).ok().map(|[code]| MessageType::from(code));
                }
                OptionCode::ServerIdentifier => all.server = address(),
                OptionCode::RequestedIpAddress => all.address = address(),
                OptionCode::MaxMessageSize => {
                    all.limit = <[u8; 2]>::try_from(data).ok().map(u16::from_be_bytes);
                }
                OptionCode::ClientIdentifier => all.client = Some(data.to_vec()),
                OptionCode::ParameterRequestList => {
                    all.requests_routes = data.contains(&OptionCode::ClasslessStaticRoute.into());
                }
                _ => {}
            }
        }
        all
    }
}

/// Writes the options of an answer, up to the length that the client accepts. Options that do not fit are left out, so
/// callers must write the most important options first. Each option is sent even if the client does not request it: for
/// example, busybox's udhcpc does not request the MTU, but applies it.
pub(crate) struct OptionWriter {
    bytes: Vec<u8>,
    limit: usize,
    pub(crate) left_out_count: u64,
}

impl OptionWriter {
    fn new(limit: usize, message_type: MessageType, request: &RequestOptions) -> Self {
        let mut writer = Self {
            bytes: Vec::new(),
            limit: limit.saturating_sub(HEADER_LENGTH),
            left_out_count: 0,
        };
        writer.push(&DhcpOption::MessageType(message_type));
        writer.push(&DhcpOption::ServerIdentifier(SERVER_IDENTIFIER));
        // RFC 6842: an answer must contain the client identifier of the request, so that the client can recognize its
        // answer.
        if let Some(client) = &request.client {
            writer.push(&DhcpOption::ClientIdentifier(client.clone()));
        }
        writer
    }

    /// Creates a writer with the options of DHCPNAK.
    pub(crate) fn for_nak(limit: usize, request: &RequestOptions) -> Self {
        let mut writer = Self::new(limit, MessageType::Nak, request);
        writer
            .push(&DhcpOption::Message("the lease of this machine has another address".to_owned()));
        writer
    }

    /// Creates a writer with the options of a DHCPOFFER, or of a DHCPACK that answers a DHCPREQUEST.
    pub(crate) fn for_lease(
        limit: usize,
        message_type: MessageType,
        settings: &Settings,
        ipv4: &Ipv4Settings,
        request: &RequestOptions,
    ) -> Self {
        let mut writer = Self::new(limit, message_type, request);
        writer.push(&DhcpOption::AddressLeaseTime(seconds(LEASE_TIME)));
        writer.push(&DhcpOption::Renewal(seconds(RENEWAL_TIME)));
        writer.push(&DhcpOption::Rebinding(seconds(REBINDING_TIME)));
        writer.push_settings(settings, ipv4, request);
        writer
    }

    /// Creates a writer with the options of a DHCPACK that answers a DHCPINFORM: without lease times.
    pub(crate) fn for_inform(
        limit: usize,
        settings: &Settings,
        ipv4: &Ipv4Settings,
        request: &RequestOptions,
    ) -> Self {
        let mut writer = Self::new(limit, MessageType::Ack, request);
        writer.push_settings(settings, ipv4, request);
        writer
    }

    fn push_settings(
        &mut self,
        settings: &Settings,
        ipv4: &Ipv4Settings,
        request: &RequestOptions,
    ) {
        // RFC 2132: the subnet mask must precede the routers.
        self.push(&DhcpOption::SubnetMask(ipv4.address.netmask()));
        if let Some(gateway) = ipv4.gateway {
            self.push(&DhcpOption::Router(vec![gateway]));
        }
        if !ipv4.nameservers.is_empty() {
            self.push(&DhcpOption::DomainNameServer(ipv4.nameservers.to_vec()));
        }
        if let Some(mtu) = settings.mtu {
            self.push(&DhcpOption::InterfaceMtu(mtu));
        }
        if request.requests_routes || !ipv4.routes.is_empty() {
            self.push(&DhcpOption::ClasslessStaticRoute(routes(ipv4)));
        }
        if let Some(hostname) = settings.hostname {
            self.push(&DhcpOption::Hostname(hostname.to_owned()));
        }
        if let Some(domain) = ipv4.search_domains.first() {
            self.push(&DhcpOption::DomainName(domain.text.clone()));
            let data = encode_all(ipv4.search_domains);
            self.push(&DhcpOption::Unknown(UnknownOption::new(OptionCode::DomainSearch, data)));
        }
        // Networks with one or two addresses have no broadcast address (RFC 3021).
        if ipv4.address.prefix_len() < 31 {
            self.push(&DhcpOption::BroadcastAddr(ipv4.address.broadcast()));
        }
    }

    fn push(&mut self, option: &DhcpOption) {
        let mut encoded = Vec::new();
        let result = option.encode(&mut Encoder::new(&mut encoded));
        // One byte must remain for the option "End".
        if result.is_ok() && self.bytes.len() + encoded.len() < self.limit {
            self.bytes.extend(encoded);
        } else {
            self.left_out_count += 1;
        }
    }

    /// Returns the encoded options, with the option "End".
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(u8::from(OptionCode::End));
        self.bytes
    }
}

/// Returns the routes of option 121: an on-link route to the server identifier, the network's routes, and the default
/// route. The default route is included because clients that use option 121 ignore the option `Router`.
fn routes(ipv4: &Ipv4Settings) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let on_link = Ipv4Addr::UNSPECIFIED;
    let mut routes = vec![(Ipv4Net::from(SERVER_IDENTIFIER), on_link)];
    routes.extend(ipv4.routes);
    let has_default = ipv4.routes.iter().any(|(to, _)| to.prefix_len() == 0);
    if let Some(gateway) = ipv4.gateway.filter(|_| !has_default) {
        routes.push((Ipv4Net::default(), gateway));
    }
    routes
}
