//! How much memory the process may use.

use std::fs;

use crate::proc_field;

/// How much memory this process may use, in bytes: that of the machine, or the limit of its cgroup if that is
/// lower (`memory.max` of version 2, of the cgroup and of its parents). `None` if `/proc` does not say.
pub fn memory_bytes() -> Option<u64> {
    let machine = proc_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok();
    let cgroup = cgroup.and_then(|groups| groups.lines().find_map(v2_path).map(str::to_owned));
    let mut limit = machine;
    // The limits of the cgroup and of its parents.
    let mut path = cgroup.unwrap_or_default();
    loop {
        let max = fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max"));
        limit =
            max.ok().and_then(|max| max.trim().parse().ok()).map_or(limit, |max| limit.min(max));
        let Some(parent) = path.rfind('/') else { return Some(limit) };
        path.truncate(parent);
    }
}

/// The path of the cgroup in the hierarchy of version 2 (cgroups(7)).
fn v2_path(line: &str) -> Option<&str> {
    line.strip_prefix("0::").map(|path| path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        assert_eq!(v2_path("0::/"), Some(""));
        assert_eq!(v2_path("0::/a/b"), Some("/a/b"));
        assert_eq!(v2_path("4:memory:/a"), None);
        assert!(memory_bytes().unwrap() > 1 << 20);
    }
}
