//! D-Bus client of systemd.

use std::time::{Duration, Instant};

use berth_api::CpuSet;
use zbus::blocking::{Connection, Proxy, connection, proxy};
use zbus::zvariant::{OwnedObjectPath, Value};

use berth_host_facts::setting::SystemdUnit;

#[derive(Debug)]
pub struct Systemd(Connection);

/// Error of a request to systemd, as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("systemd: {0}")]
pub struct SystemdError(String);

impl SystemdError {
    /// Returns the error for a captured tree (a copy of a host's files), where no systemd runs.
    pub(crate) fn captured_tree() -> Self {
        Self("systemd does not run in a captured tree".to_owned())
    }

    /// Returns the error for an agent in a container: systemd cannot start the agent's program, because the program
    /// is not a file of the host.
    pub(crate) fn in_container() -> Self {
        Self("systemd cannot start the program of an agent that runs in a container".to_owned())
    }

    pub(crate) fn from_error(error: &dyn std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

const BUS_NAME: &str = "org.freedesktop.systemd1";
const MANAGER_INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
/// Address of systemd's private socket, which exists before the system bus runs, and which only root can use.
const PRIVATE_ADDRESS: &str = "unix:path=/run/systemd/private";
/// Number of the capability `CAP_NET_ADMIN`, which is the index of its bit in a capability set.
const CAP_NET_ADMIN: u32 = 12;
/// Time limit for the start of a transient unit.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks of the state of a transient unit.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Systemd {
    /// Connects to systemd over the system bus or, early in the boot when no bus runs yet, directly.
    ///
    /// # Errors
    /// If both connections fail: the host has no systemd, or the agent runs in a container without the sockets of
    /// systemd.
    pub fn connect() -> Result<Self, SystemdError> {
        let bus = Connection::system();
        let connect_directly = || connection::Builder::address(PRIVATE_ADDRESS)?.p2p().build();
        bus.or_else(|on_bus| {
            connect_directly().map_err(|error| {
                SystemdError(format!("{on_bus}; a direct connection failed too: {error}"))
            })
        })
        .map(Self)
    }

    /// Returns the CPUs that a unit may use (`AllowedCPUs`); the empty set means all CPUs.
    ///
    /// # Errors
    /// Returns the error of systemd.
    pub fn allowed_cpus(&self, unit: SystemdUnit) -> Result<CpuSet, SystemdError> {
        let path: OwnedObjectPath = self
            .proxy(MANAGER_PATH, MANAGER_INTERFACE)?
            .call("LoadUnit", &(unit.unit_name(),))
            .map_err(systemd_error)?;
        let interface = match unit {
            SystemdUnit::Init => "org.freedesktop.systemd1.Scope",
            SystemdUnit::System | SystemdUnit::User => "org.freedesktop.systemd1.Slice",
        };
        let bytes: Vec<u8> = self
            .proxy(path.as_str(), interface)?
            .get_property("AllowedCPUs")
            .map_err(systemd_error)?;
        Ok(CpuSet::from_bitmap(&bytes))
    }

    /// Sets the CPUs that a unit may use until the next boot (`systemctl set-property --runtime`); the
    /// empty set means all CPUs.
    ///
    /// # Errors
    /// Returns the error of systemd.
    pub fn set_allowed_cpus(&self, unit: SystemdUnit, cpus: &CpuSet) -> Result<(), SystemdError> {
        let properties = vec![("AllowedCPUs", Value::from(cpus.to_bytes()))];
        let manager = self.proxy(MANAGER_PATH, MANAGER_INTERFACE)?;
        manager
            .call::<_, _, ()>("SetUnitProperties", &(unit.unit_name(), true, properties))
            .map_err(systemd_error)
    }

    /// Starts a program as a transient service, which has a separate control group, and waits until the program
    /// runs.
    ///
    /// # Errors
    /// Returns the error of systemd, or an error if the program does not run within 10 seconds.
    pub fn start_transient(
        &self,
        unit: &str,
        program: &str,
        arguments: &[&str],
    ) -> Result<(), SystemdError> {
        let argv: Vec<&str> = std::iter::once(program).chain(arguments.iter().copied()).collect();
        let properties = vec![
            ("Description", Value::from("Rolls back an unfinished trial of Berth")),
            // A unit with type `exec` becomes active only after the program was executed, so a missing program is
            // detected here.
            ("Type", Value::from("exec")),
            ("ExecStart", Value::from(vec![(program, argv, false)])),
            ("CollectMode", Value::from("inactive-or-failed")),
            ("CapabilityBoundingSet", Value::from(1_u64 << CAP_NET_ADMIN)),
            ("NoNewPrivileges", Value::from(true)),
            ("ProtectSystem", Value::from("strict")),
        ];
        let auxiliary: Vec<(&str, Vec<(&str, Value)>)> = Vec::new();
        let manager = self.proxy(MANAGER_PATH, MANAGER_INTERFACE)?;
        manager
            .call::<_, _, OwnedObjectPath>(
                "StartTransientUnit",
                &(unit, "fail", properties, auxiliary),
            )
            .map_err(systemd_error)?;
        let begin = Instant::now();
        loop {
            let path: OwnedObjectPath =
                manager.call("LoadUnit", &(unit,)).map_err(systemd_error)?;
            let service = self.proxy(path.as_str(), UNIT_INTERFACE)?;
            let property = |name| service.get_property::<String>(name).map_err(systemd_error);
            let state = property("ActiveState")?;
            // systemd unloads a unit as soon as it fails (`CollectMode`), and then reports that the unit is not
            // found. A unit is also inactive before its start job runs.
            let is_unloaded = property("LoadState")? == "not-found";
            match state.as_str() {
                "active" => return Ok(()),
                "failed" => return Err(SystemdError(format!("{unit} failed"))),
                _ if is_unloaded => {
                    return Err(SystemdError(format!("{program} cannot be run as {unit}")));
                }
                _ if begin.elapsed() > START_TIMEOUT => {
                    return Err(SystemdError(format!("{unit} is still {state}")));
                }
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn proxy<'a>(&self, path: &'a str, interface: &'a str) -> Result<Proxy<'a>, SystemdError> {
        let builder = proxy::Builder::new(&self.0).destination(BUS_NAME).and_then(|b| b.path(path));
        // The property cache is off: it would read all properties and subscribe to their changes, but only one
        // value is needed.
        let builder =
            builder.and_then(|builder| builder.interface(interface)).map_err(systemd_error)?;
        builder.cache_properties(zbus::proxy::CacheProperties::No).build().map_err(systemd_error)
    }
}

fn systemd_error(error: zbus::Error) -> SystemdError {
    SystemdError(error.to_string())
}
