//! The kubelet's configuration, `kubelet.config.k8s.io/v1beta1`.

use std::collections::BTreeMap;

use berth_api::{Bytes, CpuSet, excerpt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::flags::{self, Flags};
use crate::notes::Notes;
use crate::root::Root;

/// Settings of a kubelet that determine from which NUMA zones a VM gets CPUs and memory. A setting that is not
/// configured has the kubelet's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfig {
    /// Policy of the CPU Manager: `none` or `static`.
    pub cpu_manager_policy: String,
    /// Options of the CPU Manager's policy, by name; values are `true` or `false`.
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// Policy of the Topology Manager: `none`, `best-effort`, `restricted`, `single-numa-node`.
    pub topology_manager_policy: String,
    /// Scope of the Topology Manager: `container` or `pod`.
    pub topology_manager_scope: String,
    /// Options of the Topology Manager's policy, by name.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// Policy of the Memory Manager: `None` or `Static`.
    pub memory_manager_policy: String,
    /// Numbers of the CPUs that are reserved for the system (`reservedSystemCPUs`); `None` if the configuration names
    /// no CPUs.
    pub reserved_system_cpus: Option<CpuSet>,
    /// True if an amount of CPU, without CPU numbers, is reserved for the system (`kubeReserved`, `systemReserved`).
    pub reserves_cpu_by_amount: bool,
    /// Bytes reserved for the system (`reservedMemory`), by NUMA zone and by resource name.
    pub reserved_memory: BTreeMap<u32, BTreeMap<String, Bytes>>,
    /// True if the kubelet refuses to start while swap is enabled (`failSwapOn`).
    pub fail_swap_on: bool,
    /// Bytes of memory that are reserved for Kubernetes (`kubeReserved`) and for the system (`systemReserved`), in this
    /// order.
    #[serde(rename = "keptMemory")]
    pub kube_and_system_reserved_memory: [Bytes; 2],
    /// Hard eviction threshold of available memory: an amount such as `100Mi`, or a percentage of the total memory such
    /// as `5%`.
    #[serde(rename = "eviction")]
    pub eviction_threshold: String,
    /// Error messages for fields whose values the kubelet does not accept, by field. Empty for the configuration of a
    /// running kubelet.
    #[serde(skip)]
    pub invalid_fields: BTreeMap<&'static str, String>,
}

/// Fields with a fixed set of values, and the values that the kubelet accepts.
const KNOWN_VALUES: [(&str, &[&str]); 4] = [
    ("cpuManagerPolicy", &["none", "static"]),
    ("topologyManagerPolicy", &["none", "best-effort", "restricted", "single-numa-node"]),
    ("topologyManagerScope", &["container", "pod"]),
    ("memoryManagerPolicy", &["None", "Static"]),
];
/// The kubelet's default for `memory.available` in `evictionHard`.
const DEFAULT_EVICTION_THRESHOLD: &str = "100Mi";

impl Default for KubeletConfig {
    fn default() -> Self {
        Self {
            cpu_manager_policy: "none".to_owned(),
            cpu_manager_policy_options: BTreeMap::new(),
            topology_manager_policy: "none".to_owned(),
            topology_manager_scope: "container".to_owned(),
            topology_manager_policy_options: BTreeMap::new(),
            memory_manager_policy: "None".to_owned(),
            reserved_system_cpus: None,
            reserves_cpu_by_amount: false,
            reserved_memory: BTreeMap::new(),
            fail_swap_on: true,
            kube_and_system_reserved_memory: [Bytes(0); 2],
            eviction_threshold: DEFAULT_EVICTION_THRESHOLD.to_owned(),
            invalid_fields: BTreeMap::new(),
        }
    }
}

