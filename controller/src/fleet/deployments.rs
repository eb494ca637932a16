//! Machines that MachineDeployments ask for and that are not there yet.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Fleet, Wanted};
use berth_api::Problem;
use berth_kubevirt_render::launcher::Machine;
use berth_kubevirt_render::machines::{RenderOptions, render};

/// Machines of one deployment that would be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// Namespace and name of the MachineDeployment.
    pub machine_deployment: String,
    /// Namespace of its VMs.
    pub namespace: String,
    /// How many it asks for.
    pub wanted: u32,
    /// How many there are.
    pub there: u32,
}

/// More machines than a fleet has: a slip of the pen, as a rule.
const MOST: u32 = 100_000;

impl Fleet {
    /// Adds the machines that are missing, by the same rendering as in a cluster.
    pub(super) fn expand(&mut self) {
        let mut there: BTreeMap<(String, String), u32> = BTreeMap::new();
        for Wanted { machine, .. } in &self.machines {
            if let Some(name) = machine.labels.get("md") {
                *there.entry((machine.namespace.clone(), name.clone())).or_default() += 1;
            }
        }
        for deployment in std::mem::take(&mut self.deployments) {
            let called = deployment.called();
            let name = deployment.metadata.name.clone();
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let Some(wanted) = u32::try_from(replicas).ok().filter(|wanted| *wanted <= MOST) else {
                let problem = Problem::new(
                    &called,
                    "spec.replicas",
                    replicas,
                    format!("is not from 0 to {MOST}"),
                );
                self.problems.push(problem.leaves_out("left out"));
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
                            Ok(Ok(Some(machine))) => self.machines.push(Wanted {
                                machine,
                                kind: "VirtualMachine",
                                host: None,
                                is_on: true,
                                class: None,
                            }),
                            Ok(Err(invalid)) => self.problems.push(super::problem(invalid)),
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
