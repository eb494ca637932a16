//! What more hosts would do: `--add 2xrack1-a`, or how many of them it would take.

use std::str::FromStr;

use berth_api::InfraNode;
use serde::Serialize;

use super::Plan;
use super::build::World;
use crate::fleet::Fleet;

/// Hosts that are not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Add {
    /// How many; `None` asks for how many it would take.
    pub count: Option<u32>,
    /// A host that they are like, or a HostProfile: then like the largest host that it selects.
    pub name: String,
}

/// Not `COUNTxNAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: give a number and a name, as in 2xrack1-a; or only a name, to be told the number")]
pub struct ParseAddError(String);

impl FromStr for Add {
    type Err = ParseAddError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let wrong = || ParseAddError(text.chars().take(60).collect());
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        let name = rest.trim_start().strip_prefix(['x', '×']).map(str::trim);
        match (number.parse::<u32>(), name) {
            (Ok(count), Some(name)) if count > 0 && count <= MOST && !name.is_empty() => {
                Ok(Self { count: Some(count), name: name.to_owned() })
            }
            _ if digits > 0 && name.is_some() => Err(wrong()),
            _ if text.is_empty() || text.contains(char::is_whitespace) => Err(wrong()),
            _ => Ok(Self { count: None, name: text.to_owned() }),
        }
    }
}

/// More hosts than anybody buys at once.
const MOST: u32 = 4096;

/// A number of hosts that are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed<'a> {
    pub(super) count: u32,
    pub(super) name: &'a str,
}

impl Add {
    pub(super) fn fixed(&self) -> Option<Fixed<'_>> {
        Some(Fixed { count: self.count?, name: &self.name })
    }
}

impl Fixed<'_> {
    /// The host that they are like.
    pub(super) fn like<'f>(&self, fleet: &'f Fleet) -> Option<&'f InfraNode> {
        like(fleet, self.name)
    }
}

fn like<'f>(fleet: &'f Fleet, name: &str) -> Option<&'f InfraNode> {
    if let Some(host) = fleet.infra_nodes.get(name) {
        return Some(host);
    }
    let profile = fleet.profiles.get(name)?;
    let selected = fleet.infra_nodes.values().filter(|infra| {
        let node = infra.metadata.name.as_deref().and_then(|name| fleet.nodes.get(name));
        let facts = berth_placement::inventory::HostFacts::read(infra, node, &mut Vec::new());
        facts.is_ok_and(|facts| profile.selects(&facts.labels))
    });
    // The first of equals: names are in order.
    let threads =
        |infra: &InfraNode| infra.status.as_ref().and_then(|s| s.capabilities.cpu.threads);
    selected.fold(None, |best: Option<&InfraNode>, one| match best {
        Some(best) if threads(best) >= threads(one) => Some(best),
        _ => Some(one),
    })
}

/// What more hosts would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Added {
    /// The host that they are like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// How many were added.
    pub count: u32,
    /// The smallest number with which everything fits; `None` if no number helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enough: Option<u32>,
}

pub(super) fn answer(fleet: &Fleet, add: &Add, plan: &Plan) -> Added {
    let found = like(fleet, &add.name);
    let name = found.and_then(|host| host.metadata.name.clone());
    let count = if found.is_some() { add.count.unwrap_or_default() } else { 0 };
    let enough = found.and_then(|_| enough(fleet, &add.name, plan));
    Added { like: name, count, enough }
}

/// By doubling and halving: with more hosts never less fits, but for rules that spread.
fn enough(fleet: &Fleet, name: &str, plan: &Plan) -> Option<u32> {
    let left = |count: u32| {
        let mut world = World::build(fleet, (count > 0).then_some(Fixed { count, name }));
        let wishes = std::mem::take(&mut world.wishes);
        wishes.iter().filter(|wish| world.engine.place(&wish.request, None).is_none()).count()
    };
    if left(0) == 0 {
        return Some(0);
    }
    // No VM takes more than a host, so more hosts than VMs are of no use.
    let wishes =
        u32::try_from(plan.placed.len() + plan.unplaced.len()).unwrap_or(MOST).clamp(1, MOST);
    let (mut low, mut high) = (0, 1);
    while left(high) > 0 {
        if high >= wishes {
            return None;
        }
        low = high;
        high = (high * 2).min(wishes);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if left(middle) == 0 { high = middle } else { low = middle }
    }
    Some(high)
}
