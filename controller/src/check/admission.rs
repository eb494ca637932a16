//! Check of the admission policy that limits agents to their own Nodes.

use serde_json::Value;

use super::definition::Check;
use super::difference::first_difference;
use super::input::Input;
use super::kind::Kind;
use super::read::Unread;
use super::release::Release;
use super::values::{join_names, name, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "admission.agents",
    title: "agents are limited to their own Nodes",
    explanation: "The ValidatingAdmissionPolicy berth-agent-own-node must exist as in \
        deploy/base/admission-policy.yaml of this release, and a binding must enforce it with the action Deny. WARN \
        otherwise, because the credential of one agent can then change the status of all Nodes. WARN also on \
        Kubernetes before 1.30, which does not have such policies.",
    run: check_agents,
}];

/// Manifest of the ValidatingAdmissionPolicy and its binding.
const MANIFEST: &str = include_str!("../../../deploy/base/admission-policy.yaml");
/// First release of Kubernetes with ValidatingAdmissionPolicies (beta or stable).
const FIRST_WITH_POLICIES: Release = Release(1, 30, 0);
/// Command that installs the policy.
const REMEDY: &str = "kubectl apply -f deploy/base/admission-policy.yaml";

fn check_agents(input: &Input) -> Result<Outcome, Unread> {
    let policies = input.objects(Kind::AdmissionPolicy)?;
    let bindings = input.objects(Kind::AdmissionPolicyBinding)?;
    let manifest: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap_or_default();
    let Some(desired) = manifest.first() else {
        return Ok(Outcome::skip(
            "the manifest in this program contains no ValidatingAdmissionPolicy",
        ));
    };
    let policy_name = name(desired);
    let evidence = format!("ValidatingAdmissionPolicy {policy_name}");
    let message = "the credential of one agent can change the status of all Nodes";
    let Some(policy) = policies.iter().find(|policy| name(policy) == policy_name) else {
        let is_old =
            input.kubernetes_release().is_some_and(|release| release < FIRST_WITH_POLICIES);
        let remedy = if is_old { "upgrade Kubernetes to 1.30 or later" } else { REMEDY };
        return Ok(Outcome::warn(message).with_evidence(evidence, "does not exist").remedy(remedy));
    };
    let of_policy = |binding: &&Value| text(binding, "/spec/policyName") == policy_name;
    if !bindings.iter().filter(of_policy).any(denies_everywhere) {
        let names: Vec<&str> = bindings.iter().filter(of_policy).map(name).collect();
        return Ok(Outcome::warn(message)
            .with_evidence(evidence, "exists")
            .with_evidence("bindings that deny in all namespaces", "none")
            .with_evidence("bindings", join_names(&names))
            .remedy(REMEDY));
    }
    // The second comparison finds exceptions that only the policy in the cluster has. It ignores `matchPolicy`,
    // because the API server sets a default for this field.
    let (desired, actual) = (&desired["spec"], &policy["spec"]);
    let difference = first_difference(desired, actual, &[])
        .or_else(|| first_difference(actual, desired, &["matchPolicy"]));
    Ok(match difference {
        None => Outcome::pass("bound").with_evidence(evidence, "as in this release"),
        Some(path) => Outcome::warn("the policy differs from the policy of this release")
            .with_evidence(evidence, format!("spec.{path} differs"))
            .remedy(REMEDY),
    })
}

/// Returns true if a binding enforces its policy with the action Deny, without exceptions.
fn denies_everywhere(binding: &Value) -> bool {
    // An empty selector, which the API server may set as a default, is no exception.
    let has_exceptions = |field: &str| {
        let value =
            binding.pointer("/spec/matchResources").and_then(|resources| resources.get(field));
        value.and_then(Value::as_object).is_some_and(|selector| !selector.is_empty())
            || value.and_then(Value::as_array).is_some_and(|rules| !rules.is_empty())
    };
    let fields = ["namespaceSelector", "objectSelector", "resourceRules", "excludeResourceRules"];
    texts(binding, "/spec/validationActions").contains(&"Deny")
        && !fields.into_iter().any(has_exceptions)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{input_with, run_check, with_objects};

    /// A function that changes the policy and its binding.
    type Change = fn(&mut Value, &mut Value);

    /// Returns the outcome of the check for the policy and the binding of the manifest, after both were changed.
    fn check(change: impl Fn(&mut Value, &mut Value)) -> Outcome {
        let manifest: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap();
        let [mut policy, mut binding] = <[Value; 2]>::try_from(manifest).unwrap();
        // The API server sets these fields.
        policy["spec"]["matchConstraints"]["matchPolicy"] = "Equivalent".into();
        policy["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
        policy["spec"]["matchConstraints"]["objectSelector"] = json!({});
        change(&mut policy, &mut binding);
        let input = input_with(Kind::AdmissionPolicy, &json!([policy]));
        let input = with_objects(input, Kind::AdmissionPolicyBinding, &json!([binding]));
        run_check("admission.agents", &input)
    }

    #[test]
    fn policy_of_this_release_passes() {
        let outcome = check(|_, _| {});
        assert_eq!(outcome.status, Status::Pass, "{outcome:?}");
    }

    #[test]
    fn weaker_policies_and_bindings_cause_a_warning() {
        let changes: [(Change, &str); 9] = [
            (|policy, _| policy["metadata"]["name"] = "other".into(), "does not exist"),
            (|policy, _| policy["spec"]["validations"][0]["expression"] = "true".into(), "differs"),
            (|policy, _| policy["spec"] = json!([]), "differs"),
            (
                |policy, _| {
                    let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["nodes/status"]});
                    policy["spec"]["matchConstraints"]["excludeResourceRules"] = json!([rule]);
                },
                "matchConstraints.excludeResourceRules differs",
            ),
            (
                |policy, _| {
                    let selector = json!({"matchLabels": {"a": "b"}});
                    policy["spec"]["matchConstraints"]["namespaceSelector"] = selector;
                },
                "matchConstraints.namespaceSelector differs",
            ),
            (
                |policy, _| {
                    let names = json!(["rack1-a"]);
                    policy["spec"]["matchConstraints"]["resourceRules"][0]["resourceNames"] = names;
                },
                "matchConstraints.resourceRules[0].resourceNames differs",
            ),
            (|_, binding| binding["spec"]["validationActions"] = json!(["Audit"]), "none"),
            (|_, binding| binding["spec"]["policyName"] = "other".into(), "none"),
            (
                |_, binding| {
                    let selector = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
                    binding["spec"]["matchResources"] = selector;
                },
                "none",
            ),
        ];
        for (change, evidence) in changes {
            let outcome = check(change);
            assert_eq!(outcome.status, Status::Warn, "{evidence}");
            let found = outcome.evidence.iter().any(|one| one.value.contains(evidence));
            assert!(found, "{evidence}: {outcome:?}");
        }
        let defaults =
            json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}});
        let outcome = check(|_, binding| binding["spec"]["matchResources"] = defaults.clone());
        assert_eq!(outcome.status, Status::Pass, "{outcome:?}");
    }

    #[test]
    fn remedy_depends_on_the_release_of_kubernetes() {
        let remedy = |kubernetes: &str| {
            let kubernetes = Ok(kubernetes.to_owned());
            let input = Input { kubernetes, ..input_with(Kind::Cdi, &json!([])) };
            run_check("admission.agents", &input).remedy.unwrap_or_default()
        };
        assert!(remedy("v1.29.9").contains("upgrade Kubernetes"));
        assert_eq!(remedy("v1.36.2"), REMEDY);
    }
}
