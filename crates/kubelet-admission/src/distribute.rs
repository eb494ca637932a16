//! CPU distribution for the option `distribute-cpus-across-numa`: `takeByTopologyNUMADistributed` of
//! cpumanager/cpu_assignment.go (KEP-2902).
//!
//! If no single zone has enough free CPUs, the CPUs are split evenly over as few zones as possible. If they cannot be
//! split evenly, the remaining CPUs are taken from those zones for which the numbers of free CPUs are most balanced
//! afterwards.

use super::cpu_bits::CpuBits;
use super::host::KubeletHost;
use super::refusal::Reason;
use super::take_packed::{CpuAccumulator, take_packed};

/// Takes `requested` CPUs, which are distributed over zones. Each zone provides a multiple of `group_size` CPUs.
pub(super) fn distribute_cpus(
    host: &KubeletHost,
    available: &CpuBits,
    requested: i64,
    group_size: i64,
) -> Result<CpuBits, Reason> {
    if group_size < 1 || requested % group_size != 0 {
        return take_packed(host, available, requested, false);
    }
    let accumulator = CpuAccumulator::new(host, available, requested);
    if accumulator.is_done() {
        return Ok(accumulator.taken_cpus);
    }
    accumulator.check_enough_cpus()?;
    let zones = accumulator.zones_in_order();
    let free: Vec<i64> =
        (0..host.zones.len()).map(|zone| i64::from(accumulator.free_in_zone(zone))).collect();
    let (min_zones, max_zones) = zones_needed(host, requested, group_size, &free);
    for count in min_zones..=max_zones {
        if let Some(best) = find_best_split(&zones, &free, count, requested, group_size)? {
            return best.take_cpus(accumulator, requested, group_size);
        }
    }
    take_packed(host, available, requested, false)
}

/// Returns the minimum and the maximum number of zones over which the requested CPUs may be split
/// (`rangeNUMANodesNeededToSatisfy`). `free` has the number of free CPUs of each zone.
fn zones_needed(host: &KubeletHost, wanted: i64, group: i64, free: &[i64]) -> (usize, usize) {
    let groups = |cpus: i64| (cpus - 1) / group + 1;
    let zones = i64::from(host.cpu_zones.count_ones()).max(1);
    let cpus = i64::try_from(host.cpus.len()).unwrap_or(i64::MAX);
    let per_zone = (groups(cpus) - 1) / zones + 1;
    let needed = groups(wanted);
    let min_zones = (needed - 1) / per_zone + 1;
    let with_free = free.iter().filter(|&&free| free > 0).count();
    let max_zones = usize::try_from(needed).unwrap_or(usize::MAX).min(with_free);
    (usize::try_from(min_zones).unwrap_or(usize::MAX), max_zones)
}

/// The zones over which the CPUs are split, and those of them that provide the remaining CPUs.
struct ZoneSplit {
    zones: Vec<usize>,
    remainder_zones: Vec<usize>,
}

fn find_best_split(
    zones: &[usize],
    free: &[i64],
    count: usize,
    requested: i64,
    group_size: i64,
) -> Result<Option<ZoneSplit>, Reason> {
    let mut best_balance = f64::MAX;
    let mut best: Option<(GoSlice, Option<Vec<usize>>)> = None;
    let mut loops_forever = false;
    let mut combinations = Combinations::default();
    combinations.for_each(zones, count, &mut |lists, chosen| {
        if best_balance == 0.0 {
            return false;
        }
        let combination = lists.elements(chosen);
        let free_in = |zone: usize| free.get(zone).copied().unwrap_or(0);
        let total: i64 = combination.iter().map(|&zone| free_in(zone)).sum();
        let groups: i64 = combination.iter().map(|&zone| free_in(zone) / group_size).sum();
        let cpus_per_zone =
            requested / i64::try_from(combination.len()).unwrap_or(i64::MAX) / group_size
                * group_size;
        if total < requested
            || groups * group_size < requested
            || combination.iter().any(|&zone| free_in(zone) < cpus_per_zone)
        {
            return true;
        }
        let mut free_after: Vec<(usize, i64)> = Vec::with_capacity(zones.len());
        for &zone in zones {
            if !free_after.iter().any(|&(known, _)| known == zone) {
                free_after.push((zone, free_in(zone)));
            }
        }
        for &zone in &combination {
            add_free_cpus(&mut free_after, zone, -cpus_per_zone);
        }
        let remainder =
            requested - cpus_per_zone * i64::try_from(combination.len()).unwrap_or(i64::MAX);
        let (balance, subset) = if remainder == 0 {
            (standard_deviation(&free_after), None)
        } else {
            let Some((balance, subset)) =
                best_remainder_zones(&combination, &free_after, remainder, group_size)
            else {
                loops_forever = true;
                return false;
            };
            (balance, Some(subset))
        };
        if balance < best_balance {
            best_balance = balance;
            best = Some((chosen, subset));
        }
        true
    });
    if loops_forever {
        return Err(Reason::KubeletCrash(
            "the algorithm of the option distribute-cpus-across-numa loops forever",
        ));
    }
    Ok(best.map(|(zones, remainder_zones)| ZoneSplit {
        zones: combinations.elements(zones),
        remainder_zones: remainder_zones.unwrap_or_default(),
    }))
}

