//! Existing live migrations of one VM, and whether another attempt is permitted.

use std::fmt::Write as _;
use std::time::Duration;

use berth_api::names::MIGRATION_NAME_PREFIX;
use berth_kubevirt_render::stable_hash::stable_hash;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

/// Number of failed attempts after which a machine is replaced.
pub const MAX_ATTEMPTS: usize = 3;
/// Time for which a failed attempt counts towards [`MAX_ATTEMPTS`].
const ATTEMPT_WINDOW: Duration = Duration::from_secs(3600);
/// Backoff after the first failed attempt. Each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(30);

/// A VirtualMachineInstanceMigration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Field `metadata.name`.
    pub name: String,
    /// Field `spec.vmiName`.
    pub instance: String,
    /// Field `status.phase`.
    pub phase: MigrationPhase,
    /// Time of the failure; the creation time if the migration has not failed.
    pub changed_at: Timestamp,
    /// True if the object is being deleted.
    pub is_deleting: bool,
}

/// Phase of a migration, as far as it matters for an evacuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationPhase {
    /// The target pod is not ready yet: the deletion of the migration has no effect on the VM.
    Preparing,
    /// The VM is being copied.
    Running,
    /// The VM runs on the target.
    Succeeded,
    /// The VM stays on the source.
    Failed,
}

/// Result of [`next_attempt`]: whether another attempt to migrate a VM is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAttempt<'m> {
    /// A migration has not ended.
    Active(&'m Migration),
    /// The next attempt is permitted at this time.
    Backoff(Timestamp),
    /// No further attempt is permitted.
    Exhausted,
    /// An attempt is permitted; its migration has this name.
    Next(String),
}

impl MigrationPhase {
    fn parse(phase: &str) -> Self {
        match phase {
            "Running" | "TargetReady" | "Synchronizing" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Preparing,
        }
    }

    /// Returns true if the migration has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl Migration {
    /// Reads a VirtualMachineInstanceMigration. Fields of a wrong type count as absent.
    #[must_use]
    pub fn read(object: &DynamicObject) -> Self {
        let text = |pointer: &str| {
            object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
        };
        let phase = MigrationPhase::parse(text("/status/phase"));
        let transitions = object.data.pointer("/status/phaseTransitionTimestamps");
        let mut transitions = transitions.and_then(Value::as_array).into_iter().flatten();
        let failed_at = transitions.find(|one| one["phase"] == "Failed");
        let failed_at = failed_at.and_then(|one| one["phaseTransitionTimestamp"].as_str());
        let ended_at = text("/status/migrationState/endTimestamp");
        let created = object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        Self {
            name: object.name_any(),
            instance: text("/spec/vmiName").to_owned(),
            phase,
            changed_at: failed_at.unwrap_or(ended_at).parse().unwrap_or(created),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Returns the name prefix of Berth's migrations of this instance from this host.
#[must_use]
pub fn name_prefix(instance_uid: &str, host: &str) -> String {
    let mut prefix = MIGRATION_NAME_PREFIX.to_owned();
    let hash = stable_hash(format!("{instance_uid}/{host}").bytes());
    // Writing to a string does not fail.
    write!(prefix, "{hash:016x}-").unwrap_or_default();
    prefix
}

/// Returns the next attempt for an instance with these migrations. `prefix` is the result of [`name_prefix`].
#[must_use]
pub fn next_attempt<'m>(
    migrations: &'m [Migration],
    prefix: &str,
    now: Timestamp,
) -> NextAttempt<'m> {
    if let Some(active) = migrations.iter().find(|one| !one.phase.is_final()) {
        return NextAttempt::Active(active);
    }
    let own = || {
        migrations.iter().filter_map(|one| {
            let number: u32 = one.name.strip_prefix(prefix)?.parse().ok()?;
            Some((number, one))
        })
    };
    let window = SignedDuration::try_from(ATTEMPT_WINDOW).unwrap_or_default();
    let counts = |one: &Migration| {
        one.phase == MigrationPhase::Failed && now.duration_since(one.changed_at) < window
    };
    let failed = || own().filter(|(_, one)| counts(one));
    let count = failed().count();
    if count >= MAX_ATTEMPTS {
        return NextAttempt::Exhausted;
    }
    let next = own().map(|(number, _)| number).max().unwrap_or_default().saturating_add(1);
    let Some(last) = failed().map(|(_, one)| one.changed_at).max() else {
        return NextAttempt::Next(format!("{prefix}{next}"));
    };
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
    let backoff = FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(doublings));
    let retry_at = last.checked_add(backoff).unwrap_or(now);
    if now < retry_at {
        NextAttempt::Backoff(retry_at)
    } else {
        NextAttempt::Next(format!("{prefix}{next}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn migration(name: &str, phase: MigrationPhase, changed_at: i64) -> Migration {
        Migration {
            name: name.to_owned(),
            instance: "web-1".to_owned(),
            phase,
            changed_at: at(changed_at),
            is_deleting: false,
        }
    }

    #[test]
    fn failed_attempts_are_repeated_with_growing_backoff() {
        use MigrationPhase::{Failed, Preparing, Succeeded};
        let next = |name: &str| NextAttempt::Next(name.to_owned());
        let mut all = vec![migration("p-1", Succeeded, 0), migration("other-7", Failed, 10_000)];
        assert_eq!(next_attempt(&all, "p-", at(10_000)), next("p-2"));
        all.push(migration("p-2", Failed, 10_000));
        assert_eq!(next_attempt(&all, "p-", at(10_029)), NextAttempt::Backoff(at(10_030)));
        assert_eq!(next_attempt(&all, "p-", at(10_030)), next("p-3"));
        all.push(migration("p-3", Failed, 10_100));
        assert_eq!(next_attempt(&all, "p-", at(10_101)), NextAttempt::Backoff(at(10_160)));
        all.push(migration("p-4", Failed, 10_200));
        assert_eq!(next_attempt(&all, "p-", at(13_000)), NextAttempt::Exhausted);
        assert_eq!(next_attempt(&all, "p-", at(20_000)), next("p-5"), "old failures do not count");
        all.push(migration("by-user", Preparing, 10_200));
        assert!(matches!(next_attempt(&all, "p-", at(20_000)), NextAttempt::Active(_)));
    }

    #[test]
    fn malformed_fields_count_as_absent() {
        for status in [json!(7), json!({"phase": 7, "phaseTransitionTimestamps": [1]}), json!(null)]
        {
            let object: DynamicObject =
                serde_json::from_value(json!({"metadata": {"name": "m"}, "status": status}))
                    .unwrap();
            assert_eq!(Migration::read(&object).phase, MigrationPhase::Preparing);
        }
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"vmiName": "web-1"},
            "status": {"phase": "Failed", "phaseTransitionTimestamps": [
                {"phase": "Failed", "phaseTransitionTimestamp": "2026-01-01T00:05:00Z"}]},
        }))
        .unwrap();
        let read = Migration::read(&object);
        assert_eq!((read.phase, &*read.instance), (MigrationPhase::Failed, "web-1"));
        assert_eq!(read.changed_at.to_string(), "2026-01-01T00:05:00Z");
    }

    #[test]
    fn names_are_valid_and_differ_by_host() {
        let name = name_prefix("uid", "rack1-a");
        assert!(name.len() < 50 && name.starts_with(MIGRATION_NAME_PREFIX), "{name}");
        assert_ne!(name, name_prefix("uid", "rack1-b"));
    }
}
