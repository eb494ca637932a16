//! Rate limit of failed sign-ins, by address of the client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::token_bucket::TokenBucket;

use crate::client_address::limit_key;

/// Number of failed sign-ins of an address without delay.
pub(crate) const MAX_ATTEMPTS: u32 = 10;
/// Time after which an address may attempt another sign-in.
const REFILL_INTERVAL: Duration = Duration::from_secs(6);
/// Maximum number of addresses with a limit of their own. Further addresses share one limit.
const MAX_ADDRESSES: usize = 10_000;

/// Rate limit of sign-ins.
#[derive(Debug)]
pub(crate) struct SignInLimit(Mutex<Buckets>);

#[derive(Debug)]
struct Buckets {
    by_address: HashMap<IpAddr, TokenBucket>,
    cleared_at: Instant,
    shared: TokenBucket,
}

impl SignInLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Buckets {
            by_address: HashMap::new(),
            cleared_at: now,
            shared: TokenBucket::new(MAX_ATTEMPTS, REFILL_INTERVAL),
        }))
    }

    /// Counts an attempt of a client.
    ///
    /// # Errors
    /// Returns the time until the next permitted attempt.
    pub(crate) fn take(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let client = limit_key(client);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Buckets that are not empty are dropped, and so become full early: an address has at most twice the attempts.
        if now.duration_since(buckets.cleared_at) > REFILL_INTERVAL * MAX_ATTEMPTS * 2 {
            buckets.by_address.retain(|_, bucket| bucket.take_token(now).is_err());
            buckets.cleared_at = now;
        }
        let is_full = buckets.by_address.len() >= MAX_ADDRESSES;
        if is_full && !buckets.by_address.contains_key(&client) {
            return buckets.shared.take_token(now);
        }
        let new = || TokenBucket::new(MAX_ATTEMPTS, REFILL_INTERVAL);
        buckets.by_address.entry(client).or_insert_with(new).take_token(now)
    }

    /// Does not count an attempt of a client that has succeeded: behind a load balancer, many users can have one address.
    pub(crate) fn refund(&self, client: IpAddr) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.by_address.get_mut(&limit_key(client)) {
            bucket.return_token();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_address_has_its_own_limit() {
        let now = Instant::now();
        let limit = SignInLimit::new(now);
        let [a, b] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let permitted = |client, at| (0..100).filter(|_| limit.take(client, at).is_ok()).count();
        assert_eq!(permitted(a, now), 10);
        assert_eq!(permitted(b, now), 10);
        assert_eq!(permitted(a, now + REFILL_INTERVAL * 2), 2);
        assert_eq!(permitted(a, now + REFILL_INTERVAL * 1000), 10);
    }

    #[test]
    fn successful_attempts_are_not_counted() {
        let now = Instant::now();
        let limit = SignInLimit::new(now);
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse::<IpAddr>().unwrap());
        for _ in 0..100 {
            limit.take(a, now).unwrap();
            limit.refund(a);
        }
        // Addresses of one network share the limit.
        assert_eq!((0..100).filter(|_| limit.take(a, now).is_ok()).count(), 10);
        assert!(limit.take(b, now).is_err());
        limit.refund("192.0.2.1".parse().unwrap());
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let limit = SignInLimit::new(now);
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        let count = u32::try_from(MAX_ADDRESSES).unwrap();
        let permitted = (0..count + 100).filter(|number| limit.take(address(*number), now).is_ok());
        assert_eq!(permitted.count(), MAX_ADDRESSES + 10);
    }
}
