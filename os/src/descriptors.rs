//! Room for descriptors, before they are needed.

use std::fs::File;
use std::io;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Makes room for `count` descriptors in this process's table, or for as many as it may have.
///
/// The kernel doubles the table when it is full, at 256, 512, 1,024 and so on. In a process of
/// several threads whoever needs the next descriptor then waits for an RCU grace period
/// (`expand_fdtable` in fs/file.c): 7 to 14 ms on Linux 6.18, during which a worker does nothing else
/// and its accept queue overflows. A server that calls this before it starts its threads never
/// waits. The table takes some 8 bytes of the kernel's memory for each descriptor.
///
/// # Errors
/// Those of open(2) and fcntl(2): no descriptor is left, or no memory.
pub fn reserve_descriptors(count: usize) -> io::Result<()> {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = (count as u64).min(allowed);
    // A descriptor with the last number makes the table as large as that; it need not stay.
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    let any = File::open("/dev/null")?;
    drop(fcntl_dupfd_cloexec(&any, last)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_as_many_as_were_asked_for_or_are_allowed() {
        reserve_descriptors(1000).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<usize>().unwrap() >= 1000, "{size}");
        reserve_descriptors(usize::MAX).unwrap();
        reserve_descriptors(0).unwrap();
    }
}
