//! Objects in the files that `berth-controller render` reads: MachineDeployments, and the objects that are needed to
//! render them.

use berth_api::{InfraConfig, TenantCluster};
use serde_json::Value;

use super::kinds;
use super::stream::InputObject;
use berth_api::Problem;
use berth_kubevirt_render::machines::{
    MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND, MachineDeployment, RenderContext,
};
use berth_views::deserialize_object;

/// MachineDeployments to render, and the objects that their rendering reads.
#[derive(Debug, Default)]
pub struct RenderInput {
    /// MachineDeployments to render, in input order.
    pub deployments: Vec<MachineDeployment>,
    /// Objects that the rendering of MachineDeployments reads.
    pub render_context: RenderContext,
    /// Services, which the migration of load balancers reads.
    pub services: Vec<InputObject>,
    /// VirtualMachines, which the migration of load balancers reads.
    pub machines: Vec<InputObject>,
    pub problems: Vec<Problem>,
}

impl RenderInput {
    /// Sorts objects by kind. Objects of kinds that the rendering does not read are ignored.
    #[must_use]
    pub fn new(objects: Vec<InputObject>, problems: Vec<Problem>) -> Self {
        let mut input = Self { problems, ..Self::default() };
        for InputObject { location, object } in objects {
            if let Err(problem) = input.add(&location, object) {
                input.problems.push(problem);
            }
        }
        input
    }

    fn add(&mut self, location: &str, object: Value) -> Result<(), Problem> {
        kinds::check_kind(location, &object)?;
        let text =
            |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        match (version.split('/').next().unwrap_or_default(), kind.as_str()) {
            (MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND) => {
                self.deployments.push(MachineDeployment::read(location, object)?)
            }
            ("berth.dev", "InfraConfig") => {
                let config: InfraConfig = deserialize_object(&kind, location, &object)?;
                self.render_context.config = config.spec;
            }
            ("berth.dev", "TenantCluster") => {
                let tenant: TenantCluster = deserialize_object(&kind, location, &object)?;
                let name = tenant.metadata.name.clone().unwrap_or_default();
                self.render_context.tenants.insert(name, tenant);
            }
            ("v1", "Service") => {
                self.services.push(InputObject { location: location.to_owned(), object });
            }
            ("kubevirt.io", "VirtualMachine") => {
                self.machines.push(InputObject { location: location.to_owned(), object });
            }
            _ => drop(self.render_context.add(&object)),
        }
        Ok(())
    }
}
