//! The control plane's kube-scheduler, by default or as `deploy/` configures it.

#![expect(clippy::disallowed_methods, reason = "a file of the repository")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{ControlPlane, Version, free_ports, program};
use crate::repository;

impl ControlPlane {
    /// Starts a scheduler, where `Parts` asked for no controllers: then nobody says that Nodes without a kubelet are
    /// not ready. A configuration takes the place of the default one; it must name the kubeconfig itself.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_scheduler(&mut self, configuration: Option<&Path>) -> Result<()> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let mut scheduler = vec![
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            format!("--secure-port={}", free_ports::<1>()?[0]),
            "--bind-address=127.0.0.1".to_owned(),
        ];
        match configuration {
            Some(file) => scheduler.push(format!("--config={}", file.display())),
            None => {
                scheduler.push(format!("--kubeconfig={kubeconfig}"));
                scheduler.push("--leader-elect=false".to_owned());
            }
        }
        let scheduler = program(&self.assets, self.folder.path(), "kube-scheduler", &scheduler)?;
        self.scheduler = Some(scheduler);
        Ok(())
    }

    /// Takes the scheduler away, as if it had crashed: its Lease lasts as long as it says.
    pub fn stop_scheduler(&mut self) {
        self.scheduler = None;
    }

    /// The configuration of `deploy/`, for an extender at this port; or as it would be without any.
    ///
    /// # Errors
    /// If it cannot be read or written, or is not what the controller expects.
    pub fn scheduler_configuration(&self, extender: Option<u16>) -> Result<PathBuf> {
        let old = self.version < Version(1, 25);
        let component = if old { "scheduler-1.20" } else { "scheduler" };
        let file = repository().join("deploy/components").join(component).join("config.yaml");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut configuration: Value =
            serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        configuration["clientConnection"]["kubeconfig"] = json!(self.kubeconfig());
        if let Some(port) = extender {
            let prefix = &mut configuration["extenders"][0]["urlPrefix"];
            ensure!(
                *prefix == "http://127.0.0.1:10262",
                "{}: extenders[0].urlPrefix: {prefix}, which is not where the controller answers",
                file.display()
            );
            *prefix = json!(format!("http://127.0.0.1:{port}"));
        } else if let Some(fields) = configuration.as_object_mut() {
            fields.remove("extenders");
        }
        if old {
            let [port] = free_ports()?;
            for field in ["healthzBindAddress", "metricsBindAddress"] {
                configuration[field] = json!(format!("127.0.0.1:{port}"));
            }
        }
        let file = self.folder().join("scheduler.json");
        fs::write(&file, configuration.to_string()).with_context(|| file.display().to_string())?;
        Ok(file)
    }
}
