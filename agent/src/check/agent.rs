//! Checks of the agent's credential for the cluster.

use berth_runtime::certificate::ExpiryState;

use super::definition::Check;
use super::input::Input;
use crate::credential::KUBECONFIG;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "agent.certificate",
    title: "client certificate of the agent",
    explanation: "An agent that runs as a systemd service may authenticate with a client certificate; \
        deploy/agent-kubeconfig.sh issues them for 30 days. Once it has expired, the API server rejects the agent's \
        updates and no pinned VM is placed on the host. WARN if both less than two weeks and less than a third of its \
        lifetime remain, FAIL if it has expired.",
    run: check_client_certificate,
}];

const CERTIFICATE_REMEDY: &str = "deploy/agent-kubeconfig.sh NODE >kubeconfig, and replace /etc/berth/kubeconfig with \
    this file; the running agent reads the new file without a restart";

fn check_client_certificate(input: &Input) -> Outcome {
    let path = format!("/{KUBECONFIG}");
    let certificate = match &input.certificate {
        None => {
            return Outcome::skip(format!("{path} does not exist or has no client certificate"));
        }
        Some(Ok(certificate)) => certificate,
        Some(Err(error)) => {
            return Outcome::fail("the agent's client certificate cannot be read")
                .with_evidence(path, error)
                .remedy(CERTIFICATE_REMEDY);
        }
    };
    let end = format!("valid until {}", certificate.expiration_time);
    let outcome = match certificate.expiry {
        None => return Outcome::skip("a captured tree has no current time"),
        Some(ExpiryState::NotSoon) => return Outcome::pass(end.clone()).with_evidence(path, end),
        Some(ExpiryState::Soon) => Outcome::warn("the agent's client certificate expires soon"),
        Some(ExpiryState::Expired) => Outcome::fail("the agent's client certificate has expired"),
    };
    outcome.with_evidence(path, end).remedy(CERTIFICATE_REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::run_check_with_input;
    use crate::credential::ClientCertificate;
    use berth_host_facts::HostFacts;

    #[test]
    fn certificate_status_depends_on_the_remaining_time() {
        let facts = HostFacts::default();
        let run_check = |certificate| {
            run_check_with_input(
                "agent.certificate",
                &Input { certificate, ..Input::from_facts(&facts) },
            )
        };
        for (expiry, status) in [
            (Some(ExpiryState::NotSoon), Status::Pass),
            (Some(ExpiryState::Soon), Status::Warn),
            (Some(ExpiryState::Expired), Status::Fail),
            (None, Status::Skip),
        ] {
            let end = "2026-01-31T00:00:00Z".to_owned();
            let outcome = run_check(Some(Ok(ClientCertificate { expiration_time: end, expiry })));
            assert_eq!(outcome.status, status, "{expiry:?}");
            let evidence = outcome.evidence.first().map(|evidence| evidence.value.as_str());
            assert_eq!(evidence, expiry.map(|_| "valid until 2026-01-31T00:00:00Z"));
            assert_eq!(outcome.remedy.is_some(), [Status::Warn, Status::Fail].contains(&status));
        }
        assert_eq!(run_check(None).status, Status::Skip);
        assert_eq!(run_check(Some(Err("no PEM".to_owned().into()))).status, Status::Fail);
    }
}
