//! Registers and stack of another thread, by a signal. All unsafe code of this crate is here.
//!
//! One capture at a time: the watchdog writes a request into statics, sends the signal, and reads the answer from
//! statics. The handler makes one system call (gettid), takes no lock, allocates nothing and uses no thread-local.
//! A signal that is late finds no request and does nothing.
#![allow(
    unsafe_code,
    reason = "signals, the stack of a thread, and three system calls without a safe wrapper"
)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// How much of a stack is copied, in words: 64 KiB hold some hundred frames, and take about 10 µs.
const WORDS: usize = 8192;

/// What the handler found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registers {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// The link register, on architectures that have one.
    #[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "others have none"))]
    pub(crate) lr: u64,
    /// The stack, from `sp` on.
    pub(crate) words: Vec<u64>,
}

/// Held by the watchdog that has a request. Several detectors may be in one process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What is asked for or answered (high half), and the thread (low half).
static STATE: AtomicU64 = AtomicU64::new(IDLE);
const IDLE: u64 = 0;
const REQUESTED: u64 = 1 << 32;
const WRITING: u64 = 2 << 32;
const DONE: u64 = 3 << 32;

static STACK_BOTTOM: AtomicU64 = AtomicU64::new(0);
static STACK_TOP: AtomicU64 = AtomicU64::new(0);
static PC: AtomicU64 = AtomicU64::new(0);
static SP: AtomicU64 = AtomicU64::new(0);
static FP: AtomicU64 = AtomicU64::new(0);
static LR: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static COPY: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Interrupts thread `tid` of this process, whose stack is `stack`, and waits up to `limit` for the copy.
pub(crate) fn capture(
    signal: i32,
    tid: u32,
    stack: &Range<u64>,
    limit: Duration,
) -> io::Result<Registers> {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    install(signal)?;
    let tid_bits = u64::from(tid);
    let state = STATE.load(Acquire);
    if (WRITING..DONE).contains(&state) {
        return Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "an earlier thread has not finished its copy",
        ));
    }
    STACK_BOTTOM.store(stack.start, Relaxed);
    STACK_TOP.store(stack.end, Relaxed);
    STATE.store(REQUESTED | tid_bits, Release);
    // SAFETY: tgkill takes three integers. The thread group is this process, so the signal leaves it in no case.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            std::process::id() as libc::c_long,
            tid as libc::c_long,
            signal,
        )
    };
    if sent != 0 {
        let error = io::Error::last_os_error();
        STATE.store(IDLE, Release);
        return Err(error);
    }
    let until = Instant::now() + limit;
    while STATE.load(Acquire) != DONE | tid_bits {
        if Instant::now() >= until {
            // The thread may be about to begin. If it has begun, the statics are its own until it is done.
            let _ = STATE.compare_exchange(REQUESTED | tid_bits, IDLE, AcqRel, Acquire);
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the thread did not take the signal in time",
            ));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let copied = (COPIED.load(Relaxed) as usize).min(WORDS);
    let registers = Registers {
        pc: PC.load(Relaxed),
        sp: SP.load(Relaxed),
        fp: FP.load(Relaxed),
        lr: LR.load(Relaxed),
        words: COPY[..copied].iter().map(|word| word.load(Relaxed)).collect(),
    };
    STATE.store(IDLE, Release);
    Ok(registers)
}