impl KubeletConfig {
    /// Reads the settings from the merged configuration files. For a setting of the wrong type, adds a warning and uses
    /// the kubelet's default.
    pub fn from_tree(tree: &Value, source: &str, notes: &mut Notes) -> Self {
        let mut config = Self::default();
        let mut reader = ConfigReader { tree, source, notes };
        reader.read_text("cpuManagerPolicy", &mut config.cpu_manager_policy);
        reader.read_map("cpuManagerPolicyOptions", &mut config.cpu_manager_policy_options);
        reader.read_text("topologyManagerPolicy", &mut config.topology_manager_policy);
        reader.read_text("topologyManagerScope", &mut config.topology_manager_scope);
        reader
            .read_map("topologyManagerPolicyOptions", &mut config.topology_manager_policy_options);
        reader.read_text("memoryManagerPolicy", &mut config.memory_manager_policy);
        let mut reserved = String::new();
        reader.read_text("reservedSystemCPUs", &mut reserved);
        config.set_reserved_cpus(&reserved);
        let amount = |field: &&str| tree.get(field).and_then(|amounts| amounts.get("cpu"));
        let amounts = ["kubeReserved", "systemReserved"];
        config.reserves_cpu_by_amount =
            amounts.iter().filter_map(amount).any(|amount| is_nonzero_cpu(&amount.to_string()));
        config.reserved_memory = parse_reserved_memory(tree, source, reader.notes);
        let memory_amount = |field: &str| {
            let amount = tree.get(field).and_then(|amounts| amounts.get("memory")).cloned();
            amount.and_then(|amount| serde_json::from_value(amount).ok()).unwrap_or_default()
        };
        config.kube_and_system_reserved_memory = amounts.map(memory_amount);
        // Memory has no threshold if `evictionHard` is set without `memory.available`. The kubelet's default applies
        // only if `evictionHard` is missing or empty, or with `mergeDefaultEvictionSettings`.
        let merges_defaults = tree.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
        if let Some(all) = tree.get("evictionHard").and_then(Value::as_object) {
            match all.get("memory.available") {
                Some(threshold) => {
                    config.eviction_threshold = threshold.as_str().unwrap_or_default().to_owned()
                }
                None if !merges_defaults && !all.is_empty() => {
                    config.eviction_threshold = "0".to_owned()
                }
                None => {}
            }
        }
        config.validate();
        match tree.get("failSwapOn") {
            Some(Value::Bool(fail)) => config.fail_swap_on = *fail,
            None | Some(Value::Null) => {}
            Some(other) => warn_wrong_type(notes, source, "failSwapOn", other),
        }
        config
    }

    /// Applies the kubelet's command-line flags to the configuration. Returns true if a flag has changed the
    /// configuration.
    pub fn apply_flags(&mut self, flags: &Flags, notes: &mut Notes) -> bool {
        let original = self.clone();
        let text = |name: &str, target: &mut String| {
            if let Some(value) = flags.last_value(name) {
                value.clone_into(target);
            }
        };
        text("cpu-manager-policy", &mut self.cpu_manager_policy);
        text("topology-manager-policy", &mut self.topology_manager_policy);
        text("topology-manager-scope", &mut self.topology_manager_scope);
        text("memory-manager-policy", &mut self.memory_manager_policy);
        // Each occurrence of a map flag adds one pair, and all pairs of the flag together replace the map of the
        // configuration file.
        let options = |name: &str, target: &mut BTreeMap<String, String>| {
            let pairs = flags.all_values(name).iter().filter_map(|value| flags::parse_pair(value));
            let pairs: BTreeMap<String, String> =
                pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            if !pairs.is_empty() {
                *target = pairs;
            }
        };
        options("cpu-manager-policy-options", &mut self.cpu_manager_policy_options);
        options("topology-manager-policy-options", &mut self.topology_manager_policy_options);
        let source = "kubelet's command line";
        if let Some(value) = flags.last_value("reserved-cpus") {
            self.set_reserved_cpus(value);
        }
        for (index, flag) in ["kube-reserved", "system-reserved"].into_iter().enumerate() {
            let amounts = flags.all_values(flag).iter().flat_map(|value| value.split(','));
            let amounts: BTreeMap<&str, &str> = amounts.filter_map(flags::parse_pair).collect();
            self.reserves_cpu_by_amount |=
                amounts.get("cpu").is_some_and(|cpu| is_nonzero_cpu(cpu));
            let memory = amounts.get("memory").and_then(|amount| amount.parse().ok());
            self.kube_and_system_reserved_memory[index] =
                memory.unwrap_or(self.kube_and_system_reserved_memory[index]);
        }
        let evictions = flags.all_values("eviction-hard").iter().flat_map(|value| value.split(','));
        let memory = evictions
            .filter_map(|one| one.split_once('<'))
            .rfind(|(n, _)| *n == "memory.available");
        if let Some((_, threshold)) = memory {
            threshold.clone_into(&mut self.eviction_threshold);
        } else if !flags.all_values("eviction-hard").is_empty() {
            "0".clone_into(&mut self.eviction_threshold);
        }
        if !flags.all_values("reserved-memory").is_empty() {
            self.reserved_memory =
                parse_reserved_memory_flags(flags.all_values("reserved-memory"), source, notes);
        }
        if let Some(value) = flags.last_value("fail-swap-on") {
            self.fail_swap_on = value != "false";
        }
        self.validate();
        *self != original
    }

