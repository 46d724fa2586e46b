//! Room for descriptors, before they are needed.

use std::io;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// Makes room for `count` descriptors in this process's table, or for as many as the limit allows.
///
/// The kernel doubles the table when it is full, at 256, 512, 1,024 and so on. In a process with several threads,
/// the thread that needs the next descriptor then waits for an RCU grace period (`expand_fdtable` in fs/file.c).
/// That takes 7 to 14 ms on Linux 6.18. A worker does nothing else meanwhile, and its accept queue overflows. A
/// server that calls this before it starts its threads never waits. The table takes about 8 bytes of the kernel's
/// memory for each descriptor.
///
/// # Errors
/// Those of eventfd(2) and fcntl(2): no descriptor is left, or no memory.
pub fn reserve_descriptors(count: usize) -> io::Result<()> {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = (count as u64).min(allowed);
    // A descriptor with the last number makes the table that large. It need not stay open.
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    let any = eventfd(0, EventfdFlags::CLOEXEC)?;
    match fcntl_dupfd_cloexec(&any, last) {
        // The last number is taken, so the table is that large.
        Ok(_) | Err(Errno::MFILE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Rlimit, setrlimit};

    use super::*;

    #[test]
    fn the_table_has_room_for_the_count_or_for_the_limit() {
        reserve_descriptors(1000).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<usize>().unwrap() >= 1000, "{size}");
        reserve_descriptors(0).unwrap();
        // More than the other tests need, and less than would take gigabytes of the kernel's memory.
        let limit = Rlimit { current: Some(2000), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        reserve_descriptors(usize::MAX).unwrap();
        let _last = fcntl_dupfd_cloexec(io::stderr(), 1999).unwrap();
        reserve_descriptors(usize::MAX).expect("the table already has the size of the limit");
    }
}
