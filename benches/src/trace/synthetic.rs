//! Generates VMs with the statistics of the Azure trace, for runs without the trace.
//!
//! The fractions below, and the quantiles in the test, are from a sample of 1 % of the VMs (CoSpot, `bernoulli-0`).
//! Consecutive requests often have the same type (a Markov chain), all VMs of a tenant start together, and the
//! arrival rate depends on the time of day.

use std::f64::consts::TAU;

use fastrand::Rng;

use super::arrivals::{Trace, Vm};

/// Length of the trace in days.
const TRACE_DAYS: f64 = 14.0;
/// Mean number of VMs that start per hour.
const VMS_PER_HOUR: f64 = 134.0;
/// Amplitude of the daily change of the arrival rate, as a fraction of the mean rate.
const DAILY_AMPLITUDE: f64 = 0.45;
/// Probability that the next VM has the type of the previous VM without a new draw. Otherwise the type is drawn
/// again, and may be the same.
const SAME_TYPE_PROBABILITY: f64 = 0.904;
/// Number of VMs that run since the beginning of the trace: 16 % of the number of VMs that start later.
const INITIAL_VMS: usize = 7_200;
/// Fraction of [`INITIAL_VMS`] that run until the end of the trace.
const NEVER_STOPPING_INITIAL_FRACTION: f64 = 0.57;
/// Median lifetime of a VM in minutes. The lifetime has a lognormal distribution.
const MEDIAN_LIFETIME_MINUTES: f64 = 34.0;
/// Sigma of the lognormal distribution of the lifetime.
const LIFETIME_SIGMA: f64 = 1.9;
/// Fraction of the VMs that start during the trace and never stop.
const NEVER_STOPS_PROBABILITY: f64 = 0.03;
const SINGLE_VM_TENANT_FRACTION: f64 = 0.89;
/// Probability that a tenant with several VMs has one more VM, so the number of VMs has a geometric distribution.
const ANOTHER_VM_PROBABILITY: f64 = 0.52;
/// Fraction of tenants with very many VMs.
const LARGE_TENANT_FRACTION: f64 = 0.002;
/// Maximum number of VMs of a tenant.
const MAX_VMS_PER_TENANT: u64 = 200;