    /// Returns the number of bytes that the Memory Manager requires as the sum of `reservedMemory` over all zones.
    /// Returns `None` if the eviction threshold is invalid, or if it is a percentage and `total`, the memory of the
    /// host, is unknown.
    #[must_use]
    pub fn node_reserved_memory(&self, total: Option<Bytes>) -> Option<Bytes> {
        let eviction = match self.eviction_threshold.strip_suffix('%') {
            // Calculated as in the kubelet's `GetThresholdQuantity`: the percentage has single precision, the product
            // has double precision and is truncated, because the Memory Manager compares exact numbers of bytes.
            Some(percent) => {
                let fraction =
                    percent.parse::<f32>().ok().filter(|p| (0.0..=100.0).contains(p))? / 100.0;
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "calculated as in the kubelet; the product is at most the memory of the host"
                )]
                let bytes = (total?.0 as f64 * f64::from(fraction)) as u64;
                bytes
            }
            None => self.eviction_threshold.parse::<Bytes>().ok()?.0,
        };
        let [kube, system] = self.kube_and_system_reserved_memory;
        kube.0.checked_add(system.0)?.checked_add(eviction).map(Bytes)
    }

    fn set_reserved_cpus(&mut self, list: &str) {
        self.invalid_fields.remove("reservedSystemCPUs");
        self.reserved_system_cpus = None;
        match list.parse::<CpuSet>() {
            _ if list.is_empty() => {}
            Ok(cpus) => self.reserved_system_cpus = Some(cpus),
            Err(error) => {
                _ = self
                    .invalid_fields
                    .insert("reservedSystemCPUs", format!("reservedSystemCPUs: {error}"));
            }
        }
    }

    fn validate(&mut self) {
        let values = [
            &self.cpu_manager_policy,
            &self.topology_manager_policy,
            &self.topology_manager_scope,
            &self.memory_manager_policy,
        ];
        for ((field, known), value) in KNOWN_VALUES.into_iter().zip(values) {
            if known.contains(&value.as_str()) {
                self.invalid_fields.remove(field);
            } else {
                let value = excerpt(value);
                let message = format!("{field}: `{value}` must be one of {}", known.join(", "));
                self.invalid_fields.insert(field, message);
            }
        }
    }

    /// Returns true if an option of the CPU Manager's policy is on.
    #[must_use]
    pub fn is_cpu_option_enabled(&self, name: &str) -> bool {
        self.cpu_manager_policy_options.get(name).is_some_and(|value| value == "true")
    }
}

struct ConfigReader<'a> {
    tree: &'a Value,
    source: &'a str,
    notes: &'a mut Notes,
}

impl ConfigReader<'_> {
    fn read_text(&mut self, field: &str, target: &mut String) {
        match self.tree.get(field) {
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::String(text)) => text.clone_into(target),
            // YAML parses `reservedSystemCPUs: 0` without quotes as a number, not as a string.
            Some(Value::Number(number)) => *target = number.to_string(),
            None | Some(Value::Null) => {}
            Some(other) => warn_wrong_type(self.notes, self.source, field, other),
        }
    }

    fn read_map(&mut self, field: &str, target: &mut BTreeMap<String, String>) {
        match self.tree.get(field) {
            Some(Value::Object(pairs)) => {
                let text = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                target.extend(pairs.iter().map(|(name, value)| (name.clone(), text(value))));
            }
            None | Some(Value::Null) => {}
            Some(other) => warn_wrong_type(self.notes, self.source, field, other),
        }
    }
}

fn warn_wrong_type(notes: &mut Notes, source: &str, field: &str, value: &Value) {
    let value = excerpt(&value.to_string());
    notes.warn(
        source,
        format!("{field}: `{value}` has the wrong type; the kubelet's default is assumed"),
    );
}

/// Returns true if an amount of CPU is not zero: `500m` and `1`, but not `0` or `0m`.
fn is_nonzero_cpu(amount: &str) -> bool {
    amount.bytes().any(|b| (b'1'..=b'9').contains(&b))
}

