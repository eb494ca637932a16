//! Memory of the tenants that fit their reduced grants.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_api::TenantGrant;
use berth_runtime::call::CALL_TIMEOUT;

/// Time after which a tenant that was not compared again is removed from the memory.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Tenants that fit their reduced grants, by the UID of the request.
#[derive(Default)]
pub(super) struct Reductions(Mutex<BTreeMap<String, Fitting>>);

/// First comparison that has found that everything fits.
struct Fitting {
    generation: i64,
    since: Instant,
}

impl Reductions {
    /// Records a comparison. Returns true if the tenant has fitted long enough that the quota can count the reduced amounts.
    pub(super) fn record(&self, grant: &TenantGrant, fits: bool, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, fitting| now.duration_since(fitting.since) < MAX_AGE);
        let (uid, generation) = (grant.uid.as_str(), grant.generation);
        let known = all.get(uid).filter(|fitting| fits && fitting.generation == generation);
        match known.map(|fitting| now.duration_since(fitting.since) > CALL_TIMEOUT) {
            Some(true) => {
                all.remove(uid);
                true
            }
            Some(false) => false,
            None => {
                all.remove(uid);
                if fits {
                    all.insert(uid.to_owned(), Fitting { generation, since: now });
                }
                false
            }
        }
    }

    /// Returns true if the next comparison may be the last one for a tenant with one of these grants.
    pub(super) fn is_any_fitting(&self, grants: &[TenantGrant]) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants.iter().any(|grant| grant.reduced_amounts.is_some() && all.contains_key(&grant.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_must_fit_for_longer_than_a_call() {
        let reductions = Reductions::default();
        let begin = Instant::now();
        let grant = |generation: i64| TenantGrant {
            uid: "u".to_owned(),
            generation,
            reduced_amounts: Some(berth_api::QuotaAmounts::default()),
            ..TenantGrant::default()
        };
        let record = |generation: i64, fits: bool, seconds: u64| {
            reductions.record(&grant(generation), fits, begin + Duration::from_secs(seconds))
        };
        assert!(!record(1, true, 0));
        assert!(reductions.is_any_fitting(&[grant(1)]));
        assert!(!record(1, true, 20));
        // A comparison that finds more restarts the time, and so does another grant.
        assert!(!record(1, false, 21));
        assert!(!reductions.is_any_fitting(&[grant(1)]));
        assert!(!record(1, true, 22));
        assert!(!record(2, true, 43));
        assert!(!record(2, true, 63));
        assert!(record(2, true, 64));
        assert!(!record(2, true, 65));
    }
}
