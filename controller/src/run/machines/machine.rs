//! Creates one machine: first the claims of its addresses, then the VirtualMachine, then the Secret with its user data.
//! The VirtualMachine owns the Secret.
//!
//! If the controller stops before it creates the VirtualMachine, the next machine gets the name and the claims. If it
//! stops before it creates the Secret, the next reconcile creates the Secret. A machine without the
//! Secret never becomes ready, so the controller checks the Secrets only of machines that are not ready.

use std::hash::{BuildHasher as _, RandomState};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};

use super::address_plans::AddressPlans;
use super::errors::{
    RequestError, ignore_conflict, none_if_not_found, redact_message, refusal_message, with_request,
};
use super::guest::sample_interfaces;
use super::template::MachineTemplate;
use super::user_data::{UserData, user_data_secret};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::post_params;
use crate::tenants::fault::Fault;
use berth_api::Problem;
use berth_kubevirt_render::machines::reconcile_steps::{
    ExistingVm, machine_name, render_new_machine,
};
use berth_kubevirt_render::machines::user_data;

/// Result of the creation of a machine.
pub(super) enum MachineCreation {
    /// The machine was created.
    Created,
    /// The machine cannot be rendered, or the API server refuses the VirtualMachine.
    Refused(Vec<Problem>),
    /// No address is free for the machine.
    NoAddress(Fault),
}

