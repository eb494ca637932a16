//! Process of CDI in namespaces of its own. CDI's programs listen on port 8443 of all addresses, read keys from
//! `/var/run/cdi`, and write to `/tmp`, as in a pod; no flag changes these paths and the port.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use anyhow::Result;

use super::assets::Assets;
use crate::cluster::ControlPlane;
use crate::running::Running;

/// Port on which CDI's programs listen.
const PORT: u16 = 8443;
/// Folder of the control plane, and the folder of the programs, inside of the namespaces.
pub(super) const PLANE_FOLDER: &str = "/run/plane";
const PROGRAM_FOLDER: &str = "/run/programs";
/// Folder of the keys with which CDI signs tokens of clones, below the control plane's folder.
pub(super) const KEY_FOLDER: &str = "cdi-keys";
/// Connects the network namespace with that of the test, hides `/run` and `/tmp`, and runs the program. Its arguments are
/// the process of the test, the name of its end of the link, both addresses, and the two folders.
const SCRIPT: &str = "set -eu
test=$1 link=$2 outside=$3 inside=$4 plane=$5 programs=$6
shift 6
ip link set lo up
ip link add eth0 type veth peer name $link netns $test
ip address add $inside/30 dev eth0
ip link set eth0 up
nsenter --net=/proc/$test/ns/net ip address add $outside/30 dev $link
nsenter --net=/proc/$test/ns/net ip link set $link up
ip route add default via $outside
mount -t tmpfs tmpfs /run
mkdir -p /run/plane /run/programs /run/cdi/token/keys
mount --bind $plane /run/plane
mount --bind $programs /run/programs
if [ -e /run/plane/cdi-keys ]; then mount --bind /run/plane/cdi-keys /run/cdi/token/keys; fi
mount -t tmpfs tmpfs /tmp
exec \"$@\"";

/// Address of a program, which must be unique in the network namespace of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Name of the test's end of the link.
    link: &'static str,
    outside: Ipv4Addr,
    inside: Ipv4Addr,
}

impl Place {
    /// Returns one of at most 64 places. The addresses are from a documentation range (RFC 5737).
    pub(super) fn new(link: &'static str, number: u8) -> Self {
        let base = number.saturating_mul(4);
        let address = |host: u8| Ipv4Addr::new(203, 0, 113, base.saturating_add(host));
        Self { link, outside: address(1), inside: address(2) }
    }

    /// Returns the address of the program's server.
    pub(super) const fn address(self) -> Ipv4Addr {
        self.inside
    }

    /// Returns address and port of the program's server.
    pub(super) fn server(self) -> String {
        format!("{}:{PORT}", self.inside)
    }
}

/// Starts a program with these environment variables. The program ends when this process ends.
///
/// # Errors
/// Fails if the program cannot be started. If its namespaces cannot be created, its log has the reason.
pub(super) fn start(
    plane: &ControlPlane,
    assets: &Assets,
    program: &str,
    place: Place,
    variables: &[(&str, String)],
) -> Result<Running> {
    let log = plane.folder().join(format!("{program}.log"));
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Running::command(Path::new("unshare"), None);
    command.args(["--net", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(std::process::id().to_string()).arg(place.link);
    command.args([place.outside.to_string(), place.inside.to_string()]);
    command.arg(plane.folder()).arg(assets.folder());
    command.arg(format!("{PROGRAM_FOLDER}/{program}"));
    command.arg(format!("--kubeconfig={PLANE_FOLDER}/cdi.kubeconfig"));
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Running::spawn(command)
}