/// Reads the field `reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]`.
fn parse_reserved_memory(
    tree: &Value,
    source: &str,
    notes: &mut Notes,
) -> BTreeMap<u32, BTreeMap<String, Bytes>> {
    let mut reserved: BTreeMap<u32, BTreeMap<String, Bytes>> = BTreeMap::new();
    for entry in tree.get("reservedMemory").and_then(Value::as_array).into_iter().flatten() {
        let zone = entry.get("numaNode").and_then(Value::as_u64).unwrap_or(0);
        let limits = entry.get("limits").and_then(Value::as_object);
        for (resource, amount) in limits.into_iter().flatten() {
            match (u32::try_from(zone), serde_json::from_value(amount.clone())) {
                (Ok(zone), Ok(amount)) => {
                    reserved.entry(zone).or_default().insert(resource.clone(), amount);
                }
                _ => warn_wrong_type(notes, source, "reservedMemory", entry),
            }
        }
    }
    reserved
}

/// Parses values of the flag `--reserved-memory`, such as `0:memory=1Gi,hugepages-1Gi=2Gi`. The flag may be repeated
/// for further zones, or a value may contain several zones, separated by `;`.
fn parse_reserved_memory_flags(
    values: &[String],
    source: &str,
    notes: &mut Notes,
) -> BTreeMap<u32, BTreeMap<String, Bytes>> {
    let mut reserved: BTreeMap<u32, BTreeMap<String, Bytes>> = BTreeMap::new();
    for entry in values.iter().flat_map(|value| value.split(';')) {
        let parsed = entry.split_once(':').and_then(|(zone, limits)| {
            let limits: Option<Vec<(String, Bytes)>> = limits
                .split(',')
                .map(|limit| {
                    let (resource, amount) = flags::parse_pair(limit)?;
                    Some((resource.to_owned(), amount.parse().ok()?))
                })
                .collect();
            Some((zone.trim().parse().ok()?, limits?))
        });
        match parsed {
            Some((zone, limits)) => reserved.entry(zone).or_default().extend(limits),
            None => warn_wrong_type(
                notes,
                source,
                "--reserved-memory",
                &Value::String(entry.to_owned()),
            ),
        }
    }
    reserved
}

/// Parses a configuration file as YAML, which includes JSON.
pub fn parse_config(text: &str) -> Result<Value, ParseConfigError> {
    let tree: Value = serde_saphyr::from_str(text).map_err(|error| {
        let first_line = error.to_string().lines().next().unwrap_or_default().to_owned();
        ParseConfigError::InvalidYaml(first_line)
    })?;
    match tree {
        Value::Object(_) => Ok(tree),
        other => Err(ParseConfigError::NotAMap(excerpt(&other.to_string()))),
    }
}

/// Error of parsing a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseConfigError {
    /// The text is not YAML.
    #[error("{0}")]
    InvalidYaml(String),
    /// The top level of the file is not a map.
    #[error("the top level must be a map, not `{0}`")]
    NotAMap(String),
}

/// Returns true if the file is a kubelet configuration. This must be checked because `/etc/kubernetes/kubelet.conf` is
/// the kubelet configuration on OpenShift, but a kubeconfig with kubeadm.
pub fn is_kubelet_configuration(root: &Root, path: &str) -> bool {
    let tree = root.read(path).ok().and_then(|text| parse_config(&text).ok());
    tree.is_some_and(|tree| {
        tree.get("kind").and_then(Value::as_str) == Some("KubeletConfiguration")
    })
}

