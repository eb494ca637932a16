//! Fills the empty fields of a providerSpec from InfraConfig and the TenantCluster, as KKP does from its datacenters,
//! and validates the result.

use berth_api::{EvictionStrategy, Quantity, TenantCluster};
use serde_json::{Value, json};

use super::config_var::ConfigVar;
use super::field_parser::ProblemReporter;
use super::kubeconfig::is_placeholder;
use super::provider::ProviderConfig;
use super::render_context::RenderContext;

const VIRTUAL_MACHINE_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine";

/// Name, CPUs and memory of the only flavor that KKP 2.21 created.
const STANDARD_FLAVOR: (&str, &str, &str) = ("kubermatic-standard", "2", "8Gi");
/// Names of the preferences in `deploy/instancetypes`. Each preference applies to the instance types whose names
/// begin with the preference's name and a hyphen.
pub(super) const PREFERENCE_NAMES: [&str; 3] = ["performance-database", "performance", "density"];
/// Default of InfraConfig's `maxSecondaryDisks`.
const DEFAULT_MAX_SECONDARY_DISKS: u32 = 3;
/// Names of the instance types that exist in the namespace of every tenant.
const STANDARD_INSTANCETYPES: [&str; 3] = ["standard-2", "standard-4", "standard-8"];

/// Fills the empty fields of `provider`, and reports invalid values.
pub(super) fn apply_defaults(
    provider: &mut ProviderConfig,
    tenant: Option<&TenantCluster>,
    context: &RenderContext,
    namespace: &str,
    reporter: &ProblemReporter<'_>,
) {
    if let Some(tenant) = tenant {
        let name = tenant.metadata.name.clone().unwrap_or_default();
        if provider.cluster_name.is_empty() {
            provider.cluster_name = name.into();
        } else if *provider.cluster_name != *name {
            let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.clusterName";
            let message = format!("must be {name}, the tenant of this MachineDeployment");
            reporter.report_error(path, &provider.cluster_name, message);
        }
        if provider.project_id.is_empty() {
            provider.project_id = tenant.spec.project_id.clone().unwrap_or_default().into();
        }
    }
    expand_flavor(provider);
    resolve_instancetype(provider, context, namespace, reporter);
    if let Some(allowed) = tenant.and_then(|tenant| tenant.spec.allowed_flavors.as_deref()) {
        check_flavor(provider, allowed, reporter);
    }
    fill_from_config(provider, context);
    resolve_image(provider, context, reporter);
    validate_provider(provider, context, reporter);
}

/// If the machine has a flavor, uses the cluster instance type with the flavor's name. The flavor `kubermatic-standard`
/// is older than instance types; for this flavor, CPUs and memory are set instead.
fn expand_flavor(provider: &mut ProviderConfig) {
    let (name, cpus, memory) = STANDARD_FLAVOR;
    if &*provider.flavor == name {
        if provider.cpus.is_empty() && provider.vcpus == 0 {
            provider.cpus = cpus.into();
        }
        if provider.memory.is_empty() {
            provider.memory = memory.into();
        }
    } else if !provider.flavor.is_empty() && provider.instancetype.is_none() {
        let kind = "VirtualMachineClusterInstancetype";
        provider.instancetype = Some(json!({"name": &*provider.flavor, "kind": kind}));
        let is_in_series = |series: &&&str| {
            provider.flavor.strip_prefix(**series).is_some_and(|rest| rest.starts_with('-'))
        };
        if let (None, Some(series)) =
            (&provider.preference, PREFERENCE_NAMES.iter().find(is_in_series))
        {
            let kind = "VirtualMachineClusterPreference";
            provider.preference = Some(json!({"name": series, "kind": kind}));
        }
    }
}

