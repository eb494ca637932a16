//! Definition of a check: its stable ID, title, explanation and function.

use serde::Serialize;

/// A check. `F` is the type of the function that performs the check.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Check<F> {
    /// Stable name, `group.name`.
    pub id: &'static str,
    /// Short description of the property that the check verifies.
    pub title: &'static str,
    /// Reason for the check and meaning of its results.
    pub explanation: &'static str,
    /// Function that performs the check.
    #[serde(skip)]
    pub run: F,
}

impl<F> Check<F> {
    /// Returns true if `name` is the ID of the check or its group. For example, `kvm` is the group of `kvm.nested`.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        let rest = self.id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Returns the checks whose IDs or groups are in `names`; all checks if `names` is empty.
#[must_use]
pub fn select<F>(mut checks: Vec<Check<F>>, names: &[String]) -> Vec<Check<F>> {
    checks.retain(|check| names.is_empty() || names.iter().any(|name| check.has_name(name)));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_selected_by_group_or_id() {
        let check = |id| Check { id, title: "", explanation: "", run: () };
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let all = ["kvm.nested", "kvm.tun", "cpu.zones"].map(check).to_vec();
            select(all, &names).iter().map(|check| check.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&["kvm"]), ["kvm.nested", "kvm.tun"]);
        assert_eq!(ids(&["kvm.tun", "cpu.zones"]), ["kvm.tun", "cpu.zones"]);
        assert_eq!(ids(&["kv"]), Vec::<&str>::new());
        assert_eq!(ids(&[]).len(), 3);
    }
}
