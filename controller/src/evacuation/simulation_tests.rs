//! Evacuations of a simulated host: a controller that is interrupted at any step, machines that start and end, and
//! migrations that fail.

use std::collections::BTreeMap;

use berth_extender::MigrationTarget;
use berth_kubevirt_render::machines::rollout::ReplacementLimits;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::decide::{Action, Deployments, Targets, decide};
use super::deployment::DeploymentState;
use super::machine::{EvacuatingMachine, Machine};
use super::migration::{Migration, MigrationPhase};
use crate::removal::mark::RemovalReason;

const HOST: &str = "a";
/// Number of steps at the end of a simulation, in which the controller is not interrupted and no migration fails.
const QUIET_STEPS: usize = 120;

/// Random choices of one step.
#[derive(Clone, Debug)]
struct Step {
    /// Number of actions that are written before the controller is killed.
    written: usize,
    target: u8,
    migrations_fail: bool,
    seconds: i64,
}

fn any_step() -> impl Strategy<Value = Step> {
    (0_usize..4, 0_u8..3, any::<bool>(), 1_i64..400).prop_map(
        |(written, target, migrations_fail, seconds)| Step {
            written,
            target,
            migrations_fail,
            seconds,
        },
    )
}

struct SimulatedHost {
    limits: ReplacementLimits,
    machines: Vec<EvacuatingMachine>,
    /// Machines on the host.
    on_host: Vec<String>,
    now: i64,
    created: u32,
}

impl SimulatedHost {
    fn new(limits: ReplacementLimits, count: u32, migratable: &[bool]) -> Self {
        let mut world =
            Self { limits, machines: Vec::new(), on_host: Vec::new(), now: 1_000, created: 0 };
        for number in 0..limits.desired {
            let name = world.create();
            let machine = world.machines.last_mut().unwrap();
            machine.machine.is_ready = true;
            if !migratable[number as usize % migratable.len()] {
                machine.migration_obstacle = Some("disk".to_owned());
            }
            if number < count {
                world.on_host.push(name);
            }
        }
        world
    }

    fn create(&mut self) -> String {
        self.created += 1;
        let name = format!("web-{}", self.created);
        self.machines.push(EvacuatingMachine {
            namespace: "cluster-a".to_owned(),
            machine: Machine { name: name.clone(), ..Machine::default() },
            instance_uid: name.clone(),
            migration_obstacle: None,
            deployment: Some("web".to_owned()),
            migrations: Vec::new(),
        });
        name
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    fn available(&self) -> u32 {
        let all = self.machines.iter().filter(|one| one.machine.is_available());
        u32::try_from(all.count()).unwrap()
    }

    /// Runs the controller once; it is killed after `written` actions.
    fn reconcile(&mut self, step: &Step) {
        let evacuating: Vec<EvacuatingMachine> = self
            .machines
            .iter()
            .filter(|one| self.on_host.contains(&one.machine.name))
            .cloned()
            .collect();
        let all: Vec<Machine> = self.machines.iter().map(|one| one.machine.clone()).collect();
        let state = DeploymentState::new(self.limits, &all);
        let mut deployments =
            Deployments::from([(("cluster-a".to_owned(), "web".to_owned()), Ok(state))]);
        let targets = match step.target {
            0 => Targets::NoEngine,
            1 => Targets::NotReady,
            _ => {
                let none = evacuating
                    .iter()
                    .map(|one| (one.instance_uid.clone(), MigrationTarget::NoHost(Vec::new())));
                Targets::Known(none.collect::<BTreeMap<_, _>>())
            }
        };
        let now = self.time();
        let decisions = decide(HOST, &evacuating, &mut deployments, &targets, now);
        let actions =
            evacuating.iter().zip(&decisions).filter(|(_, one)| one.action != Action::Wait);
        for (before, decision) in actions.take(step.written) {
            let machine = self
                .machines
                .iter_mut()
                .find(|one| one.machine.name == before.machine.name)
                .unwrap();
            let is_migrating = machine.migrations.iter().any(|one| !one.phase.is_final());
            assert!(!is_migrating, "a migrating machine needs no action: {decision:?}");
            assert!(!machine.machine.is_leaving(), "{decision:?}");
            match &decision.action {
                Action::Wait => {}
                Action::Migrate(name) => {
                    assert_eq!(machine.machine.replacement_since, None);
                    assert!(machine.migrations.iter().all(|one| one.name != *name));
                    machine.migrations.push(Migration {
                        name: name.clone(),
                        instance: machine.machine.name.clone(),
                        phase: MigrationPhase::Running,
                        changed_at: now,
                        is_deleting: false,
                    });
                }
                Action::RequestReplacement => machine.machine.replacement_since = Some(now),
                Action::Remove => machine.machine.removal = Some(RemovalReason::HostDrain),
            }
        }
    }

    /// Lets the rest of the cluster act: machines start, removals and migrations end, and the MachineDeployment creates
    /// machines.
    fn advance(&mut self, step: &Step) {
        self.machines.retain(|one| !one.machine.is_leaving());
        let time = self.time();
        for one in &mut self.machines {
            one.machine.is_ready = true;
            for migration in one.migrations.iter_mut().filter(|one| !one.phase.is_final()) {
                migration.changed_at = time;
                migration.phase = if step.migrations_fail {
                    MigrationPhase::Failed
                } else {
                    self.on_host.retain(|name| *name != one.machine.name);
                    MigrationPhase::Succeeded
                };
            }
        }
        let exists = |name: &String| self.machines.iter().any(|one| one.machine.name == *name);
        self.on_host.retain(exists);
        let alive = u32::try_from(self.machines.len()).unwrap();
        let current = self.machines.iter().filter(|one| one.machine.replacement_since.is_none());
        let current = u32::try_from(current.count()).unwrap();
        let limit = (self.limits.desired + self.limits.max_surge).saturating_sub(alive);
        for _ in 0..self.limits.desired.saturating_sub(current).min(limit) {
            self.create();
        }
        self.now += step.seconds;
    }

    fn check_budget(&self) -> Result<(), TestCaseError> {
        let minimum = self.limits.desired.saturating_sub(self.limits.max_unavailable);
        prop_assert!(
            self.available() >= minimum,
            "{} of {} available, limits {:?}",
            self.available(),
            self.machines.len(),
            self.limits
        );
        Ok(())
    }
}

proptest! {
    #[test]
    fn hosts_become_empty_within_the_budget(
        desired in 1_u32..6,
        count in 0_u32..6,
        (max_surge, max_unavailable) in prop_oneof![Just((1, 0)), Just((0, 1)), Just((2, 1)), Just((0, 3))],
        migratable in prop::collection::vec(any::<bool>(), 1..4),
        steps in prop::collection::vec(any_step(), 0..40),
    ) {
        let limits = ReplacementLimits { desired, max_surge, max_unavailable };
        let mut world = SimulatedHost::new(limits, count, &migratable);
        for step in &steps {
            world.reconcile(step);
            world.check_budget()?;
            world.advance(step);
        }
        let quiet = Step { written: usize::MAX, target: 0, migrations_fail: false, seconds: 60 };
        for _ in 0..QUIET_STEPS {
            world.reconcile(&quiet);
            world.check_budget()?;
            world.advance(&quiet);
        }
        prop_assert!(world.on_host.is_empty(), "{:?} are still on the host", world.on_host);
    }
}