/// Determines whether the machine's instance type is a VirtualMachineInstancetype or a
/// VirtualMachineClusterInstancetype. As in machine-controller, an instance type in the namespace takes precedence over
/// a cluster instance type, even if the providerSpec sets another kind.
fn resolve_instancetype(
    provider: &mut ProviderConfig,
    context: &RenderContext,
    namespace: &str,
    reporter: &ProblemReporter<'_>,
) {
    let Some(matcher) = provider.instancetype.as_mut() else { return };
    let text =
        |field: &str| matcher.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, given_kind) = (text("name"), text("kind"));
    let exists =
        |namespace: &str| context.instancetypes.contains_key(&(namespace.to_owned(), name.clone()));
    let path = format!("{VIRTUAL_MACHINE_PATH}.instancetype.name");
    let kind = if exists(namespace) {
        "VirtualMachineInstancetype"
    } else if exists("") {
        "VirtualMachineClusterInstancetype"
    } else if context.is_exhaustive {
        let message = format!("is not an instance type of namespace {namespace} or of the cluster");
        return reporter.report_error(&path, &provider.instancetype_name(&name), message);
    } else if given_kind.eq_ignore_ascii_case("VirtualMachineInstancetype")
        || (given_kind.is_empty() && STANDARD_INSTANCETYPES.contains(&name.as_str()))
    {
        "VirtualMachineInstancetype"
    } else {
        "VirtualMachineClusterInstancetype"
    };
    if name.is_empty() && matcher.get("inferFromVolume").is_none() {
        return reporter.report_error(&path, "", "is missing");
    }
    matcher["kind"] = kind.into();
}

/// Reports an instance type that is not in `allowedFlavors` of the tenant, and a missing one. Also reports the name of a
/// revision: KubeVirt would use this older version of the instance type, which may have other sizes.
fn check_flavor(provider: &ProviderConfig, allowed: &[String], reporter: &ProblemReporter<'_>) {
    let text = |field: &str| {
        let matcher = provider.instancetype.as_ref();
        matcher.and_then(|one| one.get(field)).and_then(Value::as_str).unwrap_or_default()
    };
    let path = format!("{VIRTUAL_MACHINE_PATH}.instancetype");
    let name = text("name");
    if !allowed.iter().any(|one| one == name) {
        let message =
            format!("is not in allowedFlavors of the tenant: use one of {}", allowed.join(", "));
        let name = provider.instancetype_name(name);
        reporter.report_error(&format!("{path}.name"), &name, message);
    } else if !text("revisionName").is_empty() {
        let message = "is not permitted for a tenant with allowedFlavors: remove it";
        reporter.report_error(&format!("{path}.revisionName"), text("revisionName"), message);
    }
}

fn fill_from_config(provider: &mut ProviderConfig, context: &RenderContext) {
    let config = &context.config;
    if provider.dns_policy.is_none() {
        provider.dns_policy = config.dns_policy.map(berth_api::DnsPolicy::as_str);
    }
    if provider.dns_config.is_none() {
        provider.dns_config =
            config.dns_config.as_ref().and_then(|config| serde_json::to_value(config).ok());
    }
    if provider.eviction_strategy.is_none() {
        provider.eviction_strategy = config.vm_eviction_strategy.map(EvictionStrategy::as_str);
    }
    if let Some(sizes) = &config.node_defaults {
        let text = |amount: Option<Quantity>| {
            amount.map(|amount| ConfigVar::from(amount.to_string())).unwrap_or_default()
        };
        if provider.instancetype.is_none() {
            if provider.cpus.is_empty() && provider.vcpus == 0 {
                provider.cpus = text(sizes.cpus);
            }
            if provider.memory.is_empty() {
                provider.memory = text(sizes.memory);
            }
        }
        if provider.primary_disk.size.is_empty() {
            provider.primary_disk.size = text(sizes.primary_disk_size);
        }
    }
    let mut classes = config.infra_storage_classes.iter().filter(|class| class.is_for_machines());
    let default = classes.find(|class| class.is_default_class == Some(true));
    if let Some(default) = default {
        let classes = provider.secondary_disks.iter_mut().map(|disk| &mut disk.storage_class);
        for class in classes.chain([&mut provider.primary_disk.storage_class]) {
            if class.is_empty() {
                *class = default.name.clone().into();
            }
        }
    }
}

