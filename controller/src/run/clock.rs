//! Timestamps of conditions.

use berth_api::Time;
use k8s_openapi::jiff::Timestamp;

/// Returns the current time in whole seconds, for conditions.
pub(super) fn now_in_seconds() -> Time {
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}
