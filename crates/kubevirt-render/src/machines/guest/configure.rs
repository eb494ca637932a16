//! Adds the configuration of a machine's guest to the user data and network data that the tenant set.

use berth_api::is_domain_name;

use super::cloud_config::{MergeError, add_file};
use super::guest_machine::GuestMachine;
use super::ignition::add_files;
use super::keyfile::keyfiles;
use super::machine_env::{self, machine_env};
use super::network_data::network_data;
use super::networkd_unit::networkd_units;
use crate::machines::interface_config::InterfaceConfig;
use crate::machines::storage::is_ignition_system;

/// User data and network data of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestData {
    pub user_data: String,
    /// Network data; `None` if the guest needs no network data.
    pub network_data: Option<String>,
    /// Parts of the configuration that could not be added.
    pub notes: Vec<GuestNote>,
}

/// Reason why a part of the configuration could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuestNote {
    /// The tenant's Secret contains network data.
    #[error(
        "the Secret with the user data has the entry networkdata, so cloud-init does not configure the addresses that \
         Berth allocates: remove the entry, or configure these addresses in networkdata"
    )]
    NetworkDataExists,
    /// The operating system reads neither cloud-config nor network data, and the user data are not an Ignition config.
    #[error(
        "the user data do not configure the addresses of the machines: {0} needs an Ignition config"
    )]
    NotIgnition(String),
    /// The user data have a form to which nothing can be added.
    #[error("{part} cannot be added to the user data of the machines: {error}")]
    NotMerged {
        /// Description of the part that could not be added.
        part: &'static str,
        /// Reason why the user data could not be changed.
        error: MergeError,
    },
    /// The Ignition config already contains a file with this path.
    #[error("the Ignition config contains {0}, so Berth does not write this file")]
    FileExists(String),
    /// A search domain is not a valid domain name.
    #[error("search domain `{0}` is ignored: it must consist of letters, digits, '-', '_' and '.'")]
    InvalidSearchDomain(String),
}

/// Returns the user data and network data of a machine. If no interface has addresses, the data are returned unchanged.
/// `network_data_of_tenant` takes precedence over the network data that Berth generates. User data are never rejected:
/// `notes` lists the parts that could not be added.
#[must_use]
pub fn configure_guest(
    machine: &GuestMachine<'_>,
    user_data: &str,
    network_data_of_tenant: Option<&str>,
) -> GuestData {
    let mut data = GuestData {
        user_data: user_data.to_owned(),
        network_data: network_data_of_tenant.map(str::to_owned),
        notes: Vec::new(),
    };
    if machine.interfaces.iter().all(|interface| interface.addresses.is_empty()) {
        return data;
    }
    let interfaces = valid_interfaces(machine.interfaces, &mut data.notes);
    let machine = &GuestMachine { interfaces: &interfaces, ..*machine };
    let has_tenant_data = data.network_data.is_some();
    if has_tenant_data {
        data.notes.push(GuestNote::NetworkDataExists);
    }
    if user_data.trim_start().starts_with('{') {
        add_ignition_files(machine, has_tenant_data, &mut data);
        return data;
    }
    if is_ignition_system(machine.operating_system) {
        data.notes.push(GuestNote::NotIgnition(machine.operating_system.to_owned()));
        return data;
    }
    if !has_tenant_data {
        data.network_data = Some(network_data(&interfaces, machine.has_pod_network));
    }
    match add_file(user_data, &machine_env(machine)) {
        Ok(merged) => data.user_data = merged,
        Err(error) => {
            data.notes.push(GuestNote::NotMerged { part: machine_env::PATH, error });
        }
    }
    data
}

/// Adds the files to Ignition user data. Ignition does not read network data.
fn add_ignition_files(machine: &GuestMachine<'_>, has_tenant_data: bool, data: &mut GuestData) {
    let mut files = vec![machine_env(machine)];
    if !has_tenant_data {
        files.extend(if machine.operating_system == "flatcar" {
            networkd_units(machine.interfaces)
        } else {
            keyfiles(machine.interfaces, machine.has_pod_network)
        });
    }
    match add_files(&data.user_data, files) {
        Ok((merged, skipped)) => {
            data.user_data = merged;
            data.notes.extend(skipped.into_iter().map(GuestNote::FileExists));
        }
        Err(error) => {
            let part = "addresses and /etc/berth/machine.env";
            data.notes.push(GuestNote::NotMerged { part, error });
        }
    }
}

/// Returns the interfaces without invalid search domains: in a keyfile or a unit, a line break in a domain would begin
/// another field.
fn valid_interfaces(
    interfaces: &[InterfaceConfig],
    notes: &mut Vec<GuestNote>,
) -> Vec<InterfaceConfig> {
    let mut interfaces = interfaces.to_vec();
    for interface in &mut interfaces {
        let is_valid = |domain: &String| is_domain_name(domain);
        let (valid, invalid) =
            std::mem::take(&mut interface.search_domains).into_iter().partition(is_valid);
        interface.search_domains = valid;
        let invalid: Vec<String> = invalid;
        notes.extend(invalid.into_iter().map(GuestNote::InvalidSearchDomain));
    }
    interfaces
}

#[cfg(test)]
#[path = "configure_tests.rs"]
mod tests;
