//! Plans with additional hosts: `--add 2xrack1-a`, or the required number of hosts.

use std::str::FromStr;

use berth_api::{InfraNode, excerpt};

use crate::fleet::Fleet;

/// Request for a plan with additional hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddRequest {
    /// Number of additional hosts; `None` to compute how many are needed.
    pub count: Option<u32>,
    /// Name of the host to copy, or name of a HostProfile. With a HostProfile, the largest host that it selects is
    /// copied.
    pub name: String,
}

/// Error for an argument that is not `COUNTxNAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}`: specify a number and a name, as in 2xrack1-a, or only a name to compute the number"
)]
pub struct ParseAddError(String);

impl FromStr for AddRequest {
    type Err = ParseAddError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let error = || ParseAddError(excerpt(text));
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        let name = rest.trim_start().strip_prefix(['x', '×']).map(str::trim);
        match (number.parse::<u32>(), name) {
            (Ok(count), Some(name))
                if count > 0 && count <= MAX_ADDED_HOSTS && !name.is_empty() =>
            {
                Ok(Self { count: Some(count), name: name.to_owned() })
            }
            _ if digits > 0 && name.is_some() => Err(error()),
            _ if text.is_empty() || text.contains(char::is_whitespace) => Err(error()),
            _ => Ok(Self { count: None, name: text.to_owned() }),
        }
    }
}

/// Maximum number of additional hosts.
pub(super) const MAX_ADDED_HOSTS: u32 = 4096;

/// A fixed number of additional hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAddition<'a> {
    pub(super) count: u32,
    pub(super) name: &'a str,
}

impl AddRequest {
    pub(super) fn host_addition(&self) -> Option<HostAddition<'_>> {
        Some(HostAddition { count: self.count?, name: &self.name })
    }
}

impl HostAddition<'_> {
    /// Returns the host to copy: the host with this name, or the host with the most CPU threads that the HostProfile
    /// with this name selects.
    pub(super) fn template_host<'f>(&self, fleet: &'f Fleet) -> Option<&'f InfraNode> {
        template_host(fleet, self.name)
    }
}

pub(super) fn template_host<'f>(fleet: &'f Fleet, name: &str) -> Option<&'f InfraNode> {
    if let Some(host) = fleet.infra_nodes.get(name) {
        return Some(host);
    }
    let profile = fleet.profiles.get(name)?;
    let selected = fleet.infra_nodes.values().filter(|infra| {
        let node = infra.metadata.name.as_deref().and_then(|name| fleet.nodes.get(name));
        let facts = berth_placement::inventory::ReportedHost::read(infra, node, &mut Vec::new());
        facts.is_ok_and(|facts| profile.selects(&facts.labels))
    });
    // If several hosts have the same number of CPU threads, the first host by name is used.
    let threads =
        |infra: &InfraNode| infra.status.as_ref().and_then(|s| s.capabilities.cpu.threads);
    selected.fold(None, |best: Option<&InfraNode>, one| match best {
        Some(best) if threads(best) >= threads(one) => Some(best),
        _ => Some(one),
    })
}
