//! CPUs that are isolated from the scheduler (`isolcpus=`), and CPUs without a periodic tick (`nohz_full=`).
//!
//! The CPUs are read from sysfs or, for captures and old kernels without these sysfs files, from the kernel command
//! line.

use berth_api::CpuSet;
use berth_api::infra_node::UnknownReason;

use super::kernel::Kernel;
use super::kernel_files::read_cpu_list;
use super::topology::Topology;
use crate::notes::Notes;
use crate::root::{ReadError, Root};

const CPU_FOLDER: &str = "sys/devices/system/cpu";

/// Returns the isolated CPUs, that is, the CPUs on which the scheduler does not balance load.
pub fn isolated_cpus(
    root: &Root,
    kernel: &Kernel,
    topology: &Topology,
    notes: &mut Notes,
) -> Option<CpuSet> {
    let from_command_line = parse_isolcpus(kernel.parameter_values("isolcpus"), last_cpu(topology));
    let file = read_cpu_list(root, &format!("{CPU_FOLDER}/isolated"));
    cpus_of_file_or_command_line("isolated", file, from_command_line, kernel, topology, notes)
}

/// Returns the CPUs without a periodic tick. A running kernel without the sysfs file was built without
/// `CONFIG_NO_HZ_FULL`, and has no such CPUs.
pub fn nohz_full_cpus(
    root: &Root,
    kernel: &Kernel,
    topology: &Topology,
    notes: &mut Notes,
) -> Option<CpuSet> {
    let file = read_cpu_list(root, &format!("{CPU_FOLDER}/nohz_full"));
    if root.is_live() && file.as_ref().is_err_and(ReadError::is_not_found) {
        return Some(CpuSet::new());
    }
    let value = kernel.parameter_values("nohz_full").last();
    let from_command_line =
        value.map_or_else(|| Some(CpuSet::new()), |l| parse_boot_cpu_list(l, last_cpu(topology)));
    cpus_of_file_or_command_line("nohzFull", file, from_command_line, kernel, topology, notes)
}

fn cpus_of_file_or_command_line(
    field: &str,
    file: Result<CpuSet, ReadError>,
    from_command_line: Option<CpuSet>,
    kernel: &Kernel,
    topology: &Topology,
    notes: &mut Notes,
) -> Option<CpuSet> {
    let path = format!("capabilities.cpu.{field}");
    match file {
        Err(error) if error.is_not_found() && !kernel.cmdline.is_empty() => {
            if from_command_line.is_none() {
                let message = "the value on the kernel command line is not a CPU list";
                notes.add_unknown(path, UnknownReason::Malformed, message);
            }
            from_command_line.map(|cpus| cpus.intersection(&topology.online))
        }
        read => notes.value_or_unknown(&path, read),
    }
}

/// Parses values of the form `isolcpus=[flag,...]<cpu list>`; the last value is effective. Without a flag, or with the
/// flag `domain`, the CPUs are isolated from the scheduler. The flags `managed_irq` and `nohz` alone do not isolate the
/// CPUs (kernel-parameters.txt). `last` is the number of the last CPU.
fn parse_isolcpus<'a>(values: impl Iterator<Item = &'a str>, last: u32) -> Option<CpuSet> {
    let parse_value = |value: &str| {
        let is_flag = |part: &&str| ["domain", "managed_irq", "nohz"].contains(part);
        let flags: Vec<&str> = value.split(',').take_while(is_flag).collect();
        let list: Vec<&str> = value.split(',').skip(flags.len()).collect();
        let isolates_from_scheduler = flags.is_empty() || flags.contains(&"domain");
        if isolates_from_scheduler {
            parse_boot_cpu_list(&list.join(","), last)
        } else {
            Some(CpuSet::new())
        }
    };
    values.map(parse_value).last().unwrap_or_else(|| Some(CpuSet::new()))
}

/// Parses a CPU list of the kernel command line, in which `N` means the last CPU, whose number is `last`, and `all`
/// means all CPUs.
fn parse_boot_cpu_list(list: &str, last: u32) -> Option<CpuSet> {
    let list = if list == "all" { "0-N" } else { list };
    list.replace('N', &last.to_string()).parse().ok()
}

fn last_cpu(topology: &Topology) -> u32 {
    topology.online.union(&topology.offline).iter().last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scheduler_isolated_cpus_are_returned() {
        let set = |value: &str| parse_isolcpus([value].into_iter(), 7).map(|set| set.to_string());
        assert_eq!(set("1-3,5").as_deref(), Some("1-3,5"));
        assert_eq!(set("managed_irq,domain,1-3").as_deref(), Some("1-3"));
        assert_eq!(set("managed_irq,0-4,11-79").as_deref(), Some(""));
        assert_eq!(set("nohz,domain,2").as_deref(), Some("2"));
        assert_eq!(set("2-N").as_deref(), Some("2-7"));
        assert_eq!(set("all").as_deref(), Some("0-7"));
        assert_eq!(set("garbage"), None);
        assert_eq!(parse_isolcpus(std::iter::empty(), 7), Some(CpuSet::new()));
    }
}
