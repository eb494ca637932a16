//! Converts the resource quantities in a pod's manifest to the units in which the kubelet counts resources.

use berth_api::{PageSize, ParsePageSizeError, Quantity};

use super::spec::{Amounts, amount};
use berth_kubelet_admission::pod::{Container, Resources};

/// Name of the resource for bytes of a node's disk. They are counted separately from other resources, because they
/// belong to no NUMA zone.
pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Error about an invalid quantity of a resource.
#[derive(Debug, thiserror::Error)]
#[error("quantity of {field} is invalid")]
pub(super) struct AmountError {
    /// Name or path of the resource, such as `cpu` or `limits.cpu`.
    pub(super) field: String,
    #[source]
    pub(super) problem: AmountProblem,
}

/// Reason why a quantity is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum AmountProblem {
    #[error("`{0}` is negative or too large")]
    OutOfRange(Quantity),
    #[error(transparent)]
    PageSize(ParsePageSizeError),
    #[error("`{0}` is not a whole number of devices")]
    FractionOfDevice(Quantity),
    #[error("a container cannot request a resource with this name")]
    UnknownResource,
    #[error("container `{container}` requests {request}, but its limit is {limit}")]
    RequestDiffersFromLimit { container: String, request: Quantity, limit: Quantity },
    #[error(
        "container `{container}` has no limit; this resource requires a limit equal to the request"
    )]
    NoLimit { container: String },
}

impl AmountError {
    /// Returns the same error with `parent`, such as `limits`, in front of the field's path.
    fn with_parent_field(self, parent: &str) -> Self {
        Self { field: format!("{parent}.{}", self.field), ..self }
    }
}

/// Converts quantities by resource name to thousandths of a CPU, bytes and numbers of devices. The second returned
/// value is the amount of ephemeral storage in bytes.
pub(super) fn convert_resources(amounts: &Amounts) -> Result<(Resources, u64), AmountError> {
    let mut all = Resources::default();
    let mut storage = 0;
    for (name, quantity) in amounts {
        let fail = |problem| AmountError { field: name.clone(), problem };
        let to_u64 = |number: i128| {
            u64::try_from(number).map_err(|_| fail(AmountProblem::OutOfRange(*quantity)))
        };
        match name.as_str() {
            "cpu" => all.cpu_millis = to_u64(quantity.millis_rounded_up())?,
            "memory" => all.memory = to_u64(quantity.whole_units_rounded_up())?,
            EPHEMERAL_STORAGE => storage = to_u64(quantity.whole_units_rounded_up())?,
            other => {
                let whole = to_u64(quantity.whole_units_rounded_up())?;
                if let Some(size) = other.strip_prefix("hugepages-") {
                    let size: PageSize =
                        size.parse().map_err(|error| fail(AmountProblem::PageSize(error)))?;
                    all.hugepages.insert(size, whole);
                } else if other.contains('/') {
                    if Quantity::from_units(whole) != *quantity {
                        return Err(fail(AmountProblem::FractionOfDevice(*quantity)));
                    }
                    all.extended.insert(other.to_owned(), whole);
                } else {
                    return Err(fail(AmountProblem::UnknownResource));
                }
            }
        }
    }
    all.hugepages.retain(|_, bytes| *bytes != 0);
    all.extended.retain(|_, count| *count != 0);
    Ok((all, storage))
}

/// Returns false for huge pages and devices, whose request and limit must be equal (`ValidateResourceRequirements`).
fn is_overcommittable(resource: &str) -> bool {
    !resource.contains('/') && !resource.starts_with("hugepages-")
}

/// Converts the requests and limits of a container. As in the API server, a limit without a request is also the request
/// (`SetDefaults_Pod`). The second returned value is the requested ephemeral storage in bytes. An error contains a
/// field path such as `limits.cpu`.
pub(super) fn convert_container(
    name: &str,
    mut requests: Amounts,
    limits: &Amounts,
) -> Result<(Container, u64), AmountError> {
    let container = || name.to_owned();
    for (resource, limit) in limits {
        let request = *requests.entry(resource.clone()).or_insert(*limit);
        if request > *limit || (request != *limit && !is_overcommittable(resource)) {
            let (container, limit) = (container(), *limit);
            let problem = AmountProblem::RequestDiffersFromLimit { container, request, limit };
            return Err(AmountError { field: format!("limits.{resource}"), problem });
        }
    }
    let unlimited = |name: &&String| !limits.contains_key(*name) && !is_overcommittable(name);
    if let Some(resource) = requests.keys().find(unlimited) {
        let problem = AmountProblem::NoLimit { container: container() };
        return Err(AmountError { field: format!("requests.{resource}"), problem });
    }
    let (requests, storage) =
        convert_resources(&requests).map_err(|error| error.with_parent_field("requests"))?;
    let (limits, _) =
        convert_resources(limits).map_err(|error| error.with_parent_field("limits"))?;
    Ok((Container { name: name.to_owned(), is_sidecar: false, requests, limits }, storage))
}

/// Multiplies a number of units by a factor and truncates the product to an integer, as Go's `int64(float64)` does.
pub(super) fn multiply_truncating(units: i128, factor: f64) -> Quantity {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is truncated as in Go; `as` saturates, and quantities are below 2^63"
    )]
    let product = (units as f64 * factor) as u64;
    Quantity::from_units(product)
}

/// Returns the quantity of the resource `name`: the quantity in `given`, which the user has set, or else the quantity
/// in `calculated`. Returns zero if both are absent.
pub(super) fn given_or_calculated(calculated: &Amounts, given: &Amounts, name: &str) -> Quantity {
    if given.contains_key(name) { amount(given, name) } else { amount(calculated, name) }
}
