//! Controllers that claim addresses for the machines of one tenant at the same time. Each controller has a separate
//! index of claims, which its watch updates with a delay.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use berth_api::ClaimingMachine;
use berth_controller::tenants::addresses::choose::{AddressChoice, AddressRequest, choose_address};
use berth_controller::tenants::addresses::claims::NetworkClaims;
use berth_controller::tenants::addresses::mac::choose_mac;
use berth_controller::tenants::addresses::pool::ValidPool;
use berth_kubevirt_render::machines::TENANT_INTERFACE;
use k8s_openapi::jiff::SignedDuration;

use super::model_server::{AlreadyExists, ModelServer, WatchLog};
use super::tenant::Tenant;

/// Maximum number of attempts of one reconcile, as in the controller. The next reconcile begins with an updated
/// index.
const MAX_ATTEMPTS: usize = 32;
/// Time after the release of an address during which no machine gets the address.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(300);

#[derive(Debug, Clone, Copy)]
pub(super) struct RaceSize {
    /// Number of machines of the tenant. Each needs one address.
    pub(super) machines: u32,
    /// Number of controllers that share the machines.
    pub(super) controllers: u32,
    /// Number of claims that a controller creates until its watch delivers the claims of the other controllers.
    pub(super) watch_lag: u32,
}

/// Results of a race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RaceCounts {
    /// Number of machines that have an address.
    pub(super) claims: u64,
    /// Number of machines whose address another machine also has.
    pub(super) duplicates: u64,
    /// Number of claims that the server refused to create, because the name existed.
    pub(super) conflicts: u64,
    /// Number of reconciles that ended after the maximum number of attempts.
    pub(super) requeues: u64,
}

impl RaceCounts {
    /// Adds the results of another race.
    pub(super) const fn add(&mut self, other: Self) {
        self.claims += other.claims;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.requeues += other.requeues;
    }
}

