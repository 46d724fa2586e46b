//! Registers and stack of another thread, by a signal. All unsafe code of this crate is here, but for
//! the handler of forks.
//!
//! One capture at a time: the watchdog writes a request into statics, sends the signal, and reads the answer from
//! statics. The handler makes one system call (gettid), takes no lock and allocates nothing.
//! A signal that is late finds no request and does nothing.
#![allow(
    unsafe_code,
    reason = "signals, the stack of a thread, and three system calls without a safe wrapper"
)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use super::ThreadRef;

/// How much of a stack is copied, in words: 64 KiB hold some hundred frames, and take about 10 µs.
const WORDS: usize = 8192;

/// How long to wait for another detector, whose request takes at most 20 ms.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(1);

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

/// Whether a watchdog has a request. A process may have several detectors.
static HAS_REQUEST: AtomicBool = AtomicBool::new(false);

/// What is asked for or answered (high half), and the thread (low half).
static STATE: AtomicU64 = AtomicU64::new(IDLE);
const IDLE: u64 = 0;
const REQUESTED: u64 = 1 << 32;
const WRITING: u64 = 2 << 32;
const DONE: u64 = 3 << 32;

/// The thread that the bounds of the stack belong to, as pthread_self names it.
static PTHREAD: AtomicU64 = AtomicU64::new(0);
static STACK_BOTTOM: AtomicU64 = AtomicU64::new(0);
static STACK_TOP: AtomicU64 = AtomicU64::new(0);
static PC: AtomicU64 = AtomicU64::new(0);
static SP: AtomicU64 = AtomicU64::new(0);
static FP: AtomicU64 = AtomicU64::new(0);
static LR: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static COPY: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Interrupts `thread` of this process, and waits up to `limit` for the copy.
pub(crate) fn capture(signal: i32, thread: &ThreadRef, limit: Duration) -> io::Result<Registers> {
    let ThreadRef { tid, pthread, ref stack, .. } = *thread;
    let _guard = RequestGuard::new()?;
    install(signal)?;
    let tid_bits = u64::from(tid);
    let state = STATE.load(Acquire);
    if (WRITING..DONE).contains(&state) {
        return Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "an earlier thread has not finished its copy",
        ));
    }
    PTHREAD.store(pthread, Relaxed);
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

/// Held while a watchdog has a request.
struct RequestGuard;

impl RequestGuard {
    fn new() -> io::Result<Self> {
        let until = Instant::now() + REQUEST_WAIT_MAX;
        while HAS_REQUEST.swap(true, Acquire) {
            if Instant::now() > until {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another detector takes a stack",
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        HAS_REQUEST.store(false, Release);
    }
}

/// In a child after a fork: the thread that had a request, or answered one, is not here.
pub(crate) fn forget_requests() {
    STATE.store(IDLE, Release);
    HAS_REQUEST.store(false, Release);
}

/// Whether a handler for `signal` takes nothing from the program: it has no meaning of its own to the kernel, the C
/// library or a debugger.
fn is_free(signal: i32) -> bool {
    matches!(signal, libc::SIGURG | libc::SIGUSR1 | libc::SIGUSR2)
        || (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal)
}

/// Installs the handler, once. An error if the signal cannot be used: it has another meaning, or a handler of the
/// program.
pub(crate) fn install(signal: i32) -> io::Result<()> {
    if !is_free(signal) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "signal {signal} is none of SIGURG, SIGUSR1, SIGUSR2 and the real-time signals"
            ),
        ));
    }
    let current = action(signal)?;
    let handler = on_signal as *const () as usize;
    if current.sa_sigaction == handler {
        return Ok(());
    }
    let is_foreign = |action: &libc::sigaction| {
        ![handler, libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
    };
    let has_a_handler = || {
        io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("signal {signal} has a handler already"),
        )
    };
    if is_foreign(&current) {
        return Err(has_a_handler());
    }
    let mut ours = current;
    ours.sa_sigaction = handler;
    // SA_RESTART: the interrupted system call goes on. SA_ONSTACK: a thread that has an alternate stack, for
    // example a coroutine with a small one, is interrupted there.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `ours` is a valid action: a handler of the type that SA_SIGINFO asks for, a mask that the kernel gave.
    // The handler is async-signal-safe, see `on_signal`. It stays for the life of the process.
    let before = unsafe { replace(signal, &ours) }?;
    if is_foreign(&before) {
        // The program has installed its handler since it was looked up a moment ago.
        // SAFETY: `before` is the action that the program gave the kernel, and the kernel gave back.
        unsafe { replace(signal, &before) }?;
        return Err(has_a_handler());
    }
    Ok(())
}

