//! Adds the machines of MachineDeployments that do not exist yet.

use std::collections::BTreeMap;

use super::collection::Fleet;
use super::machine::FleetMachine;
use super::object::problem;
use super::planned::Created;
use berth_api::Problem;
use berth_kubevirt_render::launcher::Machine;
use berth_kubevirt_render::machines::{RenderOptions, render};

/// Maximum number of replicas; a larger number is treated as a typing error.
const MAX_REPLICAS: u32 = 100_000;

impl Fleet {
    /// Adds the missing machines of each MachineDeployment, rendered as the controller renders them in a cluster.
    pub(super) fn expand(&mut self) {
        let mut there: BTreeMap<(String, String), u32> = BTreeMap::new();
        for FleetMachine { machine, .. } in &self.machines {
            if let Some(name) = machine.labels.get("md") {
                *there.entry((machine.namespace.clone(), name.clone())).or_default() += 1;
            }
        }
        for deployment in std::mem::take(&mut self.deployments) {
            let called = deployment.qualified_name();
            let name = deployment.metadata.name.clone();
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let Some(wanted) =
                u32::try_from(replicas).ok().filter(|wanted| *wanted <= MAX_REPLICAS)
            else {
                let problem = Problem::new(
                    &called,
                    "spec.replicas",
                    replicas,
                    format!("must be from 0 to {MAX_REPLICAS}"),
                );
                self.problems.push(problem.into_fatal("left out"));
                continue;
            };
            let named = |number: u32| RenderOptions {
                machine: Some(format!("{name}-{}-{number}", deployment.revision())),
                ..RenderOptions::default()
            };
            match render(&deployment, &self.around, &named(wanted.max(1))) {
                Err(problems) => self.problems.extend(problems),
                Ok(first) => {
                    self.problems.extend(first.notes);
                    let there =
                        there.get(&(first.namespace.clone(), name.clone())).copied().unwrap_or(0);
                    for number in there.saturating_add(1)..=wanted {
                        match render(&deployment, &self.around, &named(number))
                            .map(|one| Machine::read(&one.machine))
                        {
                            Ok(Ok(Some(machine))) => self.machines.push(FleetMachine {
                                machine,
                                kind: "VirtualMachine",
                                host: None,
                                is_on: true,
                                class: None,
                            }),
                            Ok(Err(invalid)) => self.problems.push(problem(invalid)),
                            Ok(Ok(None)) | Err(_) => {}
                        }
                    }
                    self.created.push(Created {
                        machine_deployment: called.replacen("MachineDeployment ", "", 1),
                        namespace: first.namespace,
                        wanted,
                        there,
                    });
                }
            }
            self.deployments.push(deployment);
        }
    }
}
