//! Parses CPU lists, CPU masks and quantities in the formats of several tools.

use std::collections::BTreeSet;

pub(crate) type Cpus = BTreeSet<u32>;

/// Parses a list such as `0-3,8`, or `0-62:2` with the stride that lscpu prints.
pub(crate) fn parse_cpu_list(list: &str) -> Cpus {
    let mut cpus = Cpus::new();
    // Some kernels write a NUL byte after the list.
    let list = list.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| -> u32 {
            text.parse().unwrap_or_else(|error| panic!("CPU list {list:?}: {error}"))
        };
        let step = usize::try_from(number(step)).expect("the step should fit into usize");
        cpus.extend((number(first)..=number(last)).step_by(step));
    }
    cpus
}

/// Parses a mask of comma-separated 32-bit words, the most significant word first: `0000,ffffffff` of the kernel,
/// or `0x1,,0xff` of hwloc.
pub(crate) fn parse_cpu_mask(mask: &str) -> Cpus {
    let mut cpus = Cpus::new();
    for (word, base) in mask
        .trim_matches(|c: char| c.is_whitespace() || c == '\0')
        .rsplit(',')
        .zip((0..).step_by(32))
    {
        let digits = word.trim_start_matches("0x");
        if digits.is_empty() {
            continue;
        }
        let bits = u32::from_str_radix(digits, 16)
            .unwrap_or_else(|error| panic!("CPU mask {mask:?}: {error}"));
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit));
    }
    cpus
}

/// Formats a set of CPUs as the report does: in ascending order, with ranges, without strides.
pub(crate) fn format_cpu_list(cpus: &Cpus) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let write = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(write).collect::<Vec<_>>().join(",")
}

/// Parses a quantity such as `2Gi` (Kubernetes), `46GiB` (hwloc), or a number of bytes. Returns the bytes of the
/// quantity, and the bytes of its unit.
pub(crate) fn parse_bytes(quantity: &str) -> Option<(u64, u64)> {
    let digits = quantity.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match quantity.strip_prefix(digits)?.trim_end_matches('B') {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    Some((digits.parse::<u64>().ok()?.checked_mul(unit)?, unit))
}
