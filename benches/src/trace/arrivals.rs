//! Reads the VMs of a trace, rounds their sizes up to whole cores, and omits or repeats tenants until the VMs
//! request a given load.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;

use crate::fleet::Size;

/// Number of threads of a core. With the policy option `full-pcpus-only` the kubelet allocates only whole cores.
const THREADS_PER_CORE: u32 = 2;
/// Number of units in the trace's column `cores` that equal one core.
const TRACE_UNITS_PER_CORE: f64 = 100.0;
/// GiB that one unit in the trace's column `ram` equals. VMs usually have 14 memory units for 100 core units, and
/// at that time Azure gave a vCPU 3.5 GiB.
const GIB_PER_TRACE_UNIT: f64 = 0.25;

/// A VM of the trace. Start and end are in days.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Vm {
    pub(super) tenant: u64,
    pub(super) size: Size,
    pub(super) start: f64,
    pub(super) end: f64,
}

/// VMs in the order of their start times, and statistics of the VMs that were omitted.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub(super) name: String,
    pub(super) vms: Vec<Vm>,
    /// Length of the trace in whole days.
    pub(super) days: f64,
    /// Number of VMs that are too large for a zone.
    pub(super) oversized_vms: usize,
    /// CPU time of the VMs that are too large for a zone, as a fraction of the CPU time of all VMs.
    pub(super) oversized_fraction: f64,
}

impl Vm {
    /// Creates a VM from a line of the trace; `None` if its size is invalid. The VMs of every tenth tenant have a
    /// sidecar.
    pub(super) fn new(tenant: u64, cores: f64, ram: f64, start: f64, end: f64) -> Option<Self> {
        let round_up = |number: f64, of: f64| {
            let units = (number / of).ceil().max(1.0);
            // No host has more than 65,536 cores or GiB; up to this limit the cast is exact.
            (units <= 65_536.0).then_some(units)
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 65536")]
        let (cores, gib) = (
            round_up(cores, TRACE_UNITS_PER_CORE)? as u32,
            round_up(ram, 1.0 / GIB_PER_TRACE_UNIT)? as u64,
        );
        let has_sidecar = hash(tenant).is_multiple_of(10);
        Some(Self {
            tenant,
            size: Size { cpus: cores * THREADS_PER_CORE, gib, has_sidecar },
            start,
            end,
        })
    }

    /// Returns the CPU time of the VM between day 0 and the end of the trace, in CPU days.
    fn cpu_days(&self, days: f64) -> f64 {
        f64::from(self.size.cpus) * (self.end.min(days) - self.start.max(0.0)).max(0.0)
    }
}

impl Trace {
    /// Creates a trace from VMs in any order.
    pub(super) fn new(name: String, mut vms: Vec<Vm>) -> Self {
        vms.sort_by(|a, b| a.start.total_cmp(&b.start));
        let days = vms.last().map_or(0.0, |vm| vm.start.ceil().max(1.0));
        let all: f64 = vms.iter().map(|vm| vm.cpu_days(days)).sum();
        let (vms, wide): (Vec<Vm>, Vec<Vm>) = vms.into_iter().partition(|vm| vm.size.fits_a_zone());
        let wide_part =
            wide.iter().map(|vm| vm.cpu_days(days)).sum::<f64>() / all.max(f64::MIN_POSITIVE);
        Self { name, vms, days, oversized_vms: wide.len(), oversized_fraction: wide_part }
    }

    /// Reads a CSV file with the columns `vmId,tenantId,cores,ram,vmTypeId,starttime,endtime`, with or without gzip.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let display_path = || path.display().to_string();
        let file = File::open(path).with_context(display_path)?;
        let is_gzip = path.extension().is_some_and(|ending| ending == "gz");
        let reader: Box<dyn BufRead> = if is_gzip {
            Box::new(BufReader::new(GzDecoder::new(file)))
        } else {
            Box::new(BufReader::new(file))
        };
        let mut vms = Vec::new();
        let mut columns: Vec<String> = Vec::new();
        for (at, line) in reader.lines().enumerate() {
            let line = line.with_context(display_path)?;
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if at == 0 {
                columns = fields.into_iter().map(str::to_owned).collect();
                continue;
            }
            let vm = parse_row(&columns, &fields)
                .with_context(|| format!("{}: line {}", display_path(), at.saturating_add(1)))?;
            vms.push(vm);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ensure!(!vms.is_empty(), "{}: the file has no VMs", display_path());
        Ok(Self::new(name.trim_end_matches(".gz").trim_end_matches(".csv").to_owned(), vms))
    }

    /// Returns the average number of CPUs that the VMs request at the same time.
    fn mean_requested_cpus(&self) -> f64 {
        self.vms.iter().map(|vm| vm.cpu_days(self.days)).sum::<f64>() / self.days
    }

