//! Check of Kubernetes itself.

use super::definition::Check;
use super::input::Input;
use super::read::Unread;
use super::release::Release;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "kubernetes.version",
    title: "version of Kubernetes",
    explanation: "The manifests in deploy/ need Kubernetes 1.20. Releases 1.20 and 1.36 are tested, the releases between are \
        expected to work (docs/compatibility.md). WARN for other releases.",
    run: check_version,
}];

/// Oldest release that the manifests in `deploy/` support.
const OLDEST_SUPPORTED: Release = Release(1, 20, 0);
/// Newest release in the results of docs/compatibility.md.
const NEWEST_TESTED: Release = Release(1, 36, 0);

fn check_version(input: &Input) -> Result<Outcome, Unread> {
    let version = match &input.kubernetes {
        Ok(version) => version,
        Err(error) => return Err(Unread::new("/version", error)),
    };
    let outcome = match version.parse::<Release>() {
        Err(error) => Outcome::skip(format!("the version of the API server is {error}")),
        Ok(release) if release < OLDEST_SUPPORTED => Outcome::warn(format!("Kubernetes is older than {OLDEST_SUPPORTED}"))
            .remedy("upgrade Kubernetes: older releases are not tested"),
        Ok(release) if release.first_patch() > NEWEST_TESTED => {
            Outcome::warn(format!("Kubernetes is newer than {NEWEST_TESTED}, the newest tested release"))
                .remedy("read docs/compatibility.md of a later release of Berth, or test the cluster before production")
        }
        Ok(release) => Outcome::pass(release.to_string()),
    };
    Ok(outcome.with_evidence("/version", version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::run_check;

    #[test]
    fn untested_releases_cause_a_warning() {
        for (version, status) in [
            ("v1.20.2", Status::Pass),
            ("v1.36.9", Status::Pass),
            ("v1.31.4-gke.100", Status::Pass),
            ("v1.19.16", Status::Warn),
            ("v1.37.0", Status::Warn),
            ("main", Status::Skip),
        ] {
            let input = Input { kubernetes: Ok(version.to_owned()), ..Input::default() };
            assert_eq!(run_check("kubernetes.version", &input).status, status, "{version}");
        }
    }
}
