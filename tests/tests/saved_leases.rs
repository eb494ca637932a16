//! Test of the leases that an agent saves on disk, with a real API server and guests with a real DHCP client: the disk
//! is full, the API server is unreachable, and the agent is killed. The agent runs on this machine, in a network
//! namespace and with a small state folder of its own.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the test runs programs, and fails by panicking"
)]

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::running::Running;
use berth_tests::tenant_clusters::is_in_namespace;
use berth_tests::{skip, wait};
use serde_json::{Value, json};

const NODE: &str = "rack1-a";
/// Name of the agent's log.
const LOG: &str = "agent";
const TIMEOUT: Duration = Duration::from_secs(40);

/// Script that creates the folders and the uplink of the agent. The state folder has room for a few files.
const PREPARE_MOUNTS_SCRIPT: &str = "
mount -t sysfs none /sys
mkdir -p /var/lib/berth
mount -t tmpfs -o size=256k none /var/lib/berth
mount -t tmpfs none /run
ip link add up0 type veth peer name peer0
ip link set up0 up
ip link set peer0 up
ip address add 172.16.0.1/24 dev up0
touch /run/mounted
exec sleep infinity
";

/// Script that udhcpc runs for each event: writes the address of a new lease to the file `$LEASE`.
const LEASE_SCRIPT: &str = "#!/bin/sh
[ \"$1\" != bound ] || echo \"$ip\" >\"$LEASE\"
";

/// A guest: a network namespace whose link is a port of the tenant's bridge.
#[derive(Clone, Copy)]
struct Guest {
    name: &'static str,
    mac: &'static str,
    address: &'static str,
}

const FIRST_GUEST: Guest = Guest { name: "first", mac: "02:00:00:00:00:a1", address: "10.1.0.10" };
const SECOND_GUEST: Guest =
    Guest { name: "second", mac: "02:00:00:00:00:a2", address: "10.1.0.11" };

struct Testbed {
    agent: Option<Running>,
    kubeconfig: PathBuf,
    /// Process that holds the mount namespace of the agent open.
    mount_namespace: Running,
    plane: ControlPlane,
}

#[test]
fn leases_are_served_with_a_full_disk_and_without_the_api_server() {
    let test = "leases_are_served_with_a_full_disk_and_without_the_api_server";
    if !is_in_namespace(test) {
        return;
    }
    if Command::new("udhcpc").arg("--version").output().is_err() {
        return skip::skip(test, "needs udhcpc");
    }
    let mut bed = Testbed::start();
    bed.start_agent();
    bed.create_network();
    bed.apply_leases(&[FIRST_GUEST]);
    bed.add_guest(FIRST_GUEST);
    bed.wait_for_lease(FIRST_GUEST);
    bed.wait_until("the leases are saved", "grep -q first /var/lib/berth/leases.json");

    // With a full disk, the agent serves a new lease from memory, and the previous leases remain on disk.
    bed.wait_until(
        "the disk is full",
        "cat /dev/zero 2>/dev/null >>/var/lib/berth/filler || true
         test \"$(stat -f -c %a /var/lib/berth)\" = 0",
    );
    bed.apply_leases(&[FIRST_GUEST, SECOND_GUEST]);
    bed.add_guest(SECOND_GUEST);
    bed.wait_for_lease(SECOND_GUEST);
    bed.wait_for_lease(FIRST_GUEST);
    let failure = "failed to persist the leases";
    let reported = bed.plane.wait_until("the failure is reported", TIMEOUT, |plane| {
        plane.log(LOG).ok()?.contains(failure).then_some(())
    });
    reported.unwrap();
    bed.check("grep -q first /var/lib/berth/leases.json");
    bed.check("! grep -q second /var/lib/berth/leases.json");

    // Without the API server, the agent has all leases. After a restart it has only the leases on disk.
    bed.plane.stop_server();
    bed.wait_for_lease(FIRST_GUEST);
    bed.wait_for_lease(SECOND_GUEST);
    bed.restart_agent();
    bed.wait_for_lease(FIRST_GUEST);
    assert!(
        !bed.request_lease(SECOND_GUEST).status.success(),
        "the lease is neither on disk nor in memory"
    );

    // When the agent reaches the API server again, it replaces the leases in memory and on disk.
    bed.check("rm /var/lib/berth/filler");
    bed.plane.start_server().unwrap();
    bed.wait_for_lease(SECOND_GUEST);
    bed.wait_until("the leases are saved", "grep -q second /var/lib/berth/leases.json");
    bed.plane.stop_server();
    bed.restart_agent();
    bed.wait_for_lease(SECOND_GUEST);
    bed.wait_for_lease(FIRST_GUEST);
}

impl Testbed {
    fn start() -> Self {
        let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
        plane.deploy(&[]).unwrap();
        plane.create_node(NODE).unwrap();
        let token = plane.create_token("berth-agent").unwrap();
        let kubeconfig = plane.write_kubeconfig("berth-agent", &token, false).unwrap();
        let script = plane.folder().join("lease.sh");
        std::fs::write(&script, LEASE_SCRIPT).unwrap();
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let mut mount_namespace = Running::command(Path::new("unshare"), None);
        mount_namespace.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            PREPARE_MOUNTS_SCRIPT,
        ]);
        mount_namespace.stdin(Stdio::null()).stdout(Stdio::null());
        let mount_namespace = Running::spawn(mount_namespace).unwrap();
        let bed = Self { agent: None, kubeconfig, mount_namespace, plane };
        bed.wait_until("the folders are mounted", "test -e /run/mounted");
        bed
    }

    /// Returns the arguments with which `nsenter` runs a program in the mount namespace of the agent.
    fn namespace_arguments(&self) -> [String; 3] {
        let id = self.mount_namespace.process.id().to_string();
        ["--mount".to_owned(), "--target".to_owned(), id]
    }

    fn run(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(self.namespace_arguments()).args(["bash", "-ec", script]);
        command.output().unwrap()
    }

    /// Runs a script that must succeed.
    #[track_caller]
    fn check(&self, script: &str) {
        let output = self.run(script);
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Waits until a script succeeds.
    #[track_caller]
    fn wait_until(&self, what: &str, script: &str) {
        let reached = wait::wait_until(what, TIMEOUT, || {
            let output = self.run(script);
            let shown = format!("{output:?}");
            if output.status.success() { Ok(()) } else { Err(shown.into()) }
        });
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.plane.log_tail(LOG)));
    }

    fn start_agent(&mut self) {
        let log = self.plane.folder().join(format!("{LOG}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut agent = Running::command(Path::new("nsenter"), None);
        agent.args(self.namespace_arguments());
        agent.arg(berth_tests::program("berth-agent"));
        agent.args(["run", "--node-name", NODE, "--interval", "10"]);
        agent.arg(format!("--kubeconfig={}", self.kubeconfig.display()));
        agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(Running::spawn(agent).unwrap());
        self.wait_until("the agent runs", "curl -sf http://127.0.0.1:9477/metrics");
    }

    /// Kills the agent like a crash, and starts it again.
    fn restart_agent(&mut self) {
        self.agent = None;
        self.start_agent();
    }

    /// Requests the tenant's network in the InfraNode, and waits for the bridge of the network.
    fn create_network(&self) {
        let exists = self.plane.wait_until("the InfraNode exists", TIMEOUT, |plane| {
            (!plane.infra_node(NODE).is_null()).then_some(())
        });
        exists.unwrap();
        let vxlan = json!({"localAddress": "172.16.0.1", "peers": ["172.16.0.2"]});
        let spec = json!({
            "networks": [{"name": "tenants", "scenario": "Vxlan", "vxlan": vxlan}],
            "tenantNetworks": [{"name": "cluster-a", "network": "tenants", "vni": 5001}],
        });
        self.plane.set_infra_node_spec(NODE, &spec).unwrap();
        self.wait_until("the bridge exists", "ip link show tn5001");
    }

    /// Writes the HostLeases as the controller does.
    fn apply_leases(&self, guests: &[Guest]) {
        let lease = |guest: &Guest| {
            let machine = format!("cluster-a/{}", guest.name);
            json!({"mac": guest.mac, "machine": machine, "ipv4": guest.address})
        };
        let leases: Vec<Value> = guests.iter().map(lease).collect();
        let network = json!({
            "name": "cluster-a", "vni": 5001, "ipv4": {"prefixLength": 24}, "leases": leases,
        });
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostLeases", "metadata": {"name": NODE},
            "spec": {"networks": [network]},
        });
        self.plane.apply(&object.to_string()).unwrap();
    }

    fn add_guest(&self, guest: Guest) {
        let Guest { name, mac, .. } = guest;
        self.check(&format!(
            "ip netns add {name}
             ip link add port-{name} type veth peer name eth0 address {mac} netns {name}
             ip -n {name} link set eth0 up
             ip link set port-{name} up master tn5001"
        ));
    }

    /// Returns a script that succeeds if a guest gets its address.
    fn lease_request_script(&self, guest: Guest) -> String {
        let Guest { name, address, .. } = guest;
        let script = self.plane.folder().join("lease.sh");
        let lease = self.plane.folder().join(format!("{name}.lease"));
        let (script, lease) = (script.display(), lease.display());
        format!(
            "rm -f {lease}
             LEASE={lease} ip netns exec {name} udhcpc -i eth0 -f -q -n -t 3 -T 1 -s {script}
             grep -qx {address} {lease}"
        )
    }

    fn request_lease(&self, guest: Guest) -> Output {
        self.run(&self.lease_request_script(guest))
    }

    #[track_caller]
    fn wait_for_lease(&self, guest: Guest) {
        self.wait_until(
            &format!("{} has its address", guest.name),
            &self.lease_request_script(guest),
        );
    }
}