/// Whether the signal can be used: nobody else handles it.
pub(crate) fn install(signal: i32) -> io::Result<()> {
    let current = action(signal)?;
    let handler = on_signal as *const () as usize;
    if current.sa_sigaction == handler {
        return Ok(());
    }
    if current.sa_sigaction != libc::SIG_DFL && current.sa_sigaction != libc::SIG_IGN {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("signal {signal} has a handler already"),
        ));
    }
    let mut ours = current;
    ours.sa_sigaction = handler;
    // SA_RESTART: the interrupted system call goes on. SA_ONSTACK: a thread that has an alternate stack, for
    // example a coroutine with a small one, is interrupted there.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `ours` is a valid action: a handler of the type that SA_SIGINFO asks for, a mask that the kernel gave.
    // The handler is async-signal-safe, see `on_signal`. It stays for the life of the process.
    if unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn action(signal: i32) -> io::Result<libc::sigaction> {
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is passed, and `current` is writable and of the right type.
    if unsafe { libc::sigaction(signal, std::ptr::null(), current.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a `sigaction` of zeros is valid, and the call has filled it.
    Ok(unsafe { current.assume_init() })
}

/// Copies registers and stack if this thread is the one that is asked for. Async-signal-safe: it uses atomics,
/// gettid, and memory of its own stack.
extern "C" fn on_signal(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: gettid has no arguments and does not fail, so errno stays as it is.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    if STATE.compare_exchange(REQUESTED | tid, WRITING | tid, AcqRel, Acquire).is_err() {
        return;
    }
    // SAFETY: with SA_SIGINFO the kernel passes a valid `ucontext_t` as third argument, for the time of the call.
    let [pc, sp, fp, lr] = registers(unsafe { &*context.cast::<libc::ucontext_t>() });
    PC.store(pc, Relaxed);
    SP.store(sp, Relaxed);
    FP.store(fp, Relaxed);
    LR.store(lr, Relaxed);
    let (bottom, top) = (STACK_BOTTOM.load(Relaxed), STACK_TOP.load(Relaxed));
    let mut copied = 0;
    if bottom <= sp && sp < top && sp % 8 == 0 {
        for word in COPY.iter().take((top - sp) as usize / 8) {
            // SAFETY: the address is aligned, and within [sp, top), the part of this thread's stack that is in use.
            // Bounds and thread belong together: they were taken on the thread, and if its number has passed to a
            // new thread, `sp` of the new thread is within the same bounds only if it has the same stack. The
            // thread itself is stopped here, so nothing changes. Volatile: the compiler knows of no object there.
            let value = unsafe { ((sp as *const u64).wrapping_add(copied)).read_volatile() };
            word.store(value, Relaxed);
            copied += 1;
        }
    }
    COPIED.store(copied as u64, Relaxed);
    STATE.store(DONE | tid, Release);
}

/// Instruction pointer, stack pointer, frame pointer and link register.
fn registers(context: &libc::ucontext_t) -> [u64; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        let at = |register: i32| context.uc_mcontext.gregs[register as usize] as u64;
        [at(libc::REG_RIP), at(libc::REG_RSP), at(libc::REG_RBP), 0]
    }
    #[cfg(target_arch = "aarch64")]
    {
        let machine = &context.uc_mcontext;
        [machine.pc, machine.sp, machine.regs[29], machine.regs[30]]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        [0; 4]
    }
}

/// The stack of the calling thread. Empty if the C library does not say.
pub(crate) fn stack_of_this_thread() -> Range<u64> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::zeroed();
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: `this` is the calling thread, which runs, and `attributes` is writable; the call initializes it.
    let refused = unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) };
    if refused != 0 {
        return 0..0;
    }
    let (mut base, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` was initialized above, and the two results are writable.
    let refused =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut base, &mut bytes) };
    // SAFETY: `attributes` was initialized above and is used no more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    if refused != 0 { 0..0 } else { base as u64..(base as u64).saturating_add(bytes as u64) }
}

/// Separates the calling thread from the program: it takes no signals, and has its own, empty descriptor table.
///
/// So it can open files although the program has no descriptor left, and a handler of the program, which may write
/// to a descriptor by its number, does not run here. The standard streams become `/dev/null`: keeping them open
/// would keep their readers waiting. Returns an error if the table is still shared.
pub(crate) fn isolate_this_thread() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `all` is writable; sigfillset initializes it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was initialized above. The mask of this thread alone changes.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: with UNSHARE the descriptors are closed in a new table of this thread alone. The thread has been
    // started for the detector and holds no descriptor, so none that somebody owns is closed.
    let refused = unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if refused != 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..3 {
        std::mem::forget(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null"));
    }
    Ok(())
}
