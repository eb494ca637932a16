//! Conditions with which the operators of KubeVirt and CDI report the state of the components that they install.

use serde_json::Value;

use super::values::{condition, text};
use berth_runtime::check::Outcome;

/// Types of the conditions in the status of a KubeVirt or CDI object, each with true if its status must be `True`. The
/// status of the other conditions must not be `True`.
const CONDITIONS: [(&str, bool); 3] =
    [("Available", true), ("Progressing", false), ("Degraded", false)];

/// Returns the conditions that report a problem, each with its status, reason and message.
///
/// The phase does not report problems: operators set the phase once, after the installation, and it stays the same
/// during upgrades and failures.
pub(super) fn problem_conditions(object: &Value) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    for (kind, must_be_true) in CONDITIONS {
        let found = condition(object, kind);
        let [status, reason, message] =
            ["/status", "/reason", "/message"].map(|field| text(found, field));
        if (status == "True") != must_be_true {
            problems.push((
                kind,
                match status {
                    "" => "absent".to_owned(),
                    _ => format!("{status} {reason}: {message}"),
                },
            ));
        }
    }
    problems
}

/// Adds each condition in `problems` to the evidence of an outcome. `object` is the object that has the conditions, as
/// evidence shows it.
pub(super) fn with_conditions(
    outcome: Outcome,
    object: &str,
    problems: &[(&'static str, String)],
) -> Outcome {
    problems.iter().fold(outcome, |outcome, (kind, text)| {
        outcome.with_evidence(format!("{object} condition {kind}"), text)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_with_a_problem_are_named() {
        let problems =
            |conditions: Value| problem_conditions(&json!({"status": {"conditions": conditions}}));
        let one = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m"});
        assert!(problems(json!([one("Available", "True")])).is_empty());
        let all = json!([
            one("Available", "True"),
            one("Progressing", "False"),
            one("Degraded", "False")
        ]);
        assert!(problems(all).is_empty());
        let upgrade =
            json!([one("Available", "True"), one("Progressing", "True"), one("Degraded", "True")]);
        let expected = ["Progressing", "Degraded"].map(|kind| (kind, "True R: m".to_owned()));
        assert_eq!(problems(upgrade), expected);
        assert_eq!(problems(json!({"Available": "True"})), [("Available", "absent".to_owned())]);
    }
}