/// Sets the action of `signal`, and returns the one before.
///
/// # Safety
/// The handler of `new` may run at any time, on any thread, from now on.
unsafe fn replace(signal: i32, new: &libc::sigaction) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `new` is valid by the contract of this function, and `before` is writable and of the right type.
    if unsafe { libc::sigaction(signal, new, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a `sigaction` of zeros is valid, and the call has filled it.
    Ok(unsafe { before.assume_init() })
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
/// gettid, pthread_self, and memory of its own stack. If the number has passed to another thread, it copies registers
/// alone.
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
    // SAFETY: pthread_self has no preconditions, and is async-signal-safe by signal-safety(7).
    let is_owner = unsafe { libc::pthread_self() } as usize as u64 == PTHREAD.load(Relaxed);
    let mut copied = 0;
    if is_owner && bottom <= sp && sp < top && sp % 8 == 0 {
        for word in COPY.iter().take((top - sp) as usize / 8) {
            // SAFETY: the address is aligned, and within [sp, top), the part of this thread's stack that is in use
            // and so is mapped. The bounds are those of this thread: `capture` published them together with the
            // pthread_t of the thread that they were taken on, and that is this thread's. No two threads have the
            // same pthread_t at one time, and the watchdog has compared the time at which the thread began just
            // before the signal. A thread that reuses a pthread_t later has its control block at the same address,
            // the top of the same stack. The thread itself is stopped here, so nothing changes. Volatile: the
            // compiler knows of no object there.
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

/// What pthread_self returns, and the stack of the calling thread. It is empty if the C library does not say.
pub(crate) fn stack_of_this_thread() -> (u64, Range<u64>) {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::zeroed();
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    let pthread = this as usize as u64;
    // SAFETY: `this` is the calling thread, which runs, and `attributes` is writable; the call initializes it.
    let refused = unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) };
    if refused != 0 {
        return (pthread, 0..0);
    }
    let (mut base, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` was initialized above, and the two results are writable.
    let refused =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut base, &mut bytes) };
    // SAFETY: `attributes` was initialized above and is used no more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let end = (base as u64).saturating_add(bytes as u64);
    (pthread, if refused != 0 { 0..0 } else { base as u64..end })
}

/// Blocks the signals of the calling thread until it is dropped. Threads that are started meanwhile inherit that.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
    /// It belongs to one thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        Self { before: block_signals(), _not_send: std::marker::PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that the kernel gave for this thread: the guard does not leave it.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Blocks all signals on the calling thread, but those that a fault of its own raises: blocked, they end the process
/// without the program's handler. Returns the mask before.
fn block_signals() -> libc::sigset_t {
    const FAULTS: [libc::c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `blocked` is writable; sigfillset initializes it.
    unsafe { libc::sigfillset(blocked.as_mut_ptr()) };
    for signal in FAULTS {
        // SAFETY: `blocked` was initialized above, and the number is that of a signal.
        unsafe { libc::sigdelset(blocked.as_mut_ptr(), signal) };
    }
    // SAFETY: `blocked` was initialized above, and `before` is writable. The mask of this thread alone changes.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: a `sigset_t` of zeros is valid, and the call has filled it.
    unsafe { before.assume_init() }
}

/// Separates the calling thread from the program: it takes no signals but those of its own faults, and has its own,
/// empty descriptor table.
///
/// So it can open files although the program has no descriptor left, and a handler of the program, which may write
/// to a descriptor by its number, does not run here. The standard streams become `/dev/null`: keeping them open
/// would keep their readers waiting. Returns an error if the table is still shared.
///
/// `own_descriptors`: as in [`Config`](crate::Config::own_descriptors).
pub(crate) fn isolate_this_thread(own_descriptors: bool) -> io::Result<()> {
    block_signals();
    if !own_descriptors {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "Config::own_descriptors is off"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_with_a_meaning_are_refused() {
        let with_a_meaning = [
            i32::MIN,
            -1,
            0,
            libc::SIGKILL,
            libc::SIGSEGV,
            libc::SIGCHLD,
            libc::SIGINT,
            32,
            33,
            65,
        ];
        for signal in with_a_meaning {
            assert_eq!(
                install(signal).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{signal}"
            );
        }
    }

    /// The program's handler stays, and no thread is interrupted.
    #[test]
    fn a_handler_of_the_program_stays() {
        extern "C" fn of_the_program(_: libc::c_int) {}
        let signal = libc::SIGRTMAX();
        let mut theirs = action(signal).unwrap();
        theirs.sa_sigaction = of_the_program as *const () as usize;
        // SAFETY: the handler does nothing.
        unsafe { replace(signal, &theirs) }.unwrap();
        assert_eq!(install(signal).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(action(signal).unwrap().sa_sigaction, theirs.sa_sigaction);
    }

    /// Runs `f` with the reference of a thread that computes.
    fn with_a_running_thread(f: impl FnOnce(ThreadRef)) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let end = std::sync::Arc::new(AtomicBool::new(false));
        let ended = std::sync::Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            sender.send(ThreadRef::current()).unwrap();
            while !ended.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        f(receiver.recv().unwrap());
        end.store(true, Relaxed);
        thread.join().unwrap();
    }

    /// A number that has passed to another thread: the bounds are those of the thread before.
    #[test]
    fn the_stack_of_another_thread_is_not_copied() {
        let limit = Duration::from_secs(30);
        let signal = libc::SIGRTMAX() - 1;
        with_a_running_thread(|thread| {
            assert!(!capture(signal, &thread, limit).unwrap().words.is_empty());
            let stale = ThreadRef { pthread: thread.pthread + 64, ..thread };
            let registers = capture(signal, &stale, limit).unwrap();
            assert!(registers.words.is_empty() && registers.pc != 0);
        });
    }
}
