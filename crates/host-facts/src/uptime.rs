//! Time since the boot of the host, from `/proc/uptime` (proc(5)).

use std::time::Duration;

use crate::root::Root;

/// Returns the time since the boot of the host; `None` if the file cannot be read. Its resolution is hundredths of a
/// second.
#[must_use]
pub fn read_uptime(root: &Root) -> Option<Duration> {
    parse_uptime(&root.read("proc/uptime").ok()?)
}

fn parse_uptime(text: &str) -> Option<Duration> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_the_first_number() {
        assert_eq!(parse_uptime("101.99 200.00\n"), Some(Duration::from_millis(101_990)));
    }

    #[test]
    fn malformed_uptime_is_unknown() {
        for text in ["", "\n", "soon", "-1.00 2.00", "nan", "inf", "1e300"] {
            assert_eq!(parse_uptime(text), None, "{text:?}");
        }
    }
}
