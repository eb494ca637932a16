//! Cancels the evacuation of a machine: removes its replacement request and its removal mark, and deletes the
//! migrations that have not started to copy the VM.

use super::machine::EvacuatingMachine;
use super::migration::{MigrationPhase, name_prefix};
use crate::removal::mark::RemovalReason;

/// Changes that cancel the evacuation of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cancellation {
    /// True if the annotation that requests a replacement must be removed.
    pub removes_request: bool,
    /// True if the removal mark must be removed. The Node of the machine then becomes schedulable again.
    pub removes_mark: bool,
    /// Names of the migrations to delete. Migrations that are already copying the VM continue.
    pub migrations: Vec<String>,
}

impl Cancellation {
    /// Returns the changes for a machine on a host.
    #[must_use]
    pub fn for_machine(one: &EvacuatingMachine, host: &str) -> Self {
        let prefix = name_prefix(&one.instance_uid, host);
        let is_revocable =
            |phase, name: &str| phase == MigrationPhase::Preparing && name.starts_with(&prefix);
        let migrations = one
            .migrations
            .iter()
            .filter(|migration| !migration.is_deleting)
            .filter(|migration| is_revocable(migration.phase, &migration.name));
        let machine = &one.machine;
        Self {
            removes_request: machine.replacement_since.is_some() && !machine.is_deleting,
            removes_mark: machine.removal == Some(RemovalReason::HostDrain) && !machine.is_deleting,
            migrations: migrations.map(|migration| migration.name.clone()).collect(),
        }
    }
}

/// Returns true if a drain is cancelled: the host was cordoned while VMs had to leave it, and is schedulable now.
#[must_use]
pub const fn is_cancelled(was_cordoned: bool, is_schedulable: bool) -> bool {
    was_cordoned && is_schedulable
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::super::machine::Machine;
    use super::super::migration::Migration;
    use super::*;

    #[test]
    fn only_steps_that_have_not_begun_are_cancelled() {
        let prefix = name_prefix("uid", "a");
        let migration = |name: String, phase| Migration {
            name,
            instance: "web-1".to_owned(),
            phase,
            changed_at: Timestamp::UNIX_EPOCH,
            is_deleting: false,
        };
        let mut one = EvacuatingMachine {
            namespace: "cluster-a".to_owned(),
            machine: Machine {
                name: "web-1".to_owned(),
                removal: Some(RemovalReason::HostDrain),
                ..Machine::default()
            },
            instance_uid: "uid".to_owned(),
            migration_obstacle: None,
            deployment: Some("web".to_owned()),
            migrations: vec![
                migration(format!("{prefix}1"), MigrationPhase::Running),
                migration(format!("{prefix}2"), MigrationPhase::Preparing),
                migration("by-user".to_owned(), MigrationPhase::Preparing),
            ],
        };
        let cancel = Cancellation::for_machine(&one, "a");
        assert_eq!(cancel.migrations, [format!("{prefix}2")]);
        assert!(cancel.removes_mark && !cancel.removes_request);
        one.machine.removal = Some(RemovalReason::Rollout);
        assert!(!Cancellation::for_machine(&one, "a").removes_mark);
        (one.machine.removal, one.machine.is_deleting) = (Some(RemovalReason::HostDrain), true);
        assert!(!Cancellation::for_machine(&one, "a").removes_mark);
    }
}
