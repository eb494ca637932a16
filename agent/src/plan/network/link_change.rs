//! Builds the [`Change`] of a link from its parts.

use super::action::LinkAction;
use super::id::LinkChangeId;
use crate::plan::change::{Action, Change, ChangeReason, Disruption};
use crate::plan::id::ChangeId;

/// Message of a change that would correct drift, and is blocked because `spec.enforce` is false.
pub(super) const NOT_ENFORCED_REASON: &str =
    "another program changed the network, and spec.enforce is false, so the drift is not corrected";

pub(super) fn new_link_change(
    id: LinkChangeId,
    was: &str,
    will_be: &str,
    reason: ChangeReason,
    action: LinkAction,
) -> Change {
    Change {
        id: ChangeId::Links(id),
        was: was.to_owned(),
        will_be: will_be.to_owned(),
        why: reason,
        drift: false,
        disruption: Disruption::None,
        effect: String::new(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Links(Box::new(action)),
    }
}
