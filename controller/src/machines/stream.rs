//! Objects of a stream, sorted: what is to be rendered, and what is looked up for it.

use berth_api::{InfraConfig, TenantCluster};
use serde_json::Value;

use super::{GROUP, KIND, MachineDeployment, Surroundings};
use crate::fleet::{Found, check_kind, read};
use crate::inventory::Problem;

/// MachineDeployments and their surroundings.
#[derive(Debug, Default)]
pub struct Stream {
    /// What is to be rendered, in the order in which it stands.
    pub deployments: Vec<MachineDeployment>,
    /// What is looked up.
    pub around: Surroundings,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

impl Stream {
    /// Sorts objects by what they are. What has nothing to do with machines is left.
    #[must_use]
    pub fn of(found: Vec<Found>, problems: Vec<Problem>) -> Self {
        let mut stream = Self { problems, ..Self::default() };
        for Found { place, object } in found {
            if let Err(problem) = stream.add(&place, object) {
                stream.problems.push(problem);
            }
        }
        stream
    }

    fn add(&mut self, place: &str, object: Value) -> Result<(), Problem> {
        check_kind(place, &object)?;
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
