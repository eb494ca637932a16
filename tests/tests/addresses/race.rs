//! Test that machines that claim addresses at the same time get different addresses, on a real API server. Two
//! simulated controllers claim addresses in each network, although leader election permits only one, and neither
//! watches the claims of the other. All networks have the same addresses.
//!
//! The test covers the choice of addresses and the lock, which is the creation of an AddressClaim. It does not cover
//! the controller's loop of attempts (`controller/src/run/machines/addresses.rs`): [`ClaimingController::claim`] is a
//! simplified copy. The controller itself runs in `machines_get_addresses`, and `lost_races.rs` tests its loop.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::{AddressClaim, AddressClaimSpec, ClaimingMachine, TenantNetwork};
use berth_controller::tenants::addresses::choose::{AddressChoice, AddressRequest, choose_address};
use berth_controller::tenants::addresses::claims::NetworkClaims;
use berth_controller::tenants::addresses::mac::choose_mac;
use berth_controller::tenants::addresses::pools::NetworkPools;
use berth_kubevirt_render::machines::TENANT_INTERFACE;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::simulated::{create_client, create_runtime};
use k8s_openapi::jiff::SignedDuration;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;

const NETWORKS: u32 = 20;
/// Number of controllers that claim addresses in each network.
const CONTROLLERS: u32 = 2;
/// Number of machines in each network, in `make test`.
const FEW_MACHINES: u32 = 50;
/// Number of machines in each network, in `make faults-cluster`.
const MANY_MACHINES: u32 = 500;
/// Gateway of each network. The addresses of machines begin after the gateway's address.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Simulated controller with an index of the claims in one network.
struct ClaimingController {
    api: Api<AddressClaim>,
    pools: Arc<NetworkPools>,
    /// Number that names both the network and its tenant.
    network: u32,
    index: NetworkClaims,
}

#[test]
fn machines_that_claim_at_the_same_time_get_different_addresses() {
    let is_large = std::env::var_os("BERTH_FAULTS").is_some();
    let machines = if is_large { MANY_MACHINES } else { FEW_MACHINES };
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&[]).unwrap();
    let network: TenantNetwork = serde_json::from_value(json!({
        "name": "trunk", "ipv4": {"cidr": "10.0.0.0/20", "gateway": GATEWAY},
    }))
    .unwrap();
    let pools = Arc::new(NetworkPools::new(&network, &[]).unwrap().unwrap());
    let runtime = create_runtime().unwrap();
    let (begin, kubeconfig) = (Instant::now(), plane.kubeconfig());
    let (claims, conflicts) = runtime.block_on(async {
        let client = create_client(&kubeconfig).await.unwrap();
        let claimed = tokio::time::timeout(TIME_LIMIT, claim_all(&client, &pools, machines));
        let conflicts = claimed.await.unwrap();
        let api: Api<AddressClaim> = Api::all(client);
        let listed = api.list(&ListParams::default()).await.unwrap();
        (listed.items, conflicts)
    });
    let seconds = begin.elapsed().as_secs();
    eprintln!("{} claims, {conflicts} refused creations, {seconds} s", claims.len());
    assert!(conflicts > 0, "the controllers claimed no address at the same time");
    for number in 0..NETWORKS {
        let name = network_name(number);
        let own: Vec<&AddressClaimSpec> =
            claims.iter().map(|claim| &claim.spec).filter(|one| one.network == name).collect();
        assert_eq!(own.len(), machines as usize, "{name}: each machine has one claim");
        // The lowest addresses are in use, each once: no address is lost by a conflict.
        let first = GATEWAY.to_bits() + 1;
        let expected: BTreeSet<IpAddr> =
            (first..first + machines).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))).collect();
        let addresses: BTreeSet<IpAddr> = own.iter().map(|one| one.address).collect();
        assert_eq!(addresses, expected, "{name}");
        let owners: BTreeSet<&ClaimingMachine> = own.iter().map(|one| &one.machine).collect();
        let all_machines: Vec<ClaimingMachine> =
            (0..machines).map(|one| machine(number, one)).collect();
        assert_eq!(owners, all_machines.iter().collect::<BTreeSet<_>>(), "{name}");
        let macs: BTreeSet<_> = own.iter().map(|one| one.mac).collect();
        assert_eq!(macs.len(), machines as usize, "{name}: each machine has its MAC address");
    }
    assert_eq!(claims.len(), (NETWORKS * machines) as usize);
}

