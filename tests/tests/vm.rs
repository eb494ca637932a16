//! Tests of real VMs: KubeVirt's virt-handler and virt-launcher with libvirt and QEMU, on emulated hosts with the real
//! kubelet and containerd, Berth's agent, and Berth's controller as the extender of a real kube-scheduler.
//!
//! `KUBEVIRT_ASSETS` names the folder of KubeVirt's programs and images. The guests use KVM of a host whose CPU is
//! emulated. These parts are not real: virt-handler is a process of the host and no pod, the CNI plugin
//! `tests/host/attach-networks.sh` replaces Multus, and a policy of the API server replaces the disks of a VM with a
//! kernel (`tests/tests/vm/objects.rs`).

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests write files, run programs, and fail by panicking"
)]

#[path = "vm/deletion.rs"]
mod deletion;
#[path = "vm/frames.rs"]
mod frames;
#[path = "vm/guest.rs"]
mod guest;
#[path = "vm/host.rs"]
mod host;
#[path = "vm/machines.rs"]
mod machines;
#[path = "vm/objects.rs"]
mod objects;
#[path = "vm/placement.rs"]
mod placement;
#[path = "vm/ports.rs"]
mod ports;
#[path = "vm/testbed.rs"]
mod testbed;

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use machines::{BANK_MACHINES, BANK_VLAN};
use testbed::Testbed;

/// True if QEMU emulates the CPUs of the guests. Set this constant to true only if KVM does not work on the emulated
/// hosts: KubeVirt then does not place the threads of the guest's CPUs.
const USES_EMULATION: bool = false;
/// Lock that prevents parallel tests, because the hosts of one test use all CPUs of this machine.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Test on one host: a VM gets the CPUs and the memory that Berth has planned, and releases them when it is deleted.
#[test]
#[ignore = "needs KUBEVIRT_ASSETS: make test-current"]
fn vm_gets_the_planned_cpus_and_memory() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Testbed::start(&[41]);
    let machine = BANK_MACHINES[0];
    machines::create_tenant(&mut bed, machine.tenant, Some(BANK_VLAN));
    let planned = placement::plan_placement(&bed, &machine);
    let vm = machines::start(&mut bed, &machine);
    let console = bed.wait_until_guest_is_up(&vm);
    print(&format!("--- console of {} ---\n{console}", vm.name));
    bed.assert_guest_has_its_lease(&vm, &console);
    placement::check_placement(&mut bed, &vm, &planned);
    ports::vm_is_in_the_vlan_of_its_tenant(&mut bed, &vm, BANK_VLAN);
    deletion::cpus_are_counted_until_the_kubelet_releases_them(&mut bed, &machine, &vm, &planned);
}

/// Test on two hosts: VMs of one tenant exchange frames, and a VM of another tenant does not reach them.
#[test]
#[ignore = "needs KUBEVIRT_ASSETS: make test-current"]
fn vms_exchange_frames_only_within_their_tenant() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Testbed::start(&[42, 43]);
    frames::only_vms_of_one_tenant_exchange_frames(&mut bed);
}

/// Prints an observation; cargo shows it with `--nocapture`.
fn print(text: &str) {
    writeln!(std::io::stderr(), "{}", text.trim_end()).unwrap_or_default();
}
