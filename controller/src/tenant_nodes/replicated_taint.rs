//! A taint that is copied from a host, and the annotation of a tenant's Node that lists the taints that Berth has
//! added.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;
use serde_json::{Value, json};

use super::keys::{FieldKind, MAX_COPIED};

/// A taint. A Node has at most one taint for each pair of key and effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct NodeTaint {
    pub key: String,
    /// Effect of the taint, such as `NoSchedule`.
    pub effect: String,
    /// Value of the taint; may be empty.
    pub value: String,
}

/// Error of a text that is not a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a taint must be KEY=VALUE:EFFECT or KEY:EFFECT")]
pub struct InvalidTaint;

impl FromStr for NodeTaint {
    type Err = InvalidTaint;

    fn from_str(text: &str) -> Result<Self, InvalidTaint> {
        let (rest, effect) = text.rsplit_once(':').ok_or(InvalidTaint)?;
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        if key.is_empty() || effect.is_empty() {
            return Err(InvalidTaint);
        }
        Ok(Self { key: key.to_owned(), effect: effect.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for NodeTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

impl NodeTaint {
    /// Converts a taint of a host.
    #[must_use]
    pub fn of_host(taint: &Taint) -> Self {
        let value = taint.value.clone().unwrap_or_default();
        Self { key: taint.key.clone(), effect: taint.effect.clone(), value }
    }

    /// Returns true if both taints have the same key and effect, so that a Node can have only one of them.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    /// Returns the taint as JSON, as in `spec.taints` of a Node.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut taint = json!({"key": self.key, "effect": self.effect});
        if !self.value.is_empty() {
            taint["value"] = self.value.as_str().into();
        }
        taint
    }
}

/// Parses the annotation that lists the taints that Berth has added. The tenant can also write the annotation: invalid
/// entries, and taints with keys that are never copied, are omitted.
#[must_use]
pub fn parse_recorded(annotation: &str) -> BTreeSet<NodeTaint> {
    let entries = annotation.split(',').take(MAX_COPIED);
    let taints = entries.filter_map(|entry| entry.parse::<NodeTaint>().ok());
    taints.filter(|taint| !FieldKind::Taint.describes_node_itself(&taint.key)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn taints_are_written_as_in_kubectl() {
        for text in ["a.b/c=d:NoSchedule", "a:NoExecute"] {
            assert_eq!(text.parse::<NodeTaint>().unwrap().to_string(), text);
        }
        for wrong in ["", "a", "a=b", ":NoSchedule", "a:", "=b:NoSchedule"] {
            assert_eq!(wrong.parse::<NodeTaint>(), Err(InvalidTaint), "{wrong}");
        }
        let recorded = parse_recorded("a:NoSchedule,,x,node.kubernetes.io/not-ready:NoExecute");
        assert_eq!(recorded, BTreeSet::from(["a:NoSchedule".parse().unwrap()]));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "\\PC{0,60}") {
            for taint in parse_recorded(&text) {
                prop_assert_eq!(taint.to_string().parse(), Ok(taint));
            }
        }
    }
}
