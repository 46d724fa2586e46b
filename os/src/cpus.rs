//! The CPUs that a thread may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the calling thread may use, in order (sched_getaffinity(2)): those of its cgroup and of `taskset`.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput): the machine has more than 1,024 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Lets the calling thread use this CPU alone (sched_setaffinity(2)). Threads that it starts from then on inherit that, also
/// those of io_uring.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput): the thread may not use the CPU, or there is no such CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_pinned() {
        let pinned = std::thread::spawn(|| {
            let all = allowed_cpus().unwrap();
            for cpu in [all[0], all[all.len() - 1]] {
                let mut before = CpuSet::new();
                all.iter().for_each(|cpu| before.set(*cpu));
                sched_setaffinity(None, &before).unwrap();
                pin_to_cpu(cpu).unwrap();
                assert_eq!(allowed_cpus().unwrap(), [cpu]);
                let inherited = std::thread::spawn(|| allowed_cpus().unwrap());
                assert_eq!(inherited.join().unwrap(), [cpu]);
            }
            for absent in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
                assert_eq!(pin_to_cpu(absent).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
        });
        pinned.join().unwrap();
    }
}
