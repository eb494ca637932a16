//! Writes a simulated fleet to files, in the formats that agents and users write.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use berth_api::PageSize;
use serde_json::{Value, json};

use crate::fleet::infra_node;

/// Total size of the files in each format, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FileSizes {
    pub(super) yaml: usize,
    pub(super) json: usize,
}

/// Number of VMs of a tenant. The VMs of a tenant are spread over hosts.
const VMS_PER_TENANT: u32 = 50;
/// Interval of VMs that are larger than any zone: every 500th VM.
const OVERSIZED_VM_INTERVAL: u32 = 500;

/// Writes the same fleet as YAML documents and as JSON lists.
pub(super) fn write_fleet(yaml: &Path, json: &Path, hosts: u32, vms: u32) -> Result<FileSizes> {
    fs::create_dir_all(yaml)?;
    fs::create_dir_all(json)?;
    let mut sizes = FileSizes::default();
    let all = [
        ("hosts", (0..hosts).map(host).collect::<Vec<_>>()),
        ("machines", (0..vms).map(machine).collect()),
    ];
    for (name, objects) in all {
        let mut text = String::new();
        for object in &objects {
            text += "---\n";
            text += &serde_saphyr::to_string(object)?;
        }
        sizes.yaml += write_file(&yaml.join(format!("{name}.yaml")), text.as_bytes())?;
        sizes.json +=
            write_file(&json.join(format!("{name}.json")), &serde_json::to_vec(&objects)?)?;
    }
    Ok(sizes)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<usize> {
    let file = fs::File::create(path).with_context(|| path.display().to_string());
    file?.write_all(bytes).with_context(|| path.display().to_string())?;
    Ok(bytes.len())
}

/// Returns an InfraNode with as many additional fields, which placement ignores, as a real InfraNode has.
fn host(at: u32) -> Value {
    let mut node = infra_node(&format!("rack{}-{at:05}", at / 20), PageSize::GIB_1, &[]);
    let unknown = (0..20).map(|number| {
        json!({
            "path": format!("capabilities.uplinks[{number}].driver"), "reason": "NotFound",
            "message": format!("/sys/class/net/eth{number}/device/driver: does not exist"),
        })
    });
    node["status"]["unknown"] = unknown.collect();
    node
}

fn machine(at: u32) -> Value {
    let cpus = if at % OVERSIZED_VM_INTERVAL == OVERSIZED_VM_INTERVAL - 1 {
        64
    } else {
        [2, 2, 4, 4, 8][at as usize % 5]
    };
    let (tenant, name) = (at / VMS_PER_TENANT, format!("vm-{at}"));
    let is_shared = at.is_multiple_of(10);
    let mut memory = json!({"guest": format!("{cpus}Gi")});
    if !is_shared {
        memory["hugepages"] = json!({"pageSize": "1Gi"});
    }
    let group = format!("md-{}", at % VMS_PER_TENANT / 25);
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": format!("cluster-{tenant}")},
        "spec": {"runStrategy": "Always", "template": {
            "metadata": {"labels": {"group": group}},
            "spec": {
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"group": group}},
                }],
                "domain": {
                    "cpu": {"cores": cpus, "dedicatedCpuPlacement": !is_shared},
                    "memory": memory,
                    "devices": {
                        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                        "interfaces": [{"name": "default", "bridge": {}}],
                    },
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [{"name": "root", "dataVolume": {"name": name}}],
            },
        }},
    })
}
