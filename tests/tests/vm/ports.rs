//! Links of a VM: its tap is a port of a bridge in the pod, the other port of this bridge is a link to the host, and
//! the host's end of this link is a port of the tenants' bridge with the tenant's VLAN only.

use serde_json::{Value, json};

use crate::machines::Vm;
use crate::objects::BRIDGE;
use crate::placement::find_process;
use crate::print;
use crate::testbed::{Testbed, text};

/// Tests the links of a VM whose tenant has this VLAN.
pub(crate) fn vm_is_in_the_vlan_of_its_tenant(bed: &mut Testbed, vm: &Vm, vlan: u64) {
    let pod_links =
        read_links(bed, vm, &format!("{}; nsenter -t $pid -n ip -d -j link", find_process(vm)));
    let host_links = read_links(bed, vm, "ip -d -j link");
    let is_kind = |link: &Value, kind: &str| link["linkinfo"]["info_kind"] == kind;
    // Each link from the pod to the host, and the host's end of this link.
    let pairs = pod_links.iter().filter(|link| is_kind(link, "veth")).filter_map(|link| {
        let end = host_links.iter().find(|end| end["ifindex"] == link["link_index"])?;
        Some((link, end))
    });
    let pairs: Vec<(&Value, &Value)> = pairs.filter(|(_, end)| end["master"] == BRIDGE).collect();
    let [(link, end)] = pairs.as_slice() else {
        panic!("{} links to {BRIDGE}: {pod_links:#?}\n{host_links:#?}", pairs.len())
    };
    let taps: Vec<&Value> = pod_links
        .iter()
        .filter(|tap| is_kind(tap, "tun") && tap["master"] == link["master"])
        .collect();
    let [tap] = taps.as_slice() else { panic!("{} taps: {pod_links:#?}", taps.len()) };
    let port = text(&end["ifname"]);
    print(&format!(
        "{}: tap {} and link {} are ports of {} in the pod; its end {port} is a port of {BRIDGE}",
        vm.name, tap["ifname"], link["ifname"], link["master"]
    ));
    let vlans = read_links(bed, vm, &format!("bridge -j vlan show dev {port}"));
    print(&format!("VLANs of {port}: {}", json!(vlans)));
    let [vlans] = vlans.as_slice() else { panic!("VLANs of {port}: {vlans:?}") };
    let vlans = vlans["vlans"].as_array().unwrap();
    let ids: Vec<Option<u64>> = vlans.iter().map(|vlan| vlan["vlan"].as_u64()).collect();
    assert_eq!(ids, [Some(vlan)], "{vlans:?}");
    assert_eq!(vlans[0]["flags"], json!(["PVID", "Egress Untagged"]), "{vlans:?}");
}

/// Runs a command that prints a JSON list on the host of a VM, and returns the items of the list.
fn read_links(bed: &mut Testbed, vm: &Vm, command: &str) -> Vec<Value> {
    let output = bed.hosts[vm.host].host.run_checked(command).unwrap();
    let items = serde_json::from_str(&output);
    items.unwrap_or_else(|error| panic!("{command}: {error}: {output}"))
}