/// If the image is a version of the operating system instead of a URL, replaces it by this version's URL from
/// InfraConfig. If the image is empty and InfraConfig lists exactly one version for the operating system, uses this
/// version.
fn resolve_image(
    provider: &mut ProviderConfig,
    context: &RenderContext,
    reporter: &ProblemReporter<'_>,
) {
    let images = context.config.images.as_ref().and_then(|images| images.http.as_ref());
    let images = images.and_then(|http| http.operating_systems.get(&provider.operating_system));
    let image = &mut provider.primary_disk.image;
    let path = image_path(provider.is_flat);
    match images {
        Some(images) if images.contains_key(&**image) => {
            if let Some(url) = images.get(&**image) {
                *image = url.clone().into();
            }
        }
        Some(images) if image.is_empty() => match images.iter().next() {
            Some((_, url)) if images.len() == 1 => *image = url.clone().into(),
            _ => {
                let versions: Vec<&str> = images.keys().map(String::as_str).collect();
                let message = format!(
                    "is missing: set a URL, the name of a volume, or a version of {} ({})",
                    provider.operating_system,
                    versions.join(", ")
                );
                reporter.report_error(&path, "", message);
            }
        },
        _ if image.is_empty() => reporter.report_error(
            &path,
            "",
            "is missing: set a URL, or the name of a volume to clone",
        ),
        _ => {}
    }
}

fn image_path(is_flat: bool) -> String {
    if is_flat {
        "spec.template.spec.providerSpec.value.cloudProviderSpec.sourceURL".to_owned()
    } else {
        format!("{VIRTUAL_MACHINE_PATH}.template.primaryDisk.osImage")
    }
}

fn validate_provider(
    provider: &ProviderConfig,
    context: &RenderContext,
    reporter: &ProblemReporter<'_>,
) {
    let flat_path = "spec.template.spec.providerSpec.value.cloudProviderSpec";
    let (size, disk) = if provider.is_flat {
        (flat_path.to_owned(), format!("{flat_path}.pvcSize"))
    } else {
        (
            format!("{VIRTUAL_MACHINE_PATH}.template"),
            format!("{VIRTUAL_MACHINE_PATH}.template.primaryDisk.size"),
        )
    };
    let check_quantity = |path: &str, value: &ConfigVar| {
        if value.is_empty() {
            reporter.report_error(path, "", "is missing");
            return;
        }
        match value.parse_quantity() {
            Ok(amount) if amount <= Quantity::ZERO => {
                reporter.report_error(path, value, "must be greater than 0")
            }
            Ok(_) => {}
            Err(error) => reporter.report_error(path, value, error.to_string()),
        }
    };
    if provider.instancetype.is_none() {
        if provider.vcpus == 0 {
            check_quantity(&format!("{size}.cpus"), &provider.cpus);
        } else if !provider.cpus.is_empty() {
            let message = "is ignored because vcpus.cores is set";
            reporter.report_warning(&format!("{size}.cpus"), &provider.cpus, message);
        }
        check_quantity(&format!("{size}.memory"), &provider.memory);
    }
    check_quantity(&disk, &provider.primary_disk.size);
    if provider.dns_policy == Some("None") {
        let servers =
            provider.dns_config.as_ref().and_then(|config| config.get("nameservers")?.as_array());
        if servers.is_none_or(Vec::is_empty) {
            let parent_path = if provider.is_flat { flat_path } else { VIRTUAL_MACHINE_PATH };
            reporter.report_error(
                &format!("{parent_path}.dnsConfig.nameservers"),
                "",
                "is missing: dnsPolicy None requires at least one nameserver",
            );
        }
    }
    let limit = context.config.max_secondary_disks.unwrap_or(DEFAULT_MAX_SECONDARY_DISKS);
    let disks = provider.secondary_disks.len();
    if u32::try_from(disks).is_ok_and(|disks| disks > limit) {
        let message = format!("has {disks} disks, but InfraConfig allows at most {limit}");
        reporter.report_error(
            &format!("{VIRTUAL_MACHINE_PATH}.template.secondaryDisks"),
            "",
            message,
        );
    }
    let class = &provider.primary_disk.storage_class;
    let is_unknown = |class: &ConfigVar| {
        !class.is_empty()
            && context.is_exhaustive
            && !context.storage_classes.contains_key(&**class)
    };
    let disks = provider.secondary_disks.iter().map(|disk| &disk.storage_class);
    for class in disks.chain([class]).filter(|class| is_unknown(class)) {
        reporter.report_error(
            &format!("{size}.primaryDisk.storageClassName"),
            class,
            "StorageClass not found",
        );
    }
    let image = &provider.primary_disk.image;
    if is_placeholder(image) {
        reporter.report_warning(
            &image_path(provider.is_flat),
            image,
            "is a placeholder and is used unchanged",
        );
    }
}
