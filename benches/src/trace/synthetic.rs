//! Generates VMs with the statistics of the Azure trace, for use without the trace.
//!
//! The statistics are from a 1 % sample by VM (CoSpot, `bernoulli-0`): the shares below, and the quantiles in the
//! test. Requests come in series of one type (a Markov chain), all VMs of a tenant start at the same time, and the
//! arrival rate depends on the time of day.

use std::f64::consts::TAU;

use fastrand::Rng;

use super::arrivals::{Trace, Vm};

/// Length of the trace in days.
const DAYS: f64 = 14.0;
/// VMs per hour, and relative amplitude of the daily change.
const PER_HOUR: f64 = 134.0;
const DAILY: f64 = 0.45;
/// Probability that the next VM keeps the type of the previous VM. Otherwise the type is drawn again, and the draw
/// can return the same type.
const STAYS: f64 = 0.904;
/// Number of VMs that run from the beginning (16 % of the arriving VMs), and the part of these VMs that runs to the
/// end.
const AT_FIRST: usize = 7_200;
const STAY_TO_THE_END: f64 = 0.57;
/// Lifetime of a VM: median in minutes and sigma of a lognormal distribution, and the part of VMs that never stop.
const MEDIAN: f64 = 34.0;
const SIGMA: f64 = 1.9;
const FOREVER: f64 = 0.03;
/// Part of tenants with one VM. For the other tenants the number of VMs has a geometric distribution, and a few
/// tenants have very many VMs.
const ALONE: f64 = 0.89;
const ONE_MORE: f64 = 0.52;
const HUGE: f64 = 0.002;
const MOST: u64 = 200;

/// Cores of a VM in units of the trace, and the part of all VMs. The trace has VMs with less than a core too.
const CORES: [(f64, f64); 10] = [
    (100.0, 0.27),
    (200.0, 0.25),
    (400.0, 0.155),
    (800.0, 0.16),
    (1600.0, 0.056),
    (2400.0, 0.004),
    (2000.0, 0.001),
    (42.0, 0.04),
    (80.0, 0.034),
    (20.0, 0.03),
];
/// Units of memory for each unit of cores, and the part of all VMs.
const RATIOS: [(f64, f64); 8] = [
    (0.14, 0.56),
    (0.32, 0.17),
    (0.08, 0.08),
    (0.28, 0.055),
    (0.20, 0.047),
    (0.17, 0.038),
    (0.64, 0.027),
    (0.16, 0.023),
];

/// Returns the VMs of two weeks. The same seed returns the same VMs.
pub(super) fn trace(seed: u64) -> Trace {
    let mut made =
        Made { rng: Rng::with_seed(seed), kind: (100.0, 0.14), tenants: 0, vms: Vec::new() };
    while made.vms.len() < AT_FIRST {
        made.tenant(-1.0);
    }
    let mut day = 0.0;
    let most = PER_HOUR * 24.0 * (1.0 + DAILY) / vms_a_tenant();
    loop {
        // Thinning of a Poisson process: draws arrivals at the highest rate and keeps a part that depends on the
        // hour.
        day -= (1.0 - made.rng.f64()).ln() / most;
        if day >= DAYS {
            break;
        }
        if made.rng.f64() * (1.0 + DAILY) < 1.0 + DAILY * (TAU * day).sin() {
            made.tenant(day);
        }
    }
    Trace::new("synthetic".to_owned(), made.vms)
}

fn vms_a_tenant() -> f64 {
    let more = 1.0 + 1.0 / (1.0 - ONE_MORE);
    let huge = f64::from(u32::try_from(MOST).unwrap_or(0)) / 2.0;
    ALONE + (1.0 - ALONE - HUGE) * more + HUGE * huge
}

struct Made {
    rng: Rng,
    kind: (f64, f64),
    tenants: u64,
    vms: Vec<Vm>,
}

impl Made {
    fn tenant(&mut self, day: f64) {
        self.tenants += 1;
        for _ in 0..self.group() {
            if self.rng.f64() >= STAYS {
                self.kind = (self.one_of(&CORES), self.one_of(&RATIOS));
            }
            let end = if day < 0.0 { self.rest() } else { day + self.lifetime() / 24.0 / 60.0 };
            let (cores, ratio) = self.kind;
            self.vms.extend(Vm::new(self.tenants, cores, cores * ratio, day, end));
        }
    }

    fn one_of(&mut self, parts: &[(f64, f64)]) -> f64 {
        let all: f64 = parts.iter().map(|(_, part)| part).sum();
        let mut left = self.rng.f64() * all;
        let found = parts.iter().find(|(_, part)| {
            left -= part;
            left < 0.0
        });
        found.or_else(|| parts.first()).map_or(100.0, |(value, _)| *value)
    }

