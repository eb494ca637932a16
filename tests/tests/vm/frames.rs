//! Frames between VMs: two VMs of one tenant on two hosts reach each other, and a VM of another tenant reaches neither.

use std::time::Duration;

use crate::guest::ping_result;
use crate::machines::{self, BANK_MACHINES, BANK_VLAN, SHOP_MACHINE, Vm};
use crate::ports::vm_is_in_the_vlan_of_its_tenant;
use crate::testbed::Testbed;
use crate::{placement, print};

/// Duration of a capture of frames on an uplink.
const CAPTURE_SECONDS: u64 = 30;

pub(crate) fn only_vms_of_one_tenant_exchange_frames(bed: &mut Testbed) {
    machines::create_tenant(bed, "bank", Some(BANK_VLAN));
    machines::create_tenant(bed, "shop", None);
    let vms = BANK_MACHINES.map(|machine| {
        let planned = placement::plan_placement(bed, &machine);
        let vm = machines::start(bed, &machine);
        placement::check_placement(bed, &vm, &planned);
        vm
    });
    assert_ne!(vms[0].host, vms[1].host, "a host has room for one of these VMs");
    let other = machines::start(bed, &SHOP_MACHINE);
    let shop = bed.plane.get_json(&["tenantcluster", "shop"]).unwrap();
    let shop_vlan = shop["status"]["vlan"].as_u64().unwrap();
    assert_ne!(shop_vlan, BANK_VLAN);
    for (vm, vlan) in [(&vms[0], BANK_VLAN), (&vms[1], BANK_VLAN), (&other, shop_vlan)] {
        bed.wait_until_guest_is_up(vm);
        vm_is_in_the_vlan_of_its_tenant(bed, vm, vlan);
    }
    for (vm, machine) in vms.iter().zip(&BANK_MACHINES) {
        let console = bed.wait_until_ping_is_answered(vm, machine);
        bed.assert_guest_has_its_lease(vm, &console);
        print(&format!("--- console of {} ---\n{console}", vm.name));
    }
    frames_have_the_vlan_of_their_tenant(bed, &vms, &other, shop_vlan);
    // The subnet is the same in both VLANs, but the address that this VM pings is used only in the VLAN of the bank.
    let console = bed.console(&other);
    print(&format!("--- console of {} ---\n{console}", other.name));
    assert!(console.contains(&ping_result(&SHOP_MACHINE, "lost")), "{console}");
    assert!(!console.contains(&ping_result(&SHOP_MACHINE, "ok")), "{console}");
}

/// Tests the frames on the cable: pings between the VMs of the bank in the VLAN of the bank, and requests of the shop's
/// VM for the address in the VLAN of the shop only.
fn frames_have_the_vlan_of_their_tenant(
    bed: &mut Testbed,
    vms: &[Vm; 2],
    other: &Vm,
    shop_vlan: u64,
) {
    let frames = capture(bed, vms[0].host, &format!("vlan {BANK_VLAN} and icmp"));
    for vm in vms {
        assert!(frames.contains(&vm.mac), "no frame of {}:\n{frames}", vm.name);
    }
    let sender = format!("ether src {}", other.mac);
    let frames = capture(bed, other.host, &format!("{sender} and vlan {shop_vlan} and arp"));
    assert!(frames.contains(&other.mac), "no frame of {}:\n{frames}", other.name);
    for host in 0..bed.hosts.len() {
        let frames = capture(bed, host, &format!("{sender} and vlan {BANK_VLAN}"));
        assert!(
            !frames.contains(&other.mac),
            "{} sends to the VLAN of the bank:\n{frames}",
            other.name
        );
    }
}

/// Returns the first frames on the uplink of a host that match a filter of tcpdump.
fn capture(bed: &mut Testbed, host: usize, filter: &str) -> String {
    let command = format!(
        "timeout {CAPTURE_SECONDS} tcpdump -lnne -c 6 -i eth1 '{filter}' 2>/run/tcpdump.log"
    );
    let limit = Duration::from_secs(2 * CAPTURE_SECONDS);
    let frames = bed.hosts[host].host.run_for(&command, limit).unwrap().output;
    print(&format!("frames of {} that match `{filter}`:\n{frames}", bed.hosts[host].name));
    frames
}
