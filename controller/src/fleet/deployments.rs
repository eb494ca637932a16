//! Adds the missing machines of MachineDeployments.

use std::collections::BTreeMap;

use super::collection::Fleet;
use super::drain_facts::DrainFacts;
use super::machine::FleetMachine;
use super::machine_claims::machine_claims;
use super::object::fatal_problem;
use super::planned::{MachineCounts, PlannedClone};
use berth_api::Problem;
use berth_kubevirt_render::launcher::Machine;
use berth_kubevirt_render::machines::{RenderOptions, render_machine};

/// Maximum number of replicas; a larger number is treated as a typing error.
const MAX_REPLICAS: u32 = 100_000;

impl Fleet {
    /// Adds the missing machines of each MachineDeployment, rendered as the controller renders them in a cluster.
    pub(super) fn expand_deployments(&mut self) {
        let mut existing_counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        for one in &self.machines {
            let machine = &one.machine;
            if let Some(name) = machine.labels.get("md") {
                *existing_counts.entry((machine.namespace.clone(), name.clone())).or_default() += 1;
            }
        }
        for deployment in std::mem::take(&mut self.deployments) {
            let qualified_name = deployment.qualified_name();
            let name = deployment.metadata.name.clone();
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let Some(wanted) =
                u32::try_from(replicas).ok().filter(|wanted| *wanted <= MAX_REPLICAS)
            else {
                let problem = Problem::new(
                    &qualified_name,
                    "spec.replicas",
                    replicas,
                    format!("must be from 0 to {MAX_REPLICAS}"),
                );
                self.problems.push(problem.into_fatal("left out"));
                continue;
            };
            let options_for = |number: u32| RenderOptions {
                machine_name: Some(format!("{name}-{}-{number}", deployment.revision())),
                ..RenderOptions::default()
            };
            match render_machine(&deployment, &self.render_context, &options_for(wanted.max(1))) {
                Err(problems) => self.problems.extend(problems),
                Ok(first) => {
                    self.problems.extend(first.warnings);
                    let existing = existing_counts
                        .get(&(first.namespace.clone(), name.clone()))
                        .copied()
                        .unwrap_or(0);
                    for number in existing.saturating_add(1)..=wanted {
                        match render_machine(
                            &deployment,
                            &self.render_context,
                            &options_for(number),
                        )
                        .map(|one| (Machine::read(&one.machine), machine_claims(&one.machine)))
                        {
                            Ok((Ok(Some(machine)), claims)) => {
                                self.machines.push(Box::new(FleetMachine {
                                    machine,
                                    kind: "VirtualMachine",
                                    host: None,
                                    should_run: true,
                                    migration_obstacle: None,
                                    is_external: false,
                                    has_deployment: true,
                                    drain: DrainFacts::default(),
                                    class: None,
                                    claims,
                                }))
                            }
                            Ok((Err(invalid), _)) => self.problems.push(fatal_problem(invalid)),
                            Ok((Ok(None), _)) | Err(_) => {}
                        }
                    }
                    self.machine_counts.push(MachineCounts {
                        machine_deployment: qualified_name.replacen("MachineDeployment ", "", 1),
                        namespace: first.namespace,
                        desired: wanted,
                        existing,
                        clones: PlannedClone::from_disks(first.clones),
                    });
                }
            }
            self.deployments.push(deployment);
        }
    }
}
