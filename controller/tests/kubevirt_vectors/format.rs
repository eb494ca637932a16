//! Format of the recorded cases: a machine, the objects of its cluster, and the launcher pod or the error that
//! `KubeVirt` returned.

use std::collections::BTreeMap;

use berth_kubevirt_render::launcher::{
    ClusterObjects, Configuration, Invalid, Launcher, Machine, predict,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// One recorded case: a line of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) release: String,
    config: Value,
    #[serde(default)]
    kubevirt_annotations: Value,
    default_architecture: String,
    instancetype: Option<Value>,
    preference: Option<Value>,
    #[serde(default)]
    objects: Vec<Value>,
    vm: Option<Value>,
    vmi: Option<Value>,
    pub(crate) pod: Option<PodRecord>,
    pub(crate) guest: Option<GuestRecord>,
    pub(crate) error: Option<ErrorRecord>,
}

/// Launcher pod with the fields that the prediction covers. Empty fields are left out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodRecord {
    pub(crate) containers: Vec<ContainerRecord>,
    #[serde(default)]
    pub(crate) init_containers: Vec<ContainerRecord>,
    pub(crate) qos_class: String,
    pub(crate) labels: Value,
    #[serde(default)]
    pub(crate) annotations: Value,
    pub(crate) node_selector: Value,
    #[serde(default)]
    pub(crate) affinity: Value,
    #[serde(default)]
    pub(crate) tolerations: Value,
    #[serde(default)]
    pub(crate) topology_spread_constraints: Value,
    pub(crate) scheduler_name: Option<String>,
    pub(crate) priority_class_name: Option<String>,
    #[serde(default)]
    pub(crate) resource_claims: Vec<ClaimRecord>,
    pub(crate) memory_overhead: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerRecord {
    pub(crate) name: String,
    pub(crate) restart_policy: Option<String>,
    #[serde(default)]
    pub(crate) requests: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) limits: BTreeMap<String, String>,
}

#[derive(Deserialize)]
pub(crate) struct ClaimRecord {
    pub(crate) name: String,
}

/// CPUs and memory of the guest after KubeVirt has applied its defaults.
#[derive(Deserialize)]
pub(crate) struct GuestRecord {
    pub(crate) sockets: u64,
    pub(crate) cores: u64,
    pub(crate) threads: u64,
    /// Guest memory in bytes; signed, because KubeVirt admits negative memory.
    pub(crate) memory: i64,
}

/// The refusal of a machine.
#[derive(Deserialize)]
pub(crate) struct ErrorRecord {
    pub(crate) stage: String,
    pub(crate) causes: Vec<CauseRecord>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CauseRecord {
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Case {
    /// Returns the `KubeVirt` object of the cluster.
    fn kubevirt(&self) -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {
                "namespace": "kubevirt", "name": "kubevirt",
                "annotations": self.kubevirt_annotations,
            },
            "spec": {"configuration": self.config},
            "status": {
                "observedKubeVirtVersion": self.release,
                "defaultArchitecture": self.default_architecture,
            },
        })
    }

    /// Predicts the launcher pod of the recorded machine.
    pub(crate) fn predict(&self) -> Result<Launcher, Invalid> {
        let configuration = Configuration::from_kubevirt(&self.kubevirt())?;
        let mut objects = ClusterObjects::default();
        for object in self.instancetype.iter().chain(&self.preference).chain(&self.objects) {
            let is_known = objects.add(object)?;
            assert!(is_known, "{}: {object}", self.id);
        }
        let object =
            self.vm.as_ref().or(self.vmi.as_ref()).expect("the record should have a machine");
        let machine = Machine::read(object)?
            .expect("the object should be a VirtualMachine or VirtualMachineInstance");
        predict(&machine, &configuration, &objects)
    }
}

/// [`parse_quantity`] returns billionths of a unit.
const PARTS_PER_UNIT: u64 = 1_000_000_000;

/// Parses a Kubernetes quantity to billionths of a unit. This parser shares no code with `berth_api::Quantity`, which
/// the prediction uses.
fn parse_quantity(text: &str) -> i128 {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = i128::from(PARTS_PER_UNIT);
    let scale = match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => unit,
        "k" => unit * 1_000,
        "M" => unit * 1_000_000,
        "G" => unit * 1_000_000_000,
        "T" => unit * 1_000_000_000_000,
        "Ki" => unit << 10,
        "Mi" => unit << 20,
        "Gi" => unit << 30,
        "Ti" => unit << 40,
        exponent => {
            let digits =
                exponent.strip_prefix('e').expect("the rest should be a suffix or an exponent");
            unit * 10_i128.pow(digits.parse().expect("the exponent should be a number"))
        }
    };
    number.parse::<i128>().expect("the number should be whole") * scale
}

/// Returns a quantity as a number of `1/fraction` units, rounded up.
pub(crate) fn amount(text: &str, fraction: u64) -> u64 {
    let step = i128::from(PARTS_PER_UNIT / fraction);
    u64::try_from((parse_quantity(text) + step - 1) / step)
        .expect("the amount should not be negative")
}
