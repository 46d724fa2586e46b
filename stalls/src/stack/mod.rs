//! The stack of another thread, with names.
//!
//! [`signal`] copies registers and stack in the thread itself. If the thread is blocked, [`Stacks`] reads them from
//! /proc without interrupting it. Unwinding and naming happen on the thread of the watchdog.

pub(crate) mod signal;
mod symbols;
mod unwind;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::proc;
pub(crate) use signal::Registers;

/// How long a thread may take to answer a signal. A thread that waits for a CPU needs longer.
const SIGNAL_LIMIT: Duration = Duration::from_millis(20);

/// How much of a blocked thread's stack is read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// A stack, the innermost frame first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stack {
    /// Whether the thread was interrupted by a signal for it.
    pub by_signal: bool,
    /// Whether unwinding reached the end of the stack.
    pub is_complete: bool,
    /// At most 128 frames, and the functions inlined into them.
    pub frames: Vec<Frame>,
}

/// One function on a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Frame {
    /// The address of the instruction.
    pub address: u64,
    /// The name, if the program has symbols.
    pub function: Option<String>,
    /// File and line, if the program has debug information.
    pub location: Option<String>,
    /// The file name of the executable or library.
    pub module: Option<String>,
    /// The address in that file, as `addr2line` and `nm` have it: it is the same in each run of the program.
    pub offset: Option<u64>,
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.function {
            Some(function) => f.write_str(function)?,
            None => match (&self.module, self.offset) {
                (Some(module), Some(offset)) => write!(f, "{module}+{offset:#x}")?,
                (Some(module), None) => write!(f, "{:#x} in {module}", self.address)?,
                (None, _) => write!(f, "{:#x} in unknown memory", self.address)?,
            },
        }
        self.location.as_ref().map_or(Ok(()), |location| write!(f, " at {location}"))
    }
}

/// A thread of this process: its number, and what proves that the number still means the same thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadRef {
    pub(crate) tid: u32,
    /// When it began, in clock ticks since boot. 0 if /proc does not say.
    pub(crate) start_ticks: u64,
    /// What pthread_self returns on it. `stack` is the stack of this thread and of no other that runs.
    pub(crate) pthread: u64,
    pub(crate) stack: Range<u64>,
}

impl ThreadRef {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let stat = proc::read(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
        let start_ticks = proc::thread::parse_stat(&stat).map_or(0, |stat| stat.start_ticks);
        let (pthread, stack) = signal::stack_of_this_thread();
        Self { tid, start_ticks, pthread, stack }
    }
}

/// Takes stacks. Belongs to the thread of the watchdog.
pub(crate) struct Stacks {
    memory: io::Result<File>,
    unwinder: unwind::Unwind,
    symbols: Option<symbols::Symbols>,
}

impl Stacks {
    /// `symbol_bytes_max`: as in [`Config`](crate::Config::symbol_bytes_max).
    pub(crate) fn new(symbol_bytes_max: usize) -> Self {
        let mut stacks = Self {
            memory: File::open("/proc/self/mem"),
            unwinder: unwind::Unwind::new(),
            symbols: (symbol_bytes_max > 0).then(|| symbols::Symbols::new(symbol_bytes_max)),
        };
        stacks.unwinder.load_modules(); // takes some milliseconds, and there is no stall yet
        stacks
    }

    /// Drops symbols that are not used any more.
    pub(crate) fn drop_unused_symbols(&mut self) {
        self.symbols.iter_mut().for_each(symbols::Symbols::drop_unused);
    }

    /// Which symbols were not read, and why.
    pub(crate) fn unseen(&self) -> &[String] {
        self.symbols.as_ref().map_or(&[], |symbols| &symbols.unseen)
    }

    /// The memory of this process as a file.
    pub(crate) fn memory(&self) -> io::Result<&File> {
        let error =
            |error: &io::Error| io::Error::new(error.kind(), format!("/proc/self/mem: {error}"));
        self.memory.as_ref().map_err(error)
    }

    /// A copy of the stack of a thread that is blocked in a system call, without interrupting it. It has no names yet:
    /// see [`named`](Self::named).
    ///
    /// The registers other than `pc` and `sp` are unknown. The frame pointer is guessed, and on aarch64 there is one
    /// frame.
    /// The thread may run on meanwhile. Then the stack may end early or name functions that have returned, but no
    /// read can fail badly: it goes through the kernel.
    pub(crate) fn copy_blocked(
        &self,
        thread: &ThreadRef,
        pc: u64,
        sp: u64,
    ) -> io::Result<Registers> {
        let memory = self.memory()?;
        // What follows the stack is other memory. On a stack of its own, of a coroutine, the end is unknown.
        let left = if thread.stack.contains(&sp) { thread.stack.end - sp } else { u64::MAX };
        let mut bytes = vec![0; READ_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX))];
        let read = memory.read_at(&mut bytes, sp)?;
        let words =
            bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        Ok(Registers { pc, sp, words, ..Registers::default() })
    }

    /// A copy of the stack of a running thread, by a signal. It has no names yet: see [`named`](Self::named).
    ///
    /// The caller has just seen that the thread runs and is still the same, see
    /// [`Examiner`](crate::examine::Examiner).
    pub(crate) fn copy_by_signal(signal: i32, thread: &ThreadRef) -> io::Result<Registers> {
        signal::capture(signal, thread, SIGNAL_LIMIT)
    }

    pub(crate) fn named(&mut self, registers: &Registers, by_signal: bool) -> Stack {
        let unwound = match by_signal {
            true => self.unwinder.unwind(registers),
            false => {
                let memory = self.memory.as_ref().ok();
                self.unwinder.unwind_without_frame_pointer(registers, memory)
            }
        };
        let frames = match &mut self.symbols {
            Some(symbols) => symbols.name(&self.unwinder.modules, &unwound.addresses),
            None => unwound
                .addresses
                .iter()
                .map(|&address| Frame { address, ..Frame::default() })
                .collect(),
        };
        Stack { by_signal, is_complete: unwound.is_complete, frames }
    }
}
