//! Model of an API server: it refuses a second object with the same name, and delivers claims in the order of their
//! creation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::AddressClaim;
use kube::ResourceExt as _;

/// The API server refuses to create an object whose name exists (status 409).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AlreadyExists;

/// Model of the API server for AddressClaims of all networks. AddressClaims are cluster-scoped, so each name is
/// unique in all networks.
#[derive(Debug, Default)]
pub(super) struct ModelServer {
    /// Objects by name; `None` if only the name of an object is still needed (see [`Self::drop_objects`]).
    objects: Mutex<HashMap<String, Option<Arc<AddressClaim>>>>,
}

impl ModelServer {
    /// Creates an object, and appends it to `watch`, the watch log of its network.
    pub(super) fn create(
        &self,
        mut claim: AddressClaim,
        watch: &WatchLog,
    ) -> Result<Arc<AddressClaim>, AlreadyExists> {
        let mut objects = lock(&self.objects);
        let number = objects.len();
        let Entry::Vacant(place) = objects.entry(claim.name_any()) else {
            return Err(AlreadyExists);
        };
        claim.metadata.uid = Some(format!("00000000-0000-0000-0000-{number:012}"));
        claim.metadata.resource_version = Some(number.to_string());
        let claim = Arc::new(claim);
        place.insert(Some(Arc::clone(&claim)));
        lock(&watch.0).push(Arc::clone(&claim));
        Ok(claim)
    }

    /// Returns the object of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<AddressClaim>> {
        lock(&self.objects).get(name).cloned().flatten()
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        lock(&self.objects).len()
    }

    /// Drops the objects of a network to save memory, but stores their names, so that these are still refused.
    pub(super) fn drop_objects(&self, watch: &WatchLog) {
        let mut objects = lock(&self.objects);
        for claim in lock(&watch.0).iter() {
            objects.insert(claim.name_any(), None);
        }
    }
}

/// All claims of a network in the order of their creation.
#[derive(Debug, Default)]
pub(super) struct WatchLog(Mutex<Vec<Arc<AddressClaim>>>);

impl WatchLog {
    /// Returns all claims except the first `count` claims.
    pub(super) fn after(&self, count: usize) -> Vec<Arc<AddressClaim>> {
        lock(&self.0).get(count..).unwrap_or_default().to_vec()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::tenant::Tenant;
    use super::*;

    #[test]
    fn each_name_is_accepted_once() {
        let (server, watch) = (ModelServer::default(), WatchLog::default());
        let tenant = Tenant::new(7);
        let claim = |machine| {
            let machine = tenant.machine(machine);
            tenant.claim([10, 0, 0, 2].into(), &machine, berth_api::MacAddress([2; 6]))
        };
        let first = server.create(claim(1), &watch).unwrap();
        assert_eq!(server.create(claim(2), &watch), Err(AlreadyExists));
        assert_eq!(watch.after(0), [Arc::clone(&first)]);
        assert!(watch.after(1).is_empty() && watch.after(9).is_empty());
        assert_eq!(server.get(&first.name_any()), Some(first.clone()));
        server.drop_objects(&watch);
        assert_eq!(server.get(&first.name_any()), None);
        assert_eq!(server.create(claim(3), &watch), Err(AlreadyExists));
        assert_eq!(server.len(), 1);
    }
}
