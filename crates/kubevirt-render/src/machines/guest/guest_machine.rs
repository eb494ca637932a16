//! Input for the configuration of a machine's guest.

use crate::machines::interface_config::InterfaceConfig;

/// Properties of a machine from which its guest is configured.
#[derive(Clone, Copy, Debug)]
pub struct GuestMachine<'a> {
    /// Name of the TenantCluster; empty if the machine belongs to no tenant.
    pub tenant: &'a str,
    /// Name of the VirtualMachine.
    pub name: &'a str,
    /// Namespace of the VirtualMachine.
    pub namespace: &'a str,
    pub operating_system: &'a str,
    /// Interfaces of the VirtualMachine in networks other than the pod network. An interface without addresses is
    /// configured by DHCP.
    pub interfaces: &'a [InterfaceConfig],
    /// True if the first interface of the VirtualMachine is in the pod network.
    pub has_pod_network: bool,
}
