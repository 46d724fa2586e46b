//! The files of a thread: `stat`, `schedstat`, `syscall`, `stack`.

use serde::{Deserialize, Serialize};

/// What `stat` says. Times are clock ticks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stat {
    /// The name of the thread.
    pub name: String,
    /// `R` running or runnable, `S` sleeping, `D` sleeping without interruption, and others.
    pub state: char,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Time in the kernel.
    pub system_ticks: u64,
    /// When the thread began, after boot.
    pub start_ticks: u64,
}

/// Parses `stat`. The name is in parentheses and may contain any byte, also parentheses.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    // Field 3 of proc_pid_stat(5) is the first after the name.
    let number = |field: usize| fields.get(field - 3)?.parse().ok();
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        minor_faults: number(10)?,
        major_faults: number(12)?,
        system_ticks: number(15)?,
        start_ticks: number(22)?,
    })
}

/// Whether `state` is that of a thread which a signal (`T`) or a debugger (`t`) has stopped, or which has ended. That
/// it does nothing is no stall.
pub fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't' | 'Z' | 'X' | 'x')
}

/// Time on a CPU, and time that the thread was runnable and waited for one, in nanoseconds: `schedstat`.
pub fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// What `syscall` says of a blocked thread.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Syscall {
    /// The number of the system call; -1 if the thread is blocked outside of one, in a page fault.
    pub number: i64,
    /// Its name, of those that block often.
    pub name: Option<String>,
    /// Its first argument: for most calls a descriptor.
    pub first_argument: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The instruction pointer.
    pub pc: u64,
}

/// Parses `syscall`. `None` if the thread runs, or the file is empty.
pub fn parse_syscall(text: &str) -> Option<Syscall> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let number = fields.first()?.parse().ok()?;
    let [.., sp, pc] = fields[..] else { return None };
    let first_argument = if fields.len() > 3 { hex(fields[1])? } else { 0 };
    Some(Syscall {
        number,
        name: syscall_name(number).map(str::to_owned),
        first_argument,
        sp: hex(sp)?,
        pc: hex(pc)?,
    })
}

/// The functions of `stack`, the innermost first, at most 32.
pub fn parse_kernel_stack(text: &str) -> Vec<String> {
    let function = |line: &str| Some(line.rsplit(' ').next()?.split('+').next()?.to_owned());
    text.lines().filter_map(function).filter(|name| !name.is_empty()).take(32).collect()
}

/// What a thread does, by `syscall`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// It runs or is runnable: in the program, or in the kernel.
    Running,
    /// It is blocked in a system call or a page fault.
    Blocked(Syscall),
    /// The text does not say.
    Unknown,
}

/// Parses `syscall`. Only the kernel's own word means that the thread runs: a text that is empty or odd is
/// [`Unknown`](Activity::Unknown).
pub fn parse_activity(text: &str) -> Activity {
    if text.trim_end() == "running" {
        return Activity::Running;
    }
    parse_syscall(text).map_or(Activity::Unknown, Activity::Blocked)
}

/// Whether the thread blocks `signal` (from 1 to 64), by `SigBlk` in `status`. `None` if the text does not say.
pub fn parse_blocks_signal(text: &str, signal: i32) -> Option<bool> {
    let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let bit = u32::try_from(signal).ok()?.checked_sub(1)?;
    Some(mask.checked_shr(bit)? & 1 == 1)
}