/// Cores of a VM in units of the trace, and the fraction of VMs with this value. Some VMs of the trace have less
/// than a core (100 units).
const CORE_DISTRIBUTION: [(f64, f64); 10] = [
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
/// Units of memory per unit of cores, and the fraction of VMs with this ratio.
const MEMORY_RATIO_DISTRIBUTION: [(f64, f64); 8] = [
    (0.14, 0.56),
    (0.32, 0.17),
    (0.08, 0.08),
    (0.28, 0.055),
    (0.20, 0.047),
    (0.17, 0.038),
    (0.64, 0.027),
    (0.16, 0.023),
];

/// Returns the VMs of two weeks. The same seed always results in the same VMs.
pub(super) fn generate_trace(seed: u64) -> Trace {
    let mut generator = Generator {
        rng: Rng::with_seed(seed),
        vm_type: (100.0, 0.14),
        tenants: 0,
        vms: Vec::new(),
    };
    while generator.vms.len() < INITIAL_VMS {
        generator.add_tenant(-1.0);
    }
    let mut day = 0.0;
    let max_arrival_rate = VMS_PER_HOUR * 24.0 * (1.0 + DAILY_AMPLITUDE) / mean_vms_per_tenant();
    loop {
        // Thinning of a Poisson process: draws arrivals at the maximum rate, and drops some of them depending on
        // the hour.
        day -= (1.0 - generator.rng.f64()).ln() / max_arrival_rate;
        if day >= TRACE_DAYS {
            break;
        }
        if generator.rng.f64() * (1.0 + DAILY_AMPLITUDE) < 1.0 + DAILY_AMPLITUDE * (TAU * day).sin()
        {
            generator.add_tenant(day);
        }
    }
    Trace::new("synthetic".to_owned(), generator.vms)
}

fn mean_vms_per_tenant() -> f64 {
    let more = 1.0 + 1.0 / (1.0 - ANOTHER_VM_PROBABILITY);
    let huge = f64::from(u32::try_from(MAX_VMS_PER_TENANT).unwrap_or(0)) / 2.0;
    SINGLE_VM_TENANT_FRACTION
        + (1.0 - SINGLE_VM_TENANT_FRACTION - LARGE_TENANT_FRACTION) * more
        + LARGE_TENANT_FRACTION * huge
}

struct Generator {
    rng: Rng,
    vm_type: (f64, f64),
    tenants: u64,
    vms: Vec<Vm>,
}

impl Generator {
    fn add_tenant(&mut self, day: f64) {
        self.tenants += 1;
        for _ in 0..self.tenant_size() {
            if self.rng.f64() >= SAME_TYPE_PROBABILITY {
                self.vm_type =
                    (self.sample(&CORE_DISTRIBUTION), self.sample(&MEMORY_RATIO_DISTRIBUTION));
            }
            let end =
                if day < 0.0 { self.initial_vm_end() } else { day + self.lifetime() / 24.0 / 60.0 };
            let (cores, ratio) = self.vm_type;
            self.vms.extend(Vm::new(self.tenants, cores, cores * ratio, day, end));
        }
    }

    fn sample(&mut self, parts: &[(f64, f64)]) -> f64 {
        let all: f64 = parts.iter().map(|(_, part)| part).sum();
        let mut remaining = self.rng.f64() * all;
        let found = parts.iter().find(|(_, part)| {
            remaining -= part;
            remaining < 0.0
        });
        found.or_else(|| parts.first()).map_or(100.0, |(value, _)| *value)
    }

    fn tenant_size(&mut self) -> u64 {
        let chance = self.rng.f64();
        if chance < SINGLE_VM_TENANT_FRACTION {
            return 1;
        }
        if chance >= 1.0 - LARGE_TENANT_FRACTION {
            return self.rng.u64(6..=MAX_VMS_PER_TENANT);
        }
        let mut vms = 2;
        while vms < MAX_VMS_PER_TENANT && self.rng.f64() < ANOTHER_VM_PROBABILITY {
            vms += 1;
        }
        vms
    }

    /// Returns a lifetime in minutes.
    fn lifetime(&mut self) -> f64 {
        if self.rng.f64() < NEVER_STOPS_PROBABILITY {
            return f64::INFINITY;
        }
        // Box-Muller transform, which returns a normally distributed number.
        let (u, v) = (1.0 - self.rng.f64(), self.rng.f64());
        MEDIAN_LIFETIME_MINUTES * (LIFETIME_SIGMA * (-2.0 * u.ln()).sqrt() * (TAU * v).cos()).exp()
    }

    fn initial_vm_end(&mut self) -> f64 {
        if self.rng.f64() < NEVER_STOPPING_INITIAL_FRACTION {
            f64::INFINITY
        } else {
            self.rng.f64() * TRACE_DAYS
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns the maximum difference between two cumulative distributions, at the points of `measured`: that of
    /// the generated `values`, and that of the trace.
    fn distance(values: &[f64], measured: &[(f64, f64)]) -> f64 {
        let below = |most: f64| {
            values.iter().filter(|value| **value <= most).count() as f64 / values.len() as f64
        };
        measured.iter().map(|(value, part)| (below(*value) - part).abs()).fold(0.0, f64::max)
    }

    fn arrived_vms() -> Vec<Vm> {
        generate_trace(1).vms.into_iter().filter(|vm| vm.start >= 0.0).collect()
    }

    #[test]
    fn lifetimes_are_as_measured() {
        let minutes: Vec<f64> =
            arrived_vms().iter().map(|vm| (vm.end - vm.start) * 24.0 * 60.0).collect();
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
        let vms = arrived_vms();
        // CPUs of VMs with one core or less, and with 2, 4, 8 and 16 cores. A core has two CPUs.
        let cpus: Vec<f64> = vms.iter().map(|vm| f64::from(vm.size.cpus)).collect();
        let measured = [(2.0, 0.38), (4.0, 0.63), (8.0, 0.78), (16.0, 0.94), (32.0, 0.995)];
        let difference = distance(&cpus, &measured);
        assert!(difference < 0.05, "CPUs: {difference}");
        let whole = vms.iter().filter(|vm| vm.size.cpus >= 4);
        let ratios: Vec<f64> =
            whole.map(|vm| vm.size.gib as f64 / f64::from(vm.size.cpus / 2)).collect();
        let difference = distance(&ratios, &[(2.0, 0.08), (4.6, 0.73), (8.0, 0.97)]);
        assert!(difference < 0.05, "GiB for a core: {difference}");
    }

    #[test]
    fn tenants_and_runs_are_as_measured() {
        let vms = arrived_vms();
        let mut tenants: BTreeMap<u64, u32> = BTreeMap::new();
        for vm in &vms {
            *tenants.entry(vm.tenant).or_default() += 1;
        }
        let groups: Vec<f64> = tenants.values().map(|vms| f64::from(*vms)).collect();
        let difference = distance(&groups, &[(1.0, 0.89), (5.0, 0.99), (200.0, 1.0)]);
        assert!(difference < 0.05, "{difference}");
        let same = vms.windows(2).filter(|pair| {
            pair[0].size.cpus == pair[1].size.cpus && pair[0].size.gib == pair[1].size.gib
        });
        let same = same.count() as f64 / vms.len() as f64;
        assert!((same - 0.91).abs() < 0.05, "{same}");
    }

    #[test]
    fn arrival_rate_depends_on_the_time_of_day() {
        let mut hours = vec![0.0_f64; 14 * 24];
        for vm in arrived_vms() {
            let hour = (0..hours.len()).rfind(|hour| *hour as f64 / 24.0 <= vm.start).unwrap();
            hours[hour] += 1.0;
        }
        let mean = hours.iter().sum::<f64>() / hours.len() as f64;
        assert!((mean / 134.0 - 1.0).abs() < 0.05, "{mean} an hour");
        let at = |hour: usize| hours.iter().skip(hour).step_by(24).sum::<f64>() / 14.0;
        assert!(at(5) > mean * 1.2 && at(17) < mean * 0.8, "{} {}", at(5), at(17));
    }
}
