//! Checks of CDI, which imports the disks of VMs.

use serde_json::{Value, json};

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::operator::{problem_conditions, with_conditions};
use super::read::Unread;
use super::values::{join_names, name, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cdi.version",
        title: "CDI is installed",
        explanation: "CDI (the Containerized Data Importer) imports the disks (DataVolumes) of machines: FAIL \
            without CDI, because machines then get no disks. WARN if the condition Available of the CDI object is not \
            True, or if its condition Progressing or Degraded is True. No version of CDI is known to fail.",
        run: check_version,
    },
    Check {
        id: "cdi.first-consumer",
        title: "CDI waits for the first consumer",
        explanation: "For a StorageClass with volumeBindingMode WaitForFirstConsumer, CDI must have the feature \
            gate HonorWaitForFirstConsumer. Without it, the pod of the import determines the host of a local volume, \
            and the VM may not fit on that host. SKIP if there is no such StorageClass.",
        run: check_first_consumer,
    },
];

/// Feature gate with which CDI delays an import until the VM's pod is scheduled, for a StorageClass with
/// WaitForFirstConsumer.
const FIRST_CONSUMER_GATE: &str = "HonorWaitForFirstConsumer";

fn check_version(input: &Input) -> Result<Outcome, Unread> {
    let Some(cdi) = input.objects(Kind::Cdi)?.first() else {
        return Ok(Outcome::fail("CDI is not installed: machines get no disks")
            .with_evidence("cdis.cdi.kubevirt.io", "none")
            .remedy(
                "install CDI: https://kubevirt.io/user-guide/storage/containerized_data_importer",
            ));
    };
    let version = text(cdi, "/status/observedVersion");
    let (object, problems) = (format!("CDI {}", name(cdi)), problem_conditions(cdi));
    let outcome = if version.is_empty() || !problems.is_empty() {
        Outcome::warn("CDI is not deployed completely")
            .remedy("kubectl get cdi -o yaml shows the conditions; wait, or resolve the problem that they report")
    } else {
        Outcome::pass(version)
    };
    let outcome = outcome.with_evidence(format!("{object} status.observedVersion"), version);
    Ok(with_conditions(outcome, &object, &problems))
}

fn check_first_consumer(input: &Input) -> Result<Outcome, Unread> {
    let classes = input.objects(Kind::StorageClass)?;
    let waits = |class: &&Value| text(class, "/volumeBindingMode") == "WaitForFirstConsumer";
    let waiting: Vec<&str> = classes.iter().filter(waits).map(name).collect();
    if waiting.is_empty() {
        return Ok(Outcome::skip("no StorageClass waits for the first consumer"));
    }
    let Some(cdi) = input.objects(Kind::Cdi)?.first() else {
        return Ok(Outcome::skip("CDI is not installed, see cdi.version"));
    };
    let gates = texts(cdi, "/spec/config/featureGates");
    let outcome = if gates.contains(&FIRST_CONSUMER_GATE) {
        Outcome::pass("enabled")
    } else {
        // A merge patch replaces the whole list, so it must contain the other feature gates.
        let all: Vec<&str> = gates.iter().copied().chain([FIRST_CONSUMER_GATE]).collect();
        let patch = json!({"spec": {"config": {"featureGates": all}}});
        Outcome::warn("the feature gate is disabled: the pod of an import, not the VM, determines the host of a local volume")
            .remedy(format!("kubectl patch cdi {} --type=merge -p '{patch}'", name(cdi)))
    };
    Ok(outcome
        .with_evidence(format!("CDI {} spec.config.featureGates", name(cdi)), join_names(&gates))
        .with_evidence("StorageClasses with WaitForFirstConsumer", join_names(&waiting)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{input_with, run_check, with_objects};

    #[test]
    fn cdi_must_be_deployed() {
        let status =
            |objects: Value| run_check("cdi.version", &input_with(Kind::Cdi, &objects)).status;
        assert_eq!(status(json!([])), Status::Fail);
        assert_eq!(status(json!([{"metadata": {"name": "cdi"}}])), Status::Warn);
        let deployed = |available: &str| {
            let conditions = json!([{"type": "Available", "status": available}]);
            json!([{"status": {"observedVersion": "v1.61.0", "conditions": conditions}}])
        };
        assert_eq!(status(deployed("True")), Status::Pass);
        assert_eq!(status(deployed("False")), Status::Warn);
        assert_eq!(status(json!([{"status": {"observedVersion": "v1.61.0"}}])), Status::Warn);
    }

    #[test]
    fn gate_is_needed_for_classes_that_wait() {
        let check = |mode: &str, gates: Value| {
            let cdi =
                json!([{"metadata": {"name": "cdi"}, "spec": {"config": {"featureGates": gates}}}]);
            let class = json!([{"metadata": {"name": "local"}, "volumeBindingMode": mode}]);
            let input = with_objects(input_with(Kind::Cdi, &cdi), Kind::StorageClass, &class);
            run_check("cdi.first-consumer", &input)
        };
        let waits = "WaitForFirstConsumer";
        assert_eq!(check(waits, json!([FIRST_CONSUMER_GATE])).status, Status::Pass);
        assert_eq!(check("Immediate", json!([])).status, Status::Skip);
        let outcome = check(waits, json!({"HonorWaitForFirstConsumer": true}));
        assert_eq!(outcome.status, Status::Warn);
        // The remedy's patch retains the other feature gates.
        let outcome = check(waits, json!(["WebhookPvcRendering", 7]));
        let remedy = outcome.remedy.unwrap_or_default();
        let list = r#"["WebhookPvcRendering","HonorWaitForFirstConsumer"]"#;
        let patch = format!(r#"'{{"spec":{{"config":{{"featureGates":{list}}}}}}}'"#);
        assert!(remedy.ends_with(&patch), "{remedy}");
    }
}
