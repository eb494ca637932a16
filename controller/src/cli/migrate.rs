//! Output of `berth-controller render --migrate`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::selector_migration::{CLUSTER_NAME_LABEL, Migration, ServiceMigration};

/// Formats a migration for reading: the differences, and the commands that apply them.
pub(super) fn format_migration(migration: &Migration) -> String {
    let Migration { services, machines, .. } = migration;
    if services.is_empty() {
        return "No Service of the input has an old selector (cloud.kubevirt.io/<id>).\n"
            .to_owned();
    }
    let mut lines = Vec::new();
    for service in services {
        let ServiceMigration { namespace, name, before, after, selected } = service;
        lines.push(format!("Service {namespace}/{name}, spec.selector:"));
        let changed = |from: &BTreeMap<String, String>,
                       to: &BTreeMap<String, String>,
                       sign: char| {
            let changed = from.iter().filter(|(key, value)| to.get(*key) != Some(*value));
            changed.map(|(key, value)| format!("  {sign} {key}: \"{value}\"")).collect::<Vec<_>>()
        };
        lines.extend(changed(before, after, '-'));
        lines.extend(changed(after, before, '+'));
        let selected =
            if selected.is_empty() { "none in the input".to_owned() } else { selected.join(", ") };
        lines.push(format!("    new machines that the Service selects: {selected}"));
    }
    for machine in machines {
        let (namespace, name, cluster) = (&machine.namespace, &machine.name, &machine.cluster);
        lines.push(format!("VirtualMachine {namespace}/{name}, spec.template.metadata.labels:"));
        lines.push(format!("  + {CLUSTER_NAME_LABEL}: \"{cluster}\""));
    }
    lines.push(
        "\nCommands, in this order. Machines are not restarted, and keep their old labels:"
            .to_owned(),
    );
    for ServiceMigration { namespace, before, after, .. } in services {
        let old: Vec<String> = before.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let cluster = after.get(CLUSTER_NAME_LABEL).map_or("", String::as_str);
        lines.push(format!(
            "  kubectl label pods,virtualmachineinstances -n {namespace} --overwrite -l {} {CLUSTER_NAME_LABEL}={cluster}",
            old.join(",")
        ));
    }
    for machine in machines {
        let patch = patch_command("virtualmachine", &machine.namespace, &machine.name);
        lines.push(format!("{patch} '{}'", patch_without_identity(&machine.patch())));
    }
    for service in services {
        let patch = patch_command("service", &service.namespace, &service.name);
        lines.push(format!("{patch} '{}'", patch_without_identity(&service.patch())));
    }
    lines.join("\n") + "\n"
}

fn patch_command(kind: &str, namespace: &str, name: &str) -> String {
    format!("  kubectl patch {kind} {name} -n {namespace} --type=merge -p")
}

/// Returns the patch without the fields that identify the object, because `kubectl patch` names the object.
fn patch_without_identity(patch: &Value) -> Value {
    json!({"spec": patch["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector_migration::MachineMigration;

    #[test]
    fn the_plan_has_differences_and_commands() {
        let labels = |all: &[(&str, &str)]| {
            all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let service = ServiceMigration {
            namespace: "cluster-xyz".to_owned(),
            name: "a1".to_owned(),
            before: labels(&[("cloud.kubevirt.io/xyz", "true")]),
            after: labels(&[(CLUSTER_NAME_LABEL, "xyz")]),
            selected: vec!["web-1".to_owned()],
        };
        let machine = MachineMigration {
            namespace: "cluster-xyz".to_owned(),
            name: "old-1".to_owned(),
            cluster: "xyz".to_owned(),
        };
        let migration =
            Migration { services: vec![service], machines: vec![machine], problems: Vec::new() };
        let expected = "\
Service cluster-xyz/a1, spec.selector:
  - cloud.kubevirt.io/xyz: \"true\"
  + cluster.x-k8s.io/cluster-name: \"xyz\"
    new machines that the Service selects: web-1
VirtualMachine cluster-xyz/old-1, spec.template.metadata.labels:
  + cluster.x-k8s.io/cluster-name: \"xyz\"

Commands, in this order. Machines are not restarted, and keep their old labels:
  kubectl label pods,virtualmachineinstances -n cluster-xyz --overwrite -l cloud.kubevirt.io/xyz=true \
cluster.x-k8s.io/cluster-name=xyz
  kubectl patch virtualmachine old-1 -n cluster-xyz --type=merge -p \
'{\"spec\":{\"template\":{\"metadata\":{\"labels\":{\"cluster.x-k8s.io/cluster-name\":\"xyz\"}}}}}'
  kubectl patch service a1 -n cluster-xyz --type=merge -p \
'{\"spec\":{\"selector\":{\"cloud.kubevirt.io/xyz\":null,\"cluster.x-k8s.io/cluster-name\":\"xyz\"}}}'
";
        assert_eq!(format_migration(&migration), expected);
        assert!(format_migration(&Migration::default()).starts_with("No Service of the input"));
    }
}
