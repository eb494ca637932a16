//! Sets of logical CPUs, in the kernel's list and mask formats.

use std::fmt;
use std::str::FromStr;

use crate::bit_set::BitSet;
use crate::excerpt::excerpt;
use crate::text::string_serde;

/// A set of logical CPUs by the kernel's numbers.
///
/// Text form: the kernel's CPU list (`0-3,8,16-22:2`; "List format" in cpuset(7)), as in
/// `/sys/devices/system/cpu/online`, the kubelet's `reservedSystemCPUs` and cpuset cgroups. It is printed sorted,
/// merged and without strides, so that equal sets have the same text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BitSet);

string_serde!(CpuSet, "A list of CPUs as the kernel writes it, for example `0-3,8`.", {
    "type": "string",
    "maxLength": 65536,
    "pattern": "^([0-9]+(-[0-9]+(:[0-9]+(/[0-9]+)?)?)?(,[0-9]+(-[0-9]+(:[0-9]+(/[0-9]+)?)?)?)*)?$"
});

/// Error when parsing a set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuSetError {
    /// An element is neither a number nor a range.
    #[error("`{0}` is not a CPU or a range of CPUs such as 0-3")]
    InvalidElement(String),
    /// A range whose end is before its start.
    #[error("the range `{0}` ends before it starts")]
    ReversedRange(String),
    /// The group size is 0, or smaller than the number of CPUs that are used in each group.
    #[error(
        "the group size in `{0}` (RANGE:GROUP or RANGE:USED/GROUP) must be at least 1, and at least USED"
    )]
    InvalidStride(String),
    /// A CPU number above [`CpuSet::MAX_CPU`].
    #[error("CPU {0} is above {max}, the highest number that Berth supports", max = CpuSet::MAX_CPU)]
    TooLarge(u64),
    /// A mask with characters other than hexadecimal digits.
    #[error("`{0}` is not a hexadecimal CPU mask")]
    InvalidMask(String),
}

