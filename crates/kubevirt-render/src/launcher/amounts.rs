//! From the amounts of a pod's manifest to what admission counts with.

use berth_api::{PageSize, Quantity};

use super::spec::{Amounts, amount};
use berth_kubelet_admission::pod::{Container, Resources};

/// Bytes of a node's disk; counted apart, as no zone has them.
pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// CPUs in thousandths, bytes, whole devices; and ephemeral storage beside. Or the name that is wrong, and why.
pub(super) fn resources(amounts: &Amounts) -> Result<(Resources, u64), (String, String)> {
    let mut all = Resources::default();
    let mut storage = 0;
    for (name, quantity) in amounts {
        let fail = |message: String| (name.clone(), message);
        let to_u64 = |number: i128| {
            u64::try_from(number).map_err(|_| fail(format!("`{quantity}` is negative or too much")))
        };
        match name.as_str() {
            "cpu" => all.cpu_millis = to_u64(quantity.millis())?,
            "memory" => all.memory = to_u64(quantity.units())?,
            EPHEMERAL_STORAGE => storage = to_u64(quantity.units())?,
            other => {
                let whole = to_u64(quantity.units())?;
                if let Some(size) = other.strip_prefix("hugepages-") {
                    let size: PageSize = size.parse().map_err(|e| fail(format!("{e}")))?;
                    all.hugepages.insert(size, whole);
                } else if other.contains('/') {
                    if Quantity::from_units(whole) != *quantity {
                        return Err(fail(format!("`{quantity}` is not a whole number of devices")));
                    }
                    all.extended.insert(other.to_owned(), whole);
                } else {
                    return Err(fail("is not a resource that a container can ask for".to_owned()));
                }
            }
        }
    }
    all.hugepages.retain(|_, bytes| *bytes != 0);
    all.extended.retain(|_, count| *count != 0);
    Ok((all, storage))
}

/// Huge pages and devices are taken whole: request and limit must be the same (`ValidateResourceRequirements`).
fn is_overcommittable(resource: &str) -> bool {
    !resource.contains('/') && !resource.starts_with("hugepages-")
}

/// What a container asks for, as the API server stores it: a limit without a request is also the request
/// (`SetDefaults_Pod`). Or which of both and which name is wrong (`limits.cpu`), and why.
pub(super) fn container(
    name: &str,
    mut requests: Amounts,
    limits: &Amounts,
) -> Result<(Container, u64), (String, String)> {
    for (resource, limit) in limits {
        let request = *requests.entry(resource.clone()).or_insert(*limit);
        if request > *limit || (request != *limit && !is_overcommittable(resource)) {
            let message = format!(
                "the container `{name}` requests {request} of it, and its limit is {limit}"
            );
            return Err((format!("limits.{resource}"), message));
        }
    }
    let unlimited = |name: &&String| !limits.contains_key(*name) && !is_overcommittable(name);
    if let Some(resource) = requests.keys().find(unlimited) {
        let message = format!("the container `{name}` has no limit for it, and needs the same");
        return Err((format!("requests.{resource}"), message));
    }
    let (requests, storage) =
        resources(&requests).map_err(|(n, e)| (format!("requests.{n}"), e))?;
    let (limits, _) = resources(limits).map_err(|(n, e)| (format!("limits.{n}"), e))?;
    Ok((Container { name: name.to_owned(), is_sidecar: false, requests, limits }, storage))
}

/// A number with decimals times an amount's whole units, cut to whole units as Go's `int64(float64)` does.
pub(super) fn times(units: i128, factor: f64) -> Quantity {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cut on purpose; `as` saturates at the ends, and quantities end at 2^63"
    )]
    let product = (units as f64 * factor) as u64;
    Quantity::from_units(product)
}

/// The sum of a resource over both lists' rules: what the user asks for wins over what was calculated.
pub(super) fn overlaid(calculated: &Amounts, asked: &Amounts, name: &str) -> Quantity {
    if asked.contains_key(name) { amount(asked, name) } else { amount(calculated, name) }
}
