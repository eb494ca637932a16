//! Labels of the objects that Berth creates.

use std::collections::BTreeMap;

use berth_api::names::{MANAGED_BY_LABEL, TENANT_LABEL};

/// Returns true if the labels of an object show that Berth created it. Berth changes and deletes no other objects.
pub(crate) fn is_created_by_berth(labels: &BTreeMap<String, String>) -> bool {
    labels.get(MANAGED_BY_LABEL.0).is_some_and(|by| by == MANAGED_BY_LABEL.1)
}

/// Returns the labels of an object that Berth creates for a tenant.
pub(crate) fn tenant_labels(tenant: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED_BY_LABEL.0.to_owned(), MANAGED_BY_LABEL.1.to_owned()),
        (TENANT_LABEL.to_owned(), tenant.to_owned()),
    ])
}
