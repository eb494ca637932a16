//! The manifest argument of `plan`, `apply` and `run`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ValueEnum, ValueHint};

use crate::manifest::{Fault, Manifest, SpecPart};
use crate::plan::{self, LeasedNetworks};
use berth_host_facts::root::Root;
use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print_error};

/// Manifest, and the name of the node that the manifest is for.
#[derive(Debug, clap::Args)]
pub(super) struct ManifestArguments {
    /// InfraNode manifest, YAML or JSON; `-` reads standard input
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    filename: PathBuf,
    /// Name of this node, if it differs from the names of the host and the kubelet
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<String>,
    /// Use only this part of the manifest; may be repeated
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<OnlyPart>,
}

/// Part of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnlyPart {
    /// spec.cpu
    Cpu,
    /// spec.hugepages
    Hugepages,
    /// spec.ksm
    Ksm,
    /// spec.transparentHugepages
    TransparentHugepages,
    /// spec.devices
    Devices,
    /// spec.networks and spec.tenantNetworks
    Networks,
}

impl OnlyPart {
    const fn part(self) -> SpecPart {
        match self {
            Self::Cpu => SpecPart::Cpu,
            Self::Hugepages => SpecPart::Hugepages,
            Self::Ksm => SpecPart::Ksm,
            Self::TransparentHugepages => SpecPart::TransparentHugepages,
            Self::Devices => SpecPart::Devices,
            Self::Networks => SpecPart::Networks,
        }
    }
}

/// Maximum size of a manifest.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

impl ManifestArguments {
    /// Reads the manifest. Faults in single parts are not errors: they are in the field `faults` of the result.
    pub(super) fn read(&self) -> Result<Manifest, Failure> {
        let text = read_text(&self.filename)?;
        let mut manifest = Manifest::parse(&text)
            .map_err(|fault| bad_input_failure(&format!("{}: {fault}", self.filename.display())))?;
        if !self.only.is_empty() {
            let parts: Vec<SpecPart> = self.only.iter().map(|only| only.part()).collect();
            manifest.restrict_to(&parts);
        }
        Ok(manifest)
    }
}

/// Returns the leases of a manifest. Without a HostLeases in the manifest, they are unknown, and those in the rollback
/// ledger stay: in a cluster, the leases come from the API server.
pub(super) fn leased_networks(manifest: &Manifest) -> Option<LeasedNetworks> {
    let leases = manifest.leases.as_deref().filter(|leases| !leases.networks.is_empty())?;
    Some(plan::leased_networks(leases))
}

/// Prints the faults of a manifest.
pub(super) fn print_faults(faults: &[Fault]) {
    for fault in faults {
        print_error(&format!("berth-agent: {fault}"));
    }
}

fn read_text(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().lock().take(MAX_MANIFEST_BYTES).read_to_string(&mut text);
        return read
            .map(|_| text)
            .map_err(|error| bad_input_failure(&format!("standard input: {error}")));
    }
    let absolute = std::path::absolute(path)
        .map_err(|error| bad_input_failure(&format!("{}: {error}", path.display())))?;
    let Some(absolute) = absolute.to_str() else {
        return Err(bad_input_failure(&format!("{}: the path is not UTF-8", path.display())));
    };
    let read = Root::open_live()
        .map_err(anyhow::Error::from)
        .and_then(|root| Ok(root.read_large(absolute)?));
    read.map_err(|error| bad_input_failure(&error.to_string()))
}

pub(super) fn bad_input_failure(message: &str) -> Failure {
    Failure { exit_code: EXIT_BAD_INPUT, error: anyhow::anyhow!("{message}") }
}