    /// Returns the VMs of the trace, with some tenants omitted or repeated so that the VMs request `cpus` CPUs on
    /// average.
    ///
    /// All VMs of a tenant are included or omitted together, because their sizes and times depend on each other. A
    /// repeated tenant has a new number, and the start times of its VMs are shifted by a fraction of the trace's
    /// length, and wrap around at the end of the trace.
    pub(super) fn scale_to(&self, cpus: f64) -> Vec<Vm> {
        let mut tenants: BTreeMap<u64, Vec<Vm>> = BTreeMap::new();
        for vm in &self.vms {
            tenants.entry(vm.tenant).or_default().push(*vm);
        }
        let mut order: Vec<(u64, Vec<Vm>)> = tenants.into_iter().collect();
        order.sort_by_key(|(tenant, _)| hash(*tenant));
        let mut scaled = Vec::new();
        let mut remaining = cpus * self.days;
        let mut round = 0;
        while remaining > 0.0 && self.mean_requested_cpus() > 0.0 {
            for (tenant, vms) in &order {
                if remaining <= 0.0 {
                    break;
                }
                let copies = vms.iter().map(|vm| vm.shifted_copy(round, hash(*tenant), self.days));
                let first = scaled.len();
                scaled.extend(copies);
                remaining -=
                    scaled.iter().skip(first).map(|vm| vm.cpu_days(self.days)).sum::<f64>();
            }
            round += 1;
        }
        scaled.sort_by(|a, b| a.start.total_cmp(&b.start));
        scaled
    }
}

impl Vm {
    /// Returns a copy of the VM for a repeated tenant, with a shifted start. A VM that runs since the beginning of
    /// the trace is not shifted.
    fn shifted_copy(&self, round: u64, mixed: u64, days: f64) -> Self {
        if round == 0 {
            return *self;
        }
        let tenant = hash(self.tenant ^ round.rotate_left(32));
        if self.start < 0.0 {
            return Self { tenant, ..*self };
        }
        let shift = f64::from(u16::try_from(hash(mixed ^ round) >> 48).unwrap_or(0)) / 65_536.0;
        let start = (self.start + shift * days) % days;
        Self { tenant, start, end: self.end - self.start + start, ..*self }
    }
}

fn parse_row(columns: &[String], fields: &[&str]) -> Result<Vm> {
    let number = |name: &str| -> Result<f64> {
        let at = columns.iter().position(|column| column == name);
        let field = at
            .and_then(|at| fields.get(at))
            .with_context(|| format!("the column {name} is missing"))?;
        let number: f64 = field.parse().with_context(|| format!("{name}: `{field}`"))?;
        ensure!(!number.is_nan(), "{name}: `{field}`");
        Ok(number)
    };
    let at = columns.iter().position(|column| column == "tenantId");
    let tenant = at.and_then(|at| fields.get(at)).context("the column tenantId is missing")?;
    let tenant = tenant.parse().with_context(|| format!("tenantId: `{tenant}`"))?;
    let (start, end) = (number("starttime")?, number("endtime")?);
    ensure!(start.is_finite() && start <= end, "endtime: `{end}` is before starttime `{start}`");
    let (cores, ram) = (number("cores")?, number("ram")?);
    Vm::new(tenant, cores, ram, start, end)
        .with_context(|| format!("cores: `{cores}`, ram: `{ram}`: larger than any machine"))
}

/// Returns a hash of a number (the finalizer of SplitMix64).
pub(super) const fn hash(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path)
    }

    const HEADER: &str = "vmId,tenantId,cores,ram,vmTypeId,starttime,endtime\n";

    #[test]
    fn units_are_cores_of_two_threads_and_quarters_of_a_gib() {
        let rows = "1,7,100.0,14.0,0,-1497.0,inf\n2,7,800,112,0,0.5,1.5\n3,8,42,7,0,1.25,2\n4,8,4000,1120,0,1.9,inf\n";
        let trace = read(&format!("{HEADER}{rows}")).unwrap();
        let sizes: Vec<(u32, u64)> =
            trace.vms.iter().map(|vm| (vm.size.cpus, vm.size.gib)).collect();
        assert_eq!(sizes, [(2, 4), (16, 28), (2, 2)]);
        assert_eq!((trace.days, trace.oversized_vms), (2.0, 1));
        assert_eq!(trace.mean_requested_cpus(), (2.0 * 2.0 + 16.0 + 2.0 * 0.75) / 2.0);
        assert!((trace.oversized_fraction - 8.0 / (8.0 + 21.5)).abs() < 1e-12);
    }

    #[test]
    fn invalid_row_is_reported_with_its_line() {
        let error = read(&format!("{HEADER}1,7,100,14,0,0,1\n2,7,many,14,0,0,1\n")).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("line 3") && error.contains("cores: `many`"), "{error}");
        for row in ["1,7,100,14,0,2,1", "1,7,100,14,0,nan,1", "1,7,1e300,14,0,0,1", "1,7"] {
            assert!(read(&format!("{HEADER}{row}\n")).is_err(), "{row}");
        }
    }

    #[test]
    fn load_is_reached_by_omitting_or_repeating_tenants() {
        let rows: String = (0..1000)
            .map(|at| format!("{at},{},100,14,0,{},{}\n", at / 2, f64::from(at) / 100.0, at))
            .collect();
        let trace = read(&format!("{HEADER}{rows}")).unwrap();
        for part in [0.5, 1.0, 2.5] {
            let wanted = trace.mean_requested_cpus() * part;
            let scaled = trace.scale_to(wanted);
            let scaled_trace = Trace { vms: scaled, ..trace.clone() };
            assert!(
                (scaled_trace.mean_requested_cpus() / wanted - 1.0).abs() < 0.02,
                "{part}: {}",
                scaled_trace.mean_requested_cpus() / wanted
            );
            assert!(scaled_trace.vms.is_sorted_by(|a, b| a.start <= b.start));
            assert!(scaled_trace.vms.iter().all(|vm| (0.0..trace.days).contains(&vm.start)));
        }
    }
}
