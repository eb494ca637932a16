//! Memory and CPU time of a process, read from `/proc`.

#![expect(clippy::disallowed_methods, reason = "the benchmark reads the processes of this machine")]

use std::fs;

use anyhow::{Context, Result};

/// Memory in MiB, and CPU time since the start of the process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    pub(crate) resident: f64,
    pub(crate) anonymous: f64,
    /// Peak of `resident`.
    pub(crate) peak_resident: f64,
    pub(crate) cpu_seconds: f64,
}

impl Usage {
    /// Reads the values of a process by process id.
    pub(crate) fn of_process(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| path.clone())
        };
        Self::parse(&read("status")?, &read("stat")?).with_context(|| format!("/proc/{pid}"))
    }

    fn parse(status: &str, stat: &str) -> Result<Self> {
        let mib = |key: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            let kib: f64 = kib.with_context(|| format!("no {key} in status"))?.parse()?;
            Ok(kib / 1024.0)
        };
        // The process name in parentheses can contain any character.
        let (_, fields) = stat.rsplit_once(')').context("stat has no process name")?;
        let mut times = fields.split_whitespace().skip(11);
        let mut ticks =
            || -> Result<f64> { Ok(times.next().context("stat has too few fields")?.parse()?) };
        let cpu_seconds = (ticks()? + ticks()?) / 100.0;
        let (resident, anonymous, most) = (mib("VmRSS")?, mib("RssAnon")?, mib("VmHWM")?);
        Ok(Self { resident, anonymous, peak_resident: most, cpu_seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tberth-agent\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nRssAnon:\t    3072 kB\n";

    #[test]
    fn usage_is_parsed() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 9 9 20 0 3 0 77 1000 200 18446744";
        let usage = Usage { resident: 10.0, anonymous: 3.0, peak_resident: 20.0, cpu_seconds: 2.0 };
        assert_eq!(Usage::parse(STATUS, stat).unwrap(), usage);
        // A terminated process has no memory values.
        let error = Usage::parse("Name:\tberth-agent\n", stat).unwrap_err();
        assert!(error.to_string().contains("VmRSS"), "{error}");
    }
}