/// Claims an address for each machine of each network, all networks at the same time. Returns the number of creations
/// that the API server refused.
async fn claim_all(client: &Client, pools: &Arc<NetworkPools>, machines: u32) -> u32 {
    let mut tasks = JoinSet::new();
    for network in 0..NETWORKS {
        for first in 0..CONTROLLERS {
            let controller = ClaimingController {
                api: Api::all(client.clone()),
                pools: Arc::clone(pools),
                network,
                index: NetworkClaims::default(),
            };
            let step = CONTROLLERS as usize;
            tasks.spawn(controller.claim_for((first..machines).step_by(step)));
        }
    }
    tasks.join_all().await.into_iter().sum()
}

impl ClaimingController {
    /// Claims an address for each of these machines. Returns the number of refused creations.
    async fn claim_for(mut self, machines: impl Iterator<Item = u32> + Send) -> u32 {
        let mut conflicts = 0;
        for number in machines {
            conflicts += self.claim(&machine(self.network, number)).await;
        }
        conflicts
    }

    /// Claims an address for a machine. This loop is a copy of the controller's loop without its limit of attempts, and
    /// without claims that a machine already has.
    async fn claim(&mut self, machine: &ClaimingMachine) -> u32 {
        let mut refused = BTreeSet::new();
        let mut conflicts = 0;
        loop {
            let claim = self.new_claim(machine, &refused);
            match self.api.create(&PostParams::default(), &claim).await {
                Ok(created) => {
                    self.index.insert(Arc::new(created));
                    return conflicts;
                }
                // The index does not contain the claim of the other controller.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    conflicts += 1;
                    refused.insert(claim.spec.address);
                    let existing = self.api.get(&claim.name_any()).await.unwrap();
                    self.index.insert(Arc::new(existing));
                }
                Err(error) => panic!("create {}: {error}", claim.name_any()),
            }
        }
    }

    /// Returns the claim to the address that the controller chooses.
    fn new_claim(&self, machine: &ClaimingMachine, refused: &BTreeSet<IpAddr>) -> AddressClaim {
        let tenant_uid = format!("11111111-0000-0000-0000-{:012}", self.network);
        let request = AddressRequest {
            tenant_uid: &tenant_uid,
            machine,
            interface: TENANT_INTERFACE,
            fixed: &[],
            quarantine: SignedDuration::from_secs(300),
        };
        let pool = self.pools.iter().next().unwrap();
        let choice = choose_address(pool, &self.index, refused, request).unwrap();
        let AddressChoice::Create(address) = choice else {
            panic!("{}: unexpected choice {choice:?}", machine.name)
        };
        let network = network_name(self.network);
        let mac = choose_mac(&tenant_uid, machine, TENANT_INTERFACE, &self.index);
        let name = AddressClaim::name_for(&network, address);
        let spec = AddressClaimSpec {
            network,
            address,
            tenant: format!("tenant-{}", self.network),
            tenant_uid,
            machine: machine.clone(),
            interface: TENANT_INTERFACE.to_owned(),
            mac,
        };
        AddressClaim::new(&name, spec)
    }
}

fn network_name(number: u32) -> String {
    format!("cluster-tenant-{number}")
}

/// Returns a machine with a name like those that a MachineDeployment creates.
fn machine(network: u32, number: u32) -> ClaimingMachine {
    let name = format!("workers-5d4f8c7b9-{number:05}");
    ClaimingMachine { namespace: network_name(network), name }
}
