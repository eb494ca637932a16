//! Objects in the files that `berth-controller render` reads: MachineDeployments, and the objects that their
//! rendering reads.

use berth_api::{InfraConfig, TenantCluster};
use serde_json::Value;

use super::kinds;
use super::object::read;
use super::stream::Found;
use berth_api::Problem;
use berth_kubevirt_render::machines::{GROUP, KIND, MachineDeployment, RenderContext};

/// MachineDeployments to render, and the objects that their rendering reads.
#[derive(Debug, Default)]
pub struct RenderInput {
    /// MachineDeployments to render, in input order.
    pub deployments: Vec<MachineDeployment>,
    /// Objects that the rendering of MachineDeployments reads.
    pub around: RenderContext,
    /// Problems of the input.
    pub problems: Vec<Problem>,
}

impl RenderInput {
    /// Sorts objects by kind. Objects of kinds that the rendering does not read are ignored.
    #[must_use]
    pub fn new(found: Vec<Found>, problems: Vec<Problem>) -> Self {
        let mut input = Self { problems, ..Self::default() };
        for Found { place, object } in found {
            if let Err(problem) = input.add(&place, object) {
                input.problems.push(problem);
            }
        }
        input
    }

    fn add(&mut self, place: &str, object: Value) -> Result<(), Problem> {
        kinds::check(place, &object)?;
        let text =
            |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        match (version.split('/').next().unwrap_or_default(), kind.as_str()) {
            (GROUP, KIND) => self.deployments.push(MachineDeployment::read(place, object)?),
            ("berth.dev", "InfraConfig") => {
                let config: InfraConfig = read(&kind, place, &object)?;
                self.around.config = config.spec;
            }
            ("berth.dev", "TenantCluster") => {
                let tenant: TenantCluster = read(&kind, place, &object)?;
                let name = tenant.metadata.name.clone().unwrap_or_default();
                self.around.tenants.insert(name, tenant);
            }
            _ => drop(self.around.add(&object)),
        }
        Ok(())
    }
}