impl CpuSet {
    /// Highest accepted CPU number. Linux on x86 supports CPU numbers up to 8,191 (`CONFIG_NR_CPUS`). The limit ensures
    /// that the set for a malformed text such as `0-4294967295` does not need half a gigabyte of memory.
    pub const MAX_CPU: u32 = 65_535;

    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(BitSet::new())
    }

    /// Adds a CPU. Ignores a number above [`Self::MAX_CPU`], because no kernel has such a CPU.
    pub fn insert(&mut self, cpu: u32) {
        if cpu <= Self::MAX_CPU {
            self.0.insert(cpu);
        }
    }

    /// Returns true if the set contains the CPU.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(cpu)
    }

    /// Returns the number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lowest CPU of the set.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Returns the CPUs that are in at least one of the two sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0))
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0))
    }

    /// Returns the CPUs of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0))
    }

    /// Returns true if every CPU of this set is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Returns true if the sets have a CPU in common.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.intersects(&other.0)
    }

    /// Returns a compact text for users, in which evenly spaced CPUs are written with a stride (`0-78:2`). Without
    /// strides, the text of a zone is long if the kernel numbers CPUs alternately by zone. `FromStr`, taskset and lscpu
    /// also parse strides.
    #[must_use]
    pub fn to_compact_string(&self) -> String {
        let cpus: Vec<u32> = self.iter().collect();
        let mut parts: Vec<String> = Vec::new();
        let mut rest = cpus.as_slice();
        while let [first, others @ ..] = rest {
            let step = others.first().map_or(0, |next| next - first);
            let pairs = rest.windows(2).take_while(|pair| pair[1] - pair[0] == step).count();
            let (taken, last) = (pairs + 1, rest[pairs]);
            let taken = match (step, taken) {
                (1, 2..) => {
                    parts.push(format!("{first}-{last}"));
                    taken
                }
                // Fewer than six CPUs are more readable without a stride, and the second CPU may be the start of a
                // range.
                (2.., 6..) => {
                    parts.push(format!("{first}-{last}:{step}"));
                    taken
                }
                _ => {
                    parts.push(first.to_string());
                    1
                }
            };
            rest = &rest[taken..];
        }
        parts.join(",")
    }

    /// Parses the kernel's mask format: comma-separated 32-bit words, highest first (`00000000,0000ffff`). The first
    /// word may have fewer than 8 digits.
    ///
    /// # Errors
    /// Returns an error if a word is not hexadecimal, or if the mask contains a CPU above [`Self::MAX_CPU`].
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let mut set = Self::new();
        for (word, base) in text.trim().rsplit(',').zip((0u64..).step_by(32)) {
            let not_hex = || ParseCpuSetError::InvalidMask(excerpt(word));
            if word.is_empty() || word.len() > 8 || word.starts_with('+') {
                return Err(not_hex());
            }
            let mut bits = u32::from_str_radix(word, 16).map_err(|_| not_hex())?;
            while bits != 0 {
                let cpu = base + u64::from(bits.trailing_zeros());
                set.insert(validate_cpu(cpu)?);
                bits &= bits - 1;
            }
        }
        Ok(set)
    }

    /// Returns the kernel's mask format, as `/proc/irq/default_smp_affinity` accepts it: comma-separated 32-bit words,
    /// highest first. The empty set is `0`.
    #[must_use]
    pub fn to_mask(&self) -> String {
        let halves = |word: &u64| [word & 0xffff_ffff, word >> 32];
        let mut words: Vec<u64> = self.0.words().iter().flat_map(halves).collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        let text: Vec<String> = words
            .iter()
            .rev()
            .enumerate()
            .map(
                |(index, word)| {
                    if index == 0 { format!("{word:x}") } else { format!("{word:08x}") }
                },
            )
            .collect();
        if text.is_empty() { "0".to_owned() } else { text.join(",") }
    }

    /// Returns a bitmap with one bit per CPU, lowest first, as in systemd's `AllowedCPUs` property on D-Bus
    /// (`cpu_set_to_dbus`).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            self.0.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        bytes
    }

    /// Creates a set from a bitmap with one bit per CPU, lowest first. Ignores bits above [`Self::MAX_CPU`].
    #[must_use]
    pub fn from_bitmap(bytes: &[u8]) -> Self {
        let bits = bytes.iter().zip((0u32..).step_by(8));
        bits.flat_map(|(byte, base)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| base + bit)
        })
        .collect()
    }
}

fn validate_cpu(cpu: u64) -> Result<u32, ParseCpuSetError> {
    u32::try_from(cpu)
        .ok()
        .filter(|&cpu| cpu <= CpuSet::MAX_CPU)
        .ok_or(ParseCpuSetError::TooLarge(cpu))
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(set);
        }
        for element in text.split(',').map(str::trim) {
            let range = Range::parse(element)?;
            for start in (range.first..=range.last).step_by(range.group_size) {
                let end = range.last.min(start.saturating_add(range.used_per_group - 1));
                (start..=end).for_each(|cpu| set.insert(cpu));
            }
        }
        Ok(set)
    }
}

/// One element of a CPU list: the first `used_per_group` CPUs of each group of `group_size` CPUs, from `first` to
/// `last`.
struct Range {
    first: u32,
    last: u32,
    used_per_group: u32,
    group_size: usize,
}