/// Returns the best balance of free CPUs (the lowest standard deviation), and the zones that must provide the remaining
/// CPUs for this balance. Returns `None` if the kubelet would loop forever. This happens if no zone has a whole free
/// core left, and the kubelet would have to form one from partial cores of several zones.
fn best_remainder_zones(
    combination: &[usize],
    free_after: &[(usize, i64)],
    remainder: i64,
    group_size: i64,
) -> Option<(f64, Vec<usize>)> {
    let free_in = |after: &[(usize, i64)], zone: usize| {
        after.iter().find(|&&(known, _)| known == zone).map_or(0, |&(_, free)| free)
    };
    let candidates: Vec<usize> = combination
        .iter()
        .copied()
        .filter(|&zone| free_in(free_after, zone) >= group_size)
        .collect();
    let mut best_balance = f64::MAX;
    let mut best: Vec<usize> = Vec::new();
    let mut loops_forever = false;
    for count in (1..=candidates.len()).rev() {
        let mut combinations = Combinations::default();
        let mut best_chosen = None;
        combinations.for_each(&candidates, count, &mut |lists, chosen| {
            let subset = lists.elements(chosen);
            let total: i64 = subset.iter().map(|&zone| free_in(free_after, zone)).sum();
            if total < remainder {
                return true;
            }
            let mut free_after = free_after.to_vec();
            let mut remainder = remainder;
            while remainder > 0 {
                let before = remainder;
                for &zone in &subset {
                    if remainder == 0 {
                        break;
                    }
                    if free_in(&free_after, zone) >= group_size {
                        add_free_cpus(&mut free_after, zone, -group_size);
                        remainder -= group_size;
                    }
                }
                if remainder == before {
                    loops_forever = true;
                    return false;
                }
            }
            let balance = standard_deviation(&free_after);
            if balance < best_balance {
                best_balance = balance;
                best_chosen = Some(chosen);
            }
            true
        });
        if loops_forever {
            return None;
        }
        if let Some(chosen) = best_chosen {
            best = combinations.elements(chosen);
        }
    }
    Some((best_balance, best))
}

impl ZoneSplit {
    fn take_cpus(
        self,
        mut accumulator: CpuAccumulator<'_>,
        requested: i64,
        group_size: i64,
    ) -> Result<CpuBits, Reason> {
        let host = accumulator.host;
        let count = i64::try_from(self.zones.len()).unwrap_or(i64::MAX).max(1);
        let cpus_per_zone = requested / count / group_size * group_size;
        let in_zone = |accumulator: &CpuAccumulator<'_>, zone: usize| {
            let run = host.zones.get(zone).map_or((0, 0), |zone| zone.cpus);
            accumulator.free_cpus.intersection(&CpuBits::from_range(run.0, run.1))
        };
        for &zone in &self.zones {
            // As in the kubelet, an error is ignored here. The end of this function checks whether CPUs are missing.
            if let Ok(cpus) = take_packed(host, &in_zone(&accumulator, zone), cpus_per_zone, false)
            {
                accumulator.take_cpus(&cpus);
            }
        }
        let mut remainder = requested - cpus_per_zone * count;
        while remainder > 0 {
            let before = remainder;
            for &zone in &self.remainder_zones {
                if remainder == 0 {
                    break;
                }
                let free = in_zone(&accumulator, zone);
                if i64::from(free.count()) < group_size {
                    continue;
                }
                if let Ok(cpus) = take_packed(host, &free, group_size, false) {
                    accumulator.take_cpus(&cpus);
                }
                remainder -= group_size;
            }
            if remainder == before {
                return Err(Reason::KubeletCrash(
                    "the algorithm of the option distribute-cpus-across-numa loops forever",
                ));
            }
        }
        if accumulator.needed_cpus == 0 {
            return Ok(accumulator.taken_cpus);
        }
        let (problem, needed) = if accumulator.needed_cpus > 0 {
            ("not enough", accumulator.needed_cpus)
        } else {
            ("too many", accumulator.needed_cpus)
        };
        let error = format!("accounting error, {problem} CPUs allocated, remaining: {needed}");
        Err(Reason::CpuError(error))
    }
}

