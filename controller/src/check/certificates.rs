//! Check of the certificates of webhooks.

use super::definition::Check;
use super::input::{CaBundle, Input};
use super::read::Unread;
use super::values::{count, join_names};
use berth_runtime::certificate::ExpiryState;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "certificates.webhooks",
    title: "certificates of webhooks",
    explanation: "The API server verifies webhooks, such as those of KubeVirt and CDI, with the certificates in \
        their configurations (caBundle), which are public. If all certificates of a bundle have expired or cannot be \
        read, the API server cannot call the webhook: FAIL if it then refuses VMs, their disks or pods (failurePolicy \
        Fail), otherwise WARN. WARN also if both less than two weeks and less than a tenth of the lifetime of the last \
        certificate remain: operators renew their certificates earlier. Secrets are not read, because they also \
        contain the private keys. Berth itself has no webhook and no serving certificate.",
    run: check_webhooks,
}];

fn check_webhooks(input: &Input) -> Result<Outcome, Unread> {
    let bundles = match &input.ca_bundles {
        Ok(bundles) => bundles,
        Err(error) => return Err(Unread::new("webhook configurations", error)),
    };
    if bundles.is_empty() {
        return Ok(Outcome::skip("no webhook has a caBundle"));
    }
    let is_expired = |bundle: &&CaBundle| match &bundle.validity {
        Ok(validity) => validity.expiry == ExpiryState::Expired,
        Err(_) => true,
    };
    let expires_soon = |bundle: &&CaBundle| {
        bundle.validity.as_ref().is_ok_and(|validity| validity.expiry == ExpiryState::Soon)
    };
    let expired: Vec<&CaBundle> = bundles.iter().filter(is_expired).collect();
    let soon: Vec<&CaBundle> = bundles.iter().filter(expires_soon).collect();
    let names = |bundles: &[&CaBundle]| {
        let names: Vec<&str> = bundles.iter().map(|bundle| bundle.webhook.as_str()).collect();
        join_names(&names)
    };
    let outcome = if expired.iter().any(|bundle| bundle.is_needed_for_vms) {
        Outcome::fail(format!(
            "webhook certificates have expired or cannot be read: {}",
            names(&expired)
        ))
    } else if !expired.is_empty() {
        Outcome::warn(format!(
            "certificates of webhooks that VMs do not need have expired or cannot be read: {}",
            names(&expired)
        ))
    } else if !soon.is_empty() {
        Outcome::warn(format!("webhook certificates expire soon: {}", names(&soon)))
    } else {
        return Ok(Outcome::pass(count(bundles.len(), "bundle"))
            .with_evidence("caBundle", "no certificate expires soon"));
    };
    let outcome = outcome.remedy(
        "restart the operator that renews the certificates (virt-operator, cdi-operator, cert-manager), and read its log",
    );
    Ok(expired.iter().chain(&soon).take(5).fold(outcome, |outcome, bundle| {
        let text = match &bundle.validity {
            Ok(validity) => format!("valid until {}", validity.end),
            Err(error) => error.to_string(),
        };
        outcome.with_evidence(&bundle.webhook, text)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::input::{BundleValidity, InvalidBundle};
    use crate::check::test_helpers::run_check;

    #[test]
    fn expired_bundles_fail() {
        let valid = |expiry| Ok(BundleValidity { end: "2026-11-26T00:00:00Z".to_owned(), expiry });
        let check = |is_needed_for_vms, validities: Vec<Result<BundleValidity, InvalidBundle>>| {
            let bundle =
                |validity| CaBundle { webhook: "virt-api".to_owned(), is_needed_for_vms, validity };
            let ca_bundles = Ok(validities.into_iter().map(bundle).collect());
            run_check("certificates.webhooks", &Input { ca_bundles, ..Input::default() }).status
        };
        let status = |validities| check(true, validities);
        assert_eq!(status(vec![valid(ExpiryState::NotSoon)]), Status::Pass);
        assert_eq!(
            status(vec![valid(ExpiryState::NotSoon), valid(ExpiryState::Soon)]),
            Status::Warn
        );
        assert_eq!(
            status(vec![valid(ExpiryState::Soon), valid(ExpiryState::Expired)]),
            Status::Fail
        );
        assert_eq!(status(vec![Err(InvalidBundle("not PEM".to_owned()))]), Status::Fail);
        assert_eq!(check(false, vec![valid(ExpiryState::Expired)]), Status::Warn);
        assert_eq!(status(Vec::new()), Status::Skip);
    }
}