impl Range {
    /// Parses `CPU`, `FIRST-LAST`, `FIRST-LAST:GROUP` (lscpu, taskset), and `FIRST-LAST:USED/GROUP` (`bitmap_parselist`
    /// of the kernel). Without USED, one CPU of each group is used.
    fn parse(element: &str) -> Result<Self, ParseCpuSetError> {
        let parse_error = || ParseCpuSetError::InvalidElement(excerpt(element));
        let number = |text: &str| -> Result<u64, ParseCpuSetError> {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if !is_number {
                return Err(parse_error());
            }
            text.parse().map_err(|_| ParseCpuSetError::TooLarge(u64::MAX))
        };
        let cpu = |text: &str| number(text).and_then(validate_cpu);

        let Some((first, rest)) = element.split_once('-') else {
            let first = cpu(element)?;
            return Ok(Self { first, last: first, used_per_group: 1, group_size: 1 });
        };
        let (last, stride) = rest.split_once(':').map_or((rest, None), |(l, s)| (l, Some(s)));
        let (first, last) = (cpu(first)?, cpu(last)?);
        if last < first {
            return Err(ParseCpuSetError::ReversedRange(excerpt(element)));
        }
        let (used, group) = match stride.map(|s| s.split_once('/').unwrap_or(("1", s))) {
            None => (1, 1),
            Some((used, group)) => (cpu(used)?, cpu(group)?),
        };
        if used == 0 || group < used {
            return Err(ParseCpuSetError::InvalidStride(excerpt(element)));
        }
        Ok(Self { first, last, used_per_group: used, group_size: group as usize })
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (first, last) in self.0.ranges() {
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn parse_cpus(text: &str) -> Vec<u32> {
        text.parse::<CpuSet>().unwrap().iter().collect()
    }

    #[test]
    fn cpu_set_accepts_kernel_formats() {
        assert_eq!(parse_cpus("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus("0-8:4"), [0, 4, 8]);
        assert_eq!(parse_cpus("0-9:2/5"), [0, 1, 5, 6]);
        assert_eq!(parse_cpus(" 1, 3\n"), [1, 3]);
        assert_eq!(parse_cpus(""), [0; 0]);
        assert_eq!(CpuSet::from_mask("00000001,00000101").unwrap().to_string(), "0,8,32");
        assert_eq!(CpuSet::from_mask("5555,55555555").unwrap().len(), 24);
    }

    #[test]
    fn compact_form_has_strides_and_display_has_none() {
        let compact = |text: &str| text.parse::<CpuSet>().unwrap().to_compact_string();
        assert_eq!(compact("0,2,4,6,8,10"), "0-10:2");
        assert_eq!(compact("0-7,16-23"), "0-7,16-23");
        assert_eq!(compact("0,24,48,72"), "0,24,48,72");
        assert_eq!(compact("0,4-7,12"), "0,4-7,12");
        assert_eq!("0-8:2".parse::<CpuSet>().unwrap().to_string(), "0,2,4,6,8");
    }

    #[test]
    fn invalid_text_is_quoted_in_the_error() {
        for (text, message) in [
            ("3-1", "the range `3-1` ends before it starts"),
            ("a", "`a` is not a CPU or a range of CPUs such as 0-3"),
            (
                "0-8:0",
                "the group size in `0-8:0` (RANGE:GROUP or RANGE:USED/GROUP) must be at least 1, and at least USED",
            ),
            ("1,,2", "`` is not a CPU or a range of CPUs such as 0-3"),
            ("+1", "`+1` is not a CPU or a range of CPUs such as 0-3"),
            (
                "0-4294967295",
                "CPU 4294967295 is above 65535, the highest number that Berth supports",
            ),
        ] {
            assert_eq!(text.parse::<CpuSet>().unwrap_err().to_string(), message);
        }
        assert!(CpuSet::from_mask("xyz").is_err());
        assert!(CpuSet::from_mask("").is_err());
        assert!(CpuSet::from_mask("123456789").is_err());
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(cpus in prop::collection::btree_set(0u32..9000, 0..200)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(set.to_compact_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn cpu_set_agrees_with_btree_set(
            a in prop::collection::btree_set(0u32..300, 0..80),
            b in prop::collection::btree_set(0u32..300, 0..80),
        ) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let plain = |set: BTreeSet<u32>| set.into_iter().collect::<CpuSet>();
            prop_assert_eq!(x.union(&y), plain(&a | &b));
            prop_assert_eq!(x.intersection(&y), plain(&a & &b));
            prop_assert_eq!(x.difference(&y), plain(&a - &b));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.len(), a.len());
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            drop(text.parse::<CpuSet>());
            drop(CpuSet::from_mask(&text));
        }
    }
}