/// Merges the file `overlay` into `base` as the kubelet merges drop-ins: maps are merged, and all other values are
/// replaced.
pub fn merge_drop_in(base: &mut Value, overlay: Value) {
    match (base, overlay) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                merge_drop_in(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_test_config(text: &str) -> (KubeletConfig, Notes) {
        let mut notes = Notes::default();
        let config = KubeletConfig::from_tree(&parse_config(text).unwrap(), "/config", &mut notes);
        (config, notes)
    }

    #[test]
    fn default_config_equals_kubelet_defaults() {
        let (config, notes) = parse_test_config("kind: KubeletConfiguration");
        assert_eq!(config, KubeletConfig::default());
        assert!(notes.warnings.is_empty());
    }

    #[test]
    fn drop_in_merges_maps_and_replaces_other_values() {
        let mut tree =
            parse_config("cpuManagerPolicyOptions: {a: 'true'}\nreservedSystemCPUs: 0-1").unwrap();
        merge_drop_in(
            &mut tree,
            parse_config("cpuManagerPolicyOptions: {b: 'true'}\nreservedSystemCPUs: 3").unwrap(),
        );
        let config = KubeletConfig::from_tree(&tree, "/config", &mut Notes::default());
        assert!(config.is_cpu_option_enabled("a") && config.is_cpu_option_enabled("b"));
        assert_eq!(config.reserved_system_cpus.unwrap().to_string(), "3");
    }

    #[test]
    fn command_line_overrides_files() {
        let (mut config, mut notes) = parse_test_config(
            "cpuManagerPolicy: none\nreservedSystemCPUs: '9'\n\
             cpuManagerPolicyOptions: {from-the-file: 'true'}",
        );
        let flags = flags::parse_cmdline(
            b"kubelet\0--cpu-manager-policy=static\0--reserved-cpus=0,2\0\
              --cpu-manager-policy-options=full-pcpus-only=true\0\
              --cpu-manager-policy-options=strict-cpu-reservation=true\0\
              --reserved-memory=0:memory=1Gi;1:memory=2Gi\0--system-reserved=cpu=0,memory=1Gi\0",
        );
        assert!(config.apply_flags(&flags, &mut notes));
        assert!(!config.apply_flags(&flags, &mut notes));
        assert_eq!(config.cpu_manager_policy, "static");
        assert!(
            config.is_cpu_option_enabled("full-pcpus-only")
                && config.is_cpu_option_enabled("strict-cpu-reservation")
        );
        assert!(
            !config.is_cpu_option_enabled("from-the-file"),
            "flags replace the map of the file"
        );
        assert!(!config.reserves_cpu_by_amount, "an amount of 0 reserves no CPU");
        assert_eq!(config.reserved_memory[&1]["memory"], Bytes(2 << 30));
        assert_eq!(config.reserved_system_cpus.unwrap().to_string(), "0,2");
    }

    #[test]
    fn setting_with_wrong_type_is_reported_and_ignored() {
        let (config, notes) = parse_test_config(
            "cpuManagerPolicy: [x]\nreservedSystemCPUs: 5-3\ntopologyManagerScope: pod",
        );
        assert_eq!(config.topology_manager_scope, "pod");
        let warnings: Vec<String> = notes.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "/config: cpuManagerPolicy: `[\"x\"]` has the wrong type; the kubelet's default is assumed",
            ]
        );
        assert_eq!(
            config.invalid_fields["reservedSystemCPUs"],
            "reservedSystemCPUs: the range `5-3` ends before it starts"
        );
    }

    #[test]
    fn unknown_value_is_reported_with_known_values() {
        let (config, _) = parse_test_config("cpuManagerPolicy: Static");
        assert_eq!(
            config.invalid_fields["cpuManagerPolicy"],
            "cpuManagerPolicy: `Static` must be one of none, static"
        );
    }

    #[test]
    fn node_reserved_memory_is_computed_as_in_the_kubelet() {
        let reserved_memory_of =
            |text: &str| parse_test_config(text).0.node_reserved_memory(Some(Bytes(1000 << 20)));
        assert_eq!(reserved_memory_of("kind: x"), Some(Bytes(100 << 20)));
        assert_eq!(
            reserved_memory_of(
                "kubeReserved: {memory: 1Gi}\nsystemReserved: {memory: 512Mi}\nevictionHard: {memory.available: 10%}"
            ),
            // The extra byte results from the single-precision value of 0.1, which is slightly more than a tenth.
            Some(Bytes(((1024 + 512 + 100) << 20) + 1))
        );
        assert_eq!(reserved_memory_of("evictionHard: {memory.available: x}"), None);
        assert_eq!(
            reserved_memory_of("evictionHard: {memory.available: 7.5%}"),
            Some(Bytes(78_643_203))
        );
        // `evictionHard` without `memory.available` means that there is no threshold.
        assert_eq!(reserved_memory_of("evictionHard: {nodefs.available: 10%}"), Some(Bytes(0)));
    }

    #[test]
    fn invalid_config_is_an_error() {
        for text in ["", "[1]", "a: b: c", "\u{0}", "&a [*a]", "- - -"] {
            assert!(parse_config(text).is_err(), "{text:?}");
        }
    }
}