impl ValidatedDeployment<'_> {
    /// Reads the input of machines, and renders one machine to validate the template and to record the golden images that
    /// the machines need. Returns the problems if the template is invalid; then the machines need those of the last valid
    /// template.
    pub(super) async fn read_template(
        &self,
    ) -> Result<Result<MachineTemplate, Vec<Problem>>, RequestError> {
        let input_version = self.context.images.input_version();
        let template = self.read_new_template().await?;
        match &template {
            Ok(template) => self.record_images(input_version, &template.golden_images),
            Err(_) => self.record_invalid_template(input_version),
        }
        Ok(template)
    }

    async fn read_new_template(
        &self,
    ) -> Result<Result<MachineTemplate, Vec<Problem>>, RequestError> {
        let mut render_context = self.render_context.clone();
        let (tenant, config) = (self.tenant(), &self.render_context.config);
        self.context
            .read_references(&self.deployment, tenant, &self.namespace, &mut render_context)
            .await?;
        self.add_data_volumes(&mut render_context);
        let data =
            self.context.read_user_data(&self.deployment, tenant, &self.namespace, config).await?;
        let fatal_problem = |message: String| {
            vec![
                Problem::new(self.deployment.qualified_name(), "", "", message)
                    .into_fatal("no machine is created"),
            ]
        };
        let data = match data {
            Ok(data) => data,
            Err(error) => return Ok(Err(fatal_problem(error.to_string()))),
        };
        let interfaces = tenant.map(sample_interfaces).unwrap_or_default();
        let options = self.render_options(&machine_name(&self.deployment, 0), &data, &interfaces);
        let rendered =
            match render_new_machine(&self.deployment, &self.owner, &render_context, &options) {
                Ok(rendered) => rendered,
                Err(problems) => return Ok(Err(problems)),
            };
        match user_data::add_ssh_keys(&data.user_data, &rendered.ssh_public_keys) {
            Ok(user) => {
                let data = UserData { user_data: user, ..data };
                let mut notes = rendered.warnings.clone();
                notes.extend(self.configure_guest(&rendered, &data).notes.iter().map(|note| {
                    Problem::new(self.deployment.qualified_name(), "", "", note.to_string())
                }));
                let (golden_images, attached_tenants) =
                    (rendered.golden_images, rendered.attached_tenants);
                Ok(Ok(MachineTemplate {
                    render_context,
                    data,
                    golden_images,
                    attached_tenants,
                    notes,
                }))
            }
            Err(error) => Ok(Err(fatal_problem(format!("its user data {error}")))),
        }
    }

    /// Returns a random name for a new machine.
    pub(super) fn new_machine_name(&self) -> String {
        machine_name(&self.deployment, RandomState::new().hash_one(self.deployment.revision()))
    }

    /// Claims the addresses of a machine, and creates the machine.
    pub(super) async fn create_machine(
        &self,
        template: &MachineTemplate,
        plans: &AddressPlans,
        name: &str,
    ) -> Result<MachineCreation, RequestError> {
        let claimed = match self.claim_addresses(plans, name).await? {
            Ok(claimed) => claimed,
            Err(fault) => return Ok(MachineCreation::NoAddress(fault)),
        };
        let (mut rendered, data) = match self.render_with_guest(template, name, &claimed.interfaces)
        {
            Ok(rendered) => rendered,
            Err(problems) => {
                self.revert_claims(claimed).await?;
                return Ok(MachineCreation::Refused(problems));
            }
        };
        for (annotation, addresses) in &claimed.annotations {
            let annotations = &mut rendered.machine["metadata"]["annotations"];
            annotations[annotation.as_str()] = addresses.as_str().into();
        }
        let request = || format!("create VirtualMachine {}/{name}", self.namespace);
        let body = match serde_json::from_value(rendered.machine) {
            Ok(body) => body,
            Err(error) => return with_request(request, Err(kube::Error::SerdeError(error))),
        };
        let created = self.machines_api().create(&post_params(), &body).await;
        // The API server quotes the object in its error message, so the message is removed if the object has values
        // from Secrets.
        let created = if rendered.has_secrets { created.map_err(redact_message) } else { created };
        if let Some(reason) = refusal_message(&created) {
            let qualified_name = self.deployment.qualified_name();
            let message = format!(
                "the API server refuses VirtualMachine {}/{name}: {reason}",
                self.namespace
            );
            let problem = Problem::new(qualified_name, "", "", message);
            self.revert_claims(claimed).await?;
            return Ok(MachineCreation::Refused(vec![problem.into_fatal("no machine is created")]));
        }
        let Some(created) = with_request(request, ignore_conflict(created))? else {
            return Ok(MachineCreation::Created);
        };
        tracing::info!(namespace = %self.namespace, machine = %name, "created VirtualMachine");
        self.create_secret(name, &created.uid().unwrap_or_default(), &data)
            .await
            .map(|()| MachineCreation::Created)
    }

    /// Creates the Secret with the user data of a machine. `uid` is the UID of the VirtualMachine.
    async fn create_secret(
        &self,
        machine: &str,
        uid: &str,
        data: &UserData,
    ) -> Result<(), RequestError> {
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.namespace);
        let request = || format!("create Secret {}/userdata-{machine}", self.namespace);
        let body =
            match serde_json::from_value(user_data_secret(machine, &self.namespace, uid, data)) {
                Ok(body) => body,
                Err(error) => return with_request(request, Err(kube::Error::SerdeError(error))),
            };
        with_request(
            request,
            ignore_conflict(api.create(&post_params(), &body).await.map_err(redact_message)),
        )?;
        self.context.with_state(self.object, |memory| {
            memory.machines_with_secret.insert(machine.to_owned())
        });
        Ok(())
    }

    /// Creates the missing Secrets of machines. A Secret is missing if the controller was stopped after it had
    /// created the VirtualMachine.
    pub(super) async fn ensure_user_data(&self) -> Result<Vec<Problem>, RequestError> {
        let machines_with_secret = self.context.with_state(self.object, |memory| {
            memory.machines_with_secret.retain(|name| self.vms.iter().any(|vm| vm.name == *name));
            memory.machines_with_secret.clone()
        });
        let lacks_user_data = |vm: &&ExistingVm| {
            vm.is_owned_by(&self.owner)
                && vm.is_created_by(&self.deployment)
                && !vm.is_deleting
                && !vm.has_failed
                && vm.ready_since.is_none()
                && !machines_with_secret.contains(&vm.name)
        };
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.namespace);
        let (mut template, mut problems) = (None, Vec::new());
        for vm in self.vms.iter().filter(lacks_user_data) {
            let secret = format!("userdata-{}", vm.name);
            let request = || format!("get Secret {}/{secret}", self.namespace);
            if with_request(request, none_if_not_found(api.get_metadata(&secret).await))?.is_some()
            {
                self.context.with_state(self.object, |memory| {
                    memory.machines_with_secret.insert(vm.name.clone())
                });
                continue;
            }
            if template.is_none() {
                match self.read_template().await? {
                    Ok(valid) => template = Some(valid),
                    Err(problems) => return Ok(problems),
                }
            }
            let Some(template) = &template else { continue };
            // KubeVirt starts a VM whose Secret has user data but lacks the network data. The guest would never
            // configure its addresses, so no such Secret is created.
            let interfaces = match self.claimed_interfaces(vm) {
                Ok(interfaces) => interfaces,
                Err(reason) => {
                    let (name, namespace) = (&vm.name, &self.namespace);
                    let message = format!(
                        "machine {namespace}/{name} does not start, because its user data cannot be created: {reason}; \
                         correct the TenantCluster's spec.network, or delete VirtualMachine {namespace}/{name}"
                    );
                    let qualified_name = self.deployment.qualified_name();
                    problems.push(Problem::new(qualified_name, "", "", message));
                    continue;
                }
            };
            match self.render_with_guest(template, &vm.name, &interfaces) {
                Ok((_, data)) => self.create_secret(&vm.name, &vm.uid, &data).await?,
                Err(problems) => return Ok(problems),
            }
        }
        Ok(problems)
    }
}
