//! Figures of the machine and the cgroup: pressure, steal, throttling.

use super::field;

/// The time that some task was stalled, in microseconds since boot: the `some` line of a pressure file.
pub fn parse_pressure(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// The time that the hypervisor ran others, in clock ticks over all CPUs: `/proc/stat`.
pub fn parse_steal(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    line.split_ascii_whitespace().nth(7)?.parse().ok()
}

/// The time that the cgroup was throttled, in microseconds: `cpu.stat` of version 2, or of version 1.
pub fn parse_throttled(text: &str) -> Option<u64> {
    field(text, "throttled_usec")
        .or_else(|| field(text, "throttled_time").map(|nanos| nanos / 1_000))
}

/// The path of the cgroup for `controller` in `/proc/self/cgroup`, below the root of version 2 (or of the
/// controller's hierarchy in version 1).
pub fn parse_cgroup<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    let path = |line: &'a str, wanted: &dyn Fn(&str) -> bool| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        wanted(controllers).then_some(path)
    };
    let v1 = |controllers: &str| controllers.split(',').any(|name| name == controller);
    text.lines()
        .find_map(|line| path(line, &v1))
        .or_else(|| text.lines().find_map(|line| path(line, &str::is_empty)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let pressure =
            "some avg10=99.25 avg60=95.40 avg300=53.23 total=646\nfull avg10=0.00 total=1\n";
        assert_eq!(parse_pressure(pressure), Some(646));
        assert_eq!(parse_pressure("full total=1"), None);
        assert_eq!(parse_steal("cpu  1 2 3 4 5 6 7 8 9\ncpu0 1"), Some(8));
        assert_eq!(parse_steal("cpu  1 2"), None);
        assert_eq!(parse_throttled("nr_periods 1\nthrottled_usec 77\n"), Some(77));
        assert_eq!(parse_throttled("nr_periods 1\nthrottled_time 77000\n"), Some(77));
    }

    #[test]
    fn cgroups_of_both_versions() {
        let both = "2:cpu,cpuacct:/one\n0::/two\n";
        assert_eq!(parse_cgroup(both, "cpu"), Some("/one"));
        assert_eq!(parse_cgroup(both, "memory"), Some("/two"));
        assert_eq!(parse_cgroup("odd\n1:x", "memory"), None);
    }
}