fn syscall_name(number: i64) -> Option<&'static str> {
    let numbers = [
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_readv, "readv"),
        (libc::SYS_writev, "writev"),
        (libc::SYS_pread64, "pread64"),
        (libc::SYS_pwrite64, "pwrite64"),
        (libc::SYS_recvfrom, "recvfrom"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_connect, "connect"),
        (libc::SYS_accept, "accept"),
        (libc::SYS_accept4, "accept4"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_close, "close"),
        (libc::SYS_flock, "flock"),
        (libc::SYS_fcntl, "fcntl"),
        (libc::SYS_fsync, "fsync"),
        (libc::SYS_fdatasync, "fdatasync"),
        (libc::SYS_wait4, "wait4"),
        (libc::SYS_waitid, "waitid"),
        (libc::SYS_restart_syscall, "restart_syscall"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_nanosleep, "nanosleep"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_pselect6, "pselect6"),
        (libc::SYS_epoll_pwait, "epoll_pwait"),
        (libc::SYS_epoll_pwait2, "epoll_pwait2"),
        (libc::SYS_io_uring_enter, "io_uring_enter"),
        (libc::SYS_io_getevents, "io_getevents"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_select, "select"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_pause, "pause"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait"),
    ];
    numbers.into_iter().find(|(known, _)| *known == number).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "25299 (a) b) R 25296 25296 11734 0 -1 4194304 51 0 3 0 7 8 0 0 20 0 1 0 1420069 180224 0";

    #[test]
    fn stat_of_a_name_with_a_parenthesis() {
        let stat = parse_stat(STAT).unwrap();
        assert_eq!((stat.name.as_str(), stat.state, stat.start_ticks), ("a) b", 'R', 1_420_069));
        assert_eq!((stat.minor_faults, stat.major_faults, stat.system_ticks), (51, 3, 8));
    }

    #[test]
    fn whatever_is_cut_off_is_none() {
        for cut in 0..STAT.rfind(" 1420069").unwrap() {
            assert_eq!(parse_stat(&STAT[..cut]), None, "{cut}");
        }
        for text in ["", "1", "x y", "1 -2", "18446744073709551616 1"] {
            assert_eq!(parse_schedstat(text), None, "{text}");
        }
        assert_eq!(parse_schedstat("709842 7649009 2\n"), Some((709_842, 7_649_009)));
        for text in ["", "running\n", "1", "1 2", "1 0x1", "-1 sp 0x1", "1 z 0x0 0x0 0x0"] {
            assert_eq!(parse_syscall(text), None, "{text}");
        }
    }

    #[test]
    fn a_blocked_write_and_a_page_fault() {
        let text = format!("{} 0x2 0x7f 0x1 0x0 0x0 0x0 0x7ffd10 0x7f20", libc::SYS_write);
        let call = parse_syscall(&text).unwrap();
        assert_eq!(
            (call.name.as_deref(), call.first_argument, call.sp, call.pc),
            (Some("write"), 2, 0x7F_FD10, 0x7F20)
        );
        assert_eq!(
            parse_syscall("-1 0x10 0x20").map(|call| (call.number, call.sp, call.pc)),
            Some((-1, 16, 32))
        );
    }

    #[test]
    fn only_the_word_of_the_kernel_means_running() {
        assert_eq!(parse_activity("running\n"), Activity::Running);
        for text in ["", "\n", "runnin", "running 1", "R", "1"] {
            assert_eq!(parse_activity(text), Activity::Unknown, "{text}");
        }
        let blocked = parse_activity("-1 0x10 0x20");
        assert!(matches!(blocked, Activity::Blocked(call) if call.number == -1));
    }

    #[test]
    fn blocked_signals() {
        let text = "SigPnd:\t0000000000000000\nSigBlk:\t8000000000400000\n";
        assert_eq!(parse_blocks_signal(text, 23), Some(true));
        assert_eq!(parse_blocks_signal(text, 22), Some(false));
        assert_eq!(parse_blocks_signal(text, 64), Some(true));
        for signal in [i32::MIN, -1, 0, 65, i32::MAX] {
            assert_eq!(parse_blocks_signal(text, signal), None, "{signal}");
        }
        assert_eq!(parse_blocks_signal("SigBlk:\tz\n", 23), None);
        assert_eq!(parse_blocks_signal("", 23), None);
    }

    #[test]
    fn kernel_stacks() {
        let text = "[<0>] anon_pipe_write+0x110/0x310\n[<0>] vfs_write+0x1/0x2\n\n";
        assert_eq!(parse_kernel_stack(text), ["anon_pipe_write", "vfs_write"]);
    }
}