fn add_free_cpus(free_by_zone: &mut [(usize, i64)], zone: usize, cpus: i64) {
    if let Some((_, free)) = free_by_zone.iter_mut().find(|(known, _)| *known == zone) {
        *free += cpus;
    }
}

/// Returns the standard deviation of the numbers of free CPUs (`standardDeviation`). As in the kubelet, the result is
/// rounded to thousandths, so that nearly equal balances count as equal.
#[expect(clippy::cast_precision_loss, reason = "an f64 represents numbers of CPUs exactly")]
fn standard_deviation(free_by_zone: &[(usize, i64)]) -> f64 {
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let count = free_by_zone.len() as f64;
    let mean = round(free_by_zone.iter().map(|&(_, free)| free as f64).sum::<f64>() / count);
    let squares: f64 = free_by_zone.iter().map(|&(_, free)| (free as f64 - mean).powi(2)).sum();
    round((squares / count).sqrt())
}

/// Iterates over combinations of zones (`iterateCombinations`) with the semantics of Go slices. The kubelet's code
/// depends on these semantics: `append` writes into the existing array as long as the array has capacity. Therefore, if
/// the kubelet stores a combination as the best, a later combination in the same array can overwrite it. With five or
/// more zones, this changes which CPUs are taken.
#[derive(Default)]
struct Combinations {
    /// The arrays to which slices refer, each with its capacity.
    arrays: Vec<(Vec<usize>, usize)>,
}

/// A Go slice: the index of its array in [`Combinations::arrays`], and its length.
#[derive(Clone, Copy)]
struct GoSlice {
    array: usize,
    length: usize,
}

impl Combinations {
    fn elements(&self, chosen: GoSlice) -> Vec<usize> {
        let array = self.arrays.get(chosen.array);
        array
            .map(|(array, _)| array.iter().copied().take(chosen.length).collect())
            .unwrap_or_default()
    }

    /// Calls `visit` for each combination of `count` elements of `items`, until `visit` returns false.
    fn for_each(
        &mut self,
        items: &[usize],
        count: usize,
        visit: &mut dyn FnMut(&Self, GoSlice) -> bool,
    ) {
        if count >= 1 {
            self.arrays.push((Vec::new(), 0));
            self.extend(
                items,
                count,
                0,
                GoSlice { array: self.arrays.len() - 1, length: 0 },
                visit,
            );
        }
    }

    fn extend(
        &mut self,
        items: &[usize],
        count: usize,
        start: usize,
        prefix: GoSlice,
        visit: &mut dyn FnMut(&Self, GoSlice) -> bool,
    ) -> bool {
        if count == 0 {
            return visit(self, prefix);
        }
        let end = (items.len() + 1).saturating_sub(count);
        for (index, &zone) in items.iter().enumerate().take(end).skip(start) {
            let extended = self.append(prefix, zone);
            if !self.extend(items, count - 1, index + 1, extended, visit) {
                return false;
            }
        }
        true
    }

    /// Appends a zone to a slice as Go's `append` does. If the array is full, copies it to an array of twice the
    /// capacity, as Go does for small arrays.
    fn append(&mut self, slice: GoSlice, zone: usize) -> GoSlice {
        let length = slice.length + 1;
        let capacity = self.arrays.get(slice.array).map_or(0, |&(_, capacity)| capacity);
        let mut array = slice.array;
        if length > capacity {
            let copy = self.elements(slice);
            array = self.arrays.len();
            self.arrays.push((copy, (capacity * 2).max(1)));
        }
        if let Some((items, _)) = self.arrays.get_mut(array) {
            match items.get_mut(slice.length) {
                Some(item) => *item = zone,
                None => items.push(zone),
            }
        }
        GoSlice { array, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are the output of the same loop in Go. The test stores the first combination of four out of
    /// five elements, whose last element is overwritten by a later combination in the same array.
    #[test]
    fn stored_combination_is_overwritten_as_in_go() {
        let mut combinations = Combinations::default();
        let mut first = None;
        let mut seen = Vec::new();
        combinations.for_each(&[0, 1, 2, 3, 4], 4, &mut |lists, chosen| {
            first.get_or_insert(chosen);
            seen.push(lists.elements(chosen));
            true
        });
        assert_eq!(seen.len(), 5);
        assert_eq!(seen[0], [0, 1, 2, 3]);
        assert_eq!(combinations.elements(first.expect("four of five elements")), [0, 1, 2, 4]);
        let mut three = Combinations::default();
        let mut first = None;
        three.for_each(&[0, 1, 2, 3, 4], 3, &mut |_, chosen| {
            first.get_or_insert(chosen);
            true
        });
        assert_eq!(three.elements(first.expect("elements to combine")), [0, 1, 2]);
    }
}