    fn group(&mut self) -> u64 {
        let chance = self.rng.f64();
        if chance < ALONE {
            return 1;
        }
        if chance >= 1.0 - HUGE {
            return self.rng.u64(6..=MOST);
        }
        let mut vms = 2;
        while vms < MOST && self.rng.f64() < ONE_MORE {
            vms += 1;
        }
        vms
    }

    /// Returns a lifetime in minutes.
    fn lifetime(&mut self) -> f64 {
        if self.rng.f64() < FOREVER {
            return f64::INFINITY;
        }
        // Box-Muller transform.
        let (u, v) = (1.0 - self.rng.f64(), self.rng.f64());
        MEDIAN * (SIGMA * (-2.0 * u.ln()).sqrt() * (TAU * v).cos()).exp()
    }

    fn rest(&mut self) -> f64 {
        if self.rng.f64() < STAY_TO_THE_END { f64::INFINITY } else { self.rng.f64() * DAYS }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns the largest difference between the measured distribution and the generated distribution at the
    /// measured points.
    fn distance(values: &[f64], measured: &[(f64, f64)]) -> f64 {
        let below = |most: f64| {
            values.iter().filter(|value| **value <= most).count() as f64 / values.len() as f64
        };
        measured.iter().map(|(value, part)| (below(*value) - part).abs()).fold(0.0, f64::max)
    }

    fn arrived() -> Vec<Vm> {
        trace(1).vms.into_iter().filter(|vm| vm.start >= 0.0).collect()
    }

    #[test]
    fn lifetimes_are_as_measured() {
        let minutes: Vec<f64> =
            arrived().iter().map(|vm| (vm.end - vm.start) * 24.0 * 60.0).collect();
        let measured = [
            (3.3, 0.10),
            (10.7, 0.25),
            (34.0, 0.50),
            (134.0, 0.75),
            (788.0, 0.90),
            (1_514.0, 0.95),
            (11_220.0, 0.99),
        ];
        let distance = distance(&minutes, &measured);
        assert!(distance < 0.05, "{distance}");
    }

    #[test]
    fn sizes_are_as_measured() {
        let vms = arrived();
        // CPUs of VMs with one core (including VMs with less than a core), 2, 4, 8 and 16 cores.
        let cpus: Vec<f64> = vms.iter().map(|vm| f64::from(vm.size.cpus)).collect();
        let measured = [(2.0, 0.38), (4.0, 0.63), (8.0, 0.78), (16.0, 0.94), (32.0, 0.995)];
        let far = distance(&cpus, &measured);
        assert!(far < 0.05, "CPUs: {far}");
        let whole = vms.iter().filter(|vm| vm.size.cpus >= 4);
        let ratios: Vec<f64> =
            whole.map(|vm| vm.size.gib as f64 / f64::from(vm.size.cpus / 2)).collect();
        let far = distance(&ratios, &[(2.0, 0.08), (4.6, 0.73), (8.0, 0.97)]);
        assert!(far < 0.05, "GiB for a core: {far}");
    }

    #[test]
    fn tenants_and_runs_are_as_measured() {
        let vms = arrived();
        let mut tenants: BTreeMap<u64, u32> = BTreeMap::new();
        for vm in &vms {
            *tenants.entry(vm.tenant).or_default() += 1;
        }
        let groups: Vec<f64> = tenants.values().map(|vms| f64::from(*vms)).collect();
        let far = distance(&groups, &[(1.0, 0.89), (5.0, 0.99), (200.0, 1.0)]);
        assert!(far < 0.05, "{far}");
        let same = vms.windows(2).filter(|pair| {
            pair[0].size.cpus == pair[1].size.cpus && pair[0].size.gib == pair[1].size.gib
        });
        let same = same.count() as f64 / vms.len() as f64;
        assert!((same - 0.91).abs() < 0.05, "{same}");
    }

    #[test]
    fn arrivals_follow_the_day() {
        let mut hours = vec![0.0_f64; 14 * 24];
        for vm in arrived() {
            let hour = (0..hours.len()).rfind(|hour| *hour as f64 / 24.0 <= vm.start).unwrap();
            hours[hour] += 1.0;
        }
        let mean = hours.iter().sum::<f64>() / hours.len() as f64;
        assert!((mean / 134.0 - 1.0).abs() < 0.05, "{mean} an hour");
        let at = |hour: usize| hours.iter().skip(hour).step_by(24).sum::<f64>() / 14.0;
        assert!(at(5) > mean * 1.2 && at(17) < mean * 0.8, "{} {}", at(5), at(17));
    }
}