/// Lets all controllers claim addresses of a tenant's pool at the same time, and checks that each address has one
/// machine.
pub(super) fn race(
    server: &ModelServer,
    pool: &ValidPool,
    tenant: &Tenant,
    size: RaceSize,
) -> Result<RaceCounts> {
    let (watch, step) = (&WatchLog::default(), usize::try_from(size.controllers)?);
    let results = thread::scope(|scope| {
        let controllers = (0..size.controllers).map(|number| {
            scope.spawn(move || -> Result<_> {
                let mut controller = Controller::new(server, pool, tenant, watch, size.watch_lag);
                for machine in (number..size.machines).step_by(step) {
                    controller.claim_address(tenant.machine(machine))?;
                }
                Ok((controller.claimed, controller.counts))
            })
        });
        // Collects first, so that all threads are started before the first one is joined.
        let controllers: Vec<_> = controllers.collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Result<_>>| {
            handle.join().map_err(|_| anyhow!("a controller panicked"))?
        };
        controllers.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let (mut counts, mut owners) = (RaceCounts::default(), HashMap::new());
    for (claimed, of_controller) in results {
        counts.add(of_controller);
        for (machine, address) in claimed {
            ensure!(pool.allocates(address), "{}: {address} is not in the pool", machine.name);
            let stored = server.get(&tenant.claim_name(address)).context("a claim is lost")?;
            counts.claims += 1;
            let is_duplicate =
                stored.spec.machine != machine || owners.insert(address, machine).is_some();
            counts.duplicates += u64::from(is_duplicate);
        }
    }
    server.drop_objects(watch);
    Ok(counts)
}

/// A controller with its index of the tenant's claims.
struct Controller<'a> {
    server: &'a ModelServer,
    pool: &'a ValidPool,
    tenant: &'a Tenant,
    watch: &'a WatchLog,
    watch_lag: u32,
    index: NetworkClaims,
    /// Number of claims that the watch has delivered.
    delivered: usize,
    /// Number of claims that the controller created since the last delivery of the watch.
    since_delivery: u32,
    claimed: Vec<(ClaimingMachine, IpAddr)>,
    counts: RaceCounts,
}

impl<'a> Controller<'a> {
    fn new(
        server: &'a ModelServer,
        pool: &'a ValidPool,
        tenant: &'a Tenant,
        watch: &'a WatchLog,
        watch_lag: u32,
    ) -> Self {
        Self {
            server,
            pool,
            tenant,
            watch,
            watch_lag,
            index: NetworkClaims::default(),
            delivered: 0,
            since_delivery: 0,
            claimed: Vec::new(),
            counts: RaceCounts::default(),
        }
    }

    /// Claims an address for a machine, with the steps of the controller (`run/machines/addresses.rs`).
    fn claim_address(&mut self, machine: ClaimingMachine) -> Result<()> {
        let mac = choose_mac(&self.tenant.uid, &machine, TENANT_INTERFACE, &self.index);
        let mut refused = BTreeSet::new();
        loop {
            let address = self.choose_address(&machine, &refused)?;
            let claim = self.tenant.claim(address, &machine, mac);
            match self.server.create(claim, self.watch) {
                Ok(claim) => {
                    self.index.insert(claim);
                    self.claimed.push((machine, address));
                    self.since_delivery += 1;
                    if self.since_delivery >= self.watch_lag {
                        self.receive_claims();
                    }
                    return Ok(());
                }
                Err(AlreadyExists) => {
                    self.counts.conflicts += 1;
                    if refused.len() >= MAX_ATTEMPTS {
                        self.counts.requeues += 1;
                        refused.clear();
                        self.receive_claims();
                        continue;
                    }
                    refused.insert(address);
                    // The server has the claim but the index lacks it, so the controller reads the claim.
                    if let Some(existing) = self.server.get(&self.tenant.claim_name(address)) {
                        self.index.insert(existing);
                    }
                }
            }
        }
    }

    fn choose_address(
        &self,
        machine: &ClaimingMachine,
        refused: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr> {
        let request = AddressRequest {
            tenant_uid: &self.tenant.uid,
            machine,
            interface: TENANT_INTERFACE,
            fixed: &[],
            quarantine: QUARANTINE,
        };
        match choose_address(self.pool, &self.index, refused, request)? {
            AddressChoice::Create(address) => Ok(address),
            other => bail!("{}: unexpected choice {other:?}", machine.name),
        }
    }

    /// Adds all claims that the watch has not delivered yet to the index, including the controller's own claims.
    fn receive_claims(&mut self) {
        let claims = self.watch.after(self.delivered);
        self.delivered += claims.len();
        self.since_delivery = 0;
        claims.into_iter().for_each(|claim| self.index.insert(claim));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tenant::new_pools;
    use super::*;

    #[test]
    fn controllers_with_stale_indexes_claim_no_address_twice() {
        let (server, pools) = (ModelServer::default(), new_pools().unwrap());
        let pool = pools.iter().next().unwrap();
        let mut total = RaceCounts::default();
        for (number, watch_lag) in [(0, 1), (1, 50), (2, u32::MAX)] {
            let size = RaceSize { machines: 300, controllers: 4, watch_lag };
            total.add(race(&server, pool, &Tenant::new(number), size).unwrap());
        }
        assert_eq!((total.claims, total.duplicates, server.len()), (900, 0, 900));
    }

    /// Without events of the watch, the controller discovers the claims of another controller only by conflicts.
    #[test]
    fn a_conflict_leads_to_the_next_address() {
        let (server, pools) = (ModelServer::default(), new_pools().unwrap());
        let pool = pools.iter().next().unwrap();
        let (tenant, watch) = (Tenant::new(0), WatchLog::default());
        let mut first = Controller::new(&server, pool, &tenant, &watch, u32::MAX);
        let mut second = Controller::new(&server, pool, &tenant, &watch, u32::MAX);
        for number in 0..40 {
            first.claim_address(tenant.machine(number)).unwrap();
        }
        second.claim_address(tenant.machine(40)).unwrap();
        assert_eq!(second.claimed[0].1, IpAddr::from([10, 0, 0, 42]));
        assert_eq!((second.counts.conflicts, second.counts.requeues), (33, 1));
    }
}
