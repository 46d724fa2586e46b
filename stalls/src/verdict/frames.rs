//! What stacks say: who runs, the runtime or the program.

use std::borrow::Cow;

use crate::evidence::{Frame, Stack, Thread};

/// Functions of a scheduler: below them on the stack (further in) is what it runs. A path matches if it begins with one.
const SCHEDULERS: [&str; 22] = [
    "tokio::runtime::scheduler",
    "tokio::runtime::task",
    "tokio::runtime::runtime",
    "tokio::runtime::context",
    "tokio::runtime::coop",
    "tokio::runtime::local_runtime",
    "tokio::task::local",
    "tokio::task::coop",
    "tokio_uring::runtime",
    "monoio::runtime",
    "monoio::task",
    "monoio::scheduler",
    "compio_runtime::",
    "compio_executor::",
    "glommio::executor",
    "glommio::task",
    "async_task::",
    "async_executor::",
    "smol::",
    "futures_executor::",
    "futures_util::stream::futures_unordered",
    "owned_io::task",
];

/// Crates that no stall is blamed on: the runtime, the standard library, and what they use.
const NOT_THE_PROGRAM: [&str; 29] = [
    "std",
    "core",
    "alloc",
    "tokio",
    "tokio_uring",
    "monoio",
    "compio",
    "compio_runtime",
    "compio_executor",
    "compio_driver",
    "compio_buf",
    "compio_io",
    "compio_net",
    "glommio",
    "async_task",
    "futures_core",
    "futures_util",
    "futures_executor",
    "io_uring",
    "mio",
    "scoped_tls",
    "owned_io",
    "owned_io_compio",
    "owned_io_glommio",
    "owned_io_monoio",
    "owned_io_os",
    "owned_io_stalls",
    "owned_io_tokio",
    "owned_io_tokio_uring",
];

/// Folders of crates above that are not named like the crate, for a program that depends on a clone.
const FOLDERS: [(&str, &str); 7] = [
    ("traits", "owned_io"),
    ("os", "owned_io_os"),
    ("backend-compio", "owned_io_compio"),
    ("backend-glommio", "owned_io_glommio"),
    ("backend-monoio", "owned_io_monoio"),
    ("backend-tokio", "owned_io_tokio"),
    ("backend-tokio-uring", "owned_io_tokio_uring"),
];

/// The innermost function of the program: the one to look at first.
pub(super) fn culprit(stack: &Stack) -> Option<&Frame> {
    task_frames(stack).iter().find(|frame| is_of_the_program(frame))
}

/// Whether the scheduler itself runs, and no task of the program. `None` if the stack does not say: it has no function
/// of a scheduler that is known, or a function without a name runs, which may be the program's.
pub(super) fn is_in_scheduler(stack: &Stack) -> Option<bool> {
    let scheduler = stack.frames.iter().find(|frame| is_scheduler(frame))?;
    let called = task_frames(stack);
    if called.iter().any(is_of_the_program) {
        return Some(false);
    }
    // Libraries without symbols, and the kernel's vdso, are no part of the program.
    let may_be_the_program = |frame: &Frame| {
        frame.function.is_none() && frame.module.is_some() && frame.module == scheduler.module
    };
    (!called.iter().any(may_be_the_program)).then_some(true)
}

/// Why the stacks of a thread do not tell its program from its scheduler. `None`: one of them does.
pub(super) fn why_not_told(thread: &Thread) -> Option<&'static str> {
    if thread.stacks.iter().any(|stack| is_in_scheduler(stack).is_some()) {
        return None;
    }
    let mut frames = thread.stacks.iter().flat_map(|stack| &stack.frames);
    Some(if thread.stacks.is_empty() {
        "It has no stack"
    } else if frames.any(is_of_the_program) {
        "Its stacks show no scheduler of a known runtime"
    } else {
        "Its stacks have no names of the program"
    })
}

/// Whether the thread is in a call that moves bytes of a socket.
pub(super) fn is_in_socket_call(stack: &Stack) -> bool {
    const CALLS: [&str; 8] =
        ["recv", "__recv", "send", "__send", "recvmsg", "sendmsg", "__libc_recv", "__libc_send"];
    stack
        .frames
        .iter()
        .take(4)
        .any(|frame| frame.function.as_deref().is_some_and(|name| CALLS.contains(&name)))
}

/// Whether it allocates memory, and may wait for the kernel to give and clear it.
pub(super) fn is_in_allocator(stack: &Stack) -> bool {
    const CALLS: [&str; 5] = ["malloc", "calloc", "realloc", "__libc_calloc", "_int_malloc"];
    // Rust's own, which call those: `__rdl_alloc` and `__rdl_alloc_zeroed`, with a path before them.
    let is_call = |name: &str| CALLS.contains(&name) || name.contains("__rdl_");
    stack.frames.iter().take(6).any(|frame| frame.function.as_deref().is_some_and(is_call))
}

/// Whether the task that runs, or the whole thread if no scheduler is known, is in a function of one of these modules.
pub(super) fn is_task_within(stack: &Stack, modules: &[&str]) -> bool {
    let is_within = |path: Cow<'_, str>| modules.iter().any(|module| path.starts_with(module));
    task_frames(stack).iter().filter_map(path).any(is_within)
}

pub(super) fn has_function(stack: &Stack, part: &str) -> bool {
    stack
        .frames
        .iter()
        .any(|frame| frame.function.as_deref().is_some_and(|name| name.contains(part)))
}

/// The frames that the scheduler called last, the innermost first. All frames if no scheduler is known.
///
/// A task may block on an executor of its own, for example `futures::executor::block_on`. Then the functions of that are
/// among its frames: the scheduler that called the task is further out.
fn task_frames(stack: &Stack) -> &[Frame] {
    let frames = &stack.frames[..];
    let Some(inner) = frames.iter().position(is_scheduler) else { return frames };
    let Some(task) = frames[inner..].iter().position(is_of_the_program).map(|at| inner + at) else {
        return &frames[..inner];
    };
    let outer = frames[task..].iter().position(|it| is_scheduler(it) && !only_enters(it));
    let outer = outer.map(|at| task + at);
    match outer {
        Some(outer)
            if frames[inner..task].iter().any(is_blocking_executor) && !is_for_blocking(stack) =>
        {
            &frames[..outer]
        }
        _ => &frames[..inner],
    }
}

/// Whether a function runs an executor until its future is ready, and blocks the thread meanwhile. A scheduler within a
/// task that only polls it, as `FuturesUnordered` and `LocalSet` are, does not.
fn is_blocking_executor(frame: &Frame) -> bool {
    path(frame).is_some_and(|path| {
        path.ends_with("block_on") || path.contains("futures_executor::local_pool")
    })
}

/// Whether a function calls the program with a runtime at hand, and runs no task of it.
fn only_enters(frame: &Frame) -> bool {
    path(frame).is_some_and(|path| path.ends_with("::enter"))
}

/// Whether the thread is one of tokio for blocking work: another runtime may run there. tokio's workers began as one.
fn is_for_blocking(stack: &Stack) -> bool {
    has_function(stack, "tokio::runtime::blocking::pool")
        && !has_function(stack, "multi_thread::worker")
}

fn is_scheduler(frame: &Frame) -> bool {
    path(frame).is_some_and(|path| SCHEDULERS.iter().any(|module| path.starts_with(module)))
}

fn is_of_the_program(frame: &Frame) -> bool {
    let path = path(frame);
    let Some((krate, _)) = path.as_ref().and_then(|path| path.split_once("::")) else {
        return false; // a function of C
    };
    !NOT_THE_PROGRAM.contains(&krate)
}

/// Whether a frame is of the program, if that has no names: libraries without symbols are common.
fn is_of_a_stripped_program(frame: &Frame, stack: &Stack) -> bool {
    let Some(module) = &frame.module else { return false };
    let is_library = module.ends_with(".so") || module.contains(".so.");
    let has_name = |it: &Frame| it.module == frame.module && it.function.is_some();
    !is_library && !stack.frames.iter().any(has_name)
}

/// The path of a frame's function, with its crate. In an optimized program most functions are inlined, and of these the
/// debug information has the last part of the name alone: then the file tells the rest.
fn path(frame: &Frame) -> Option<Cow<'_, str>> {
    let name = path_of(frame.function.as_deref()?);
    if name.contains("::") {
        return Some(name.into());
    }
    Some(match frame.location.as_deref().and_then(module_of) {
        Some(module) => format!("{module}::{name}").into(),
        None => name.into(),
    })
}

/// The module of a file: `monoio::task::state` of `…/monoio-0.2.4/src/task/state.rs:239`.
fn module_of(location: &str) -> Option<String> {
    let (file, _line) = location.rsplit_once(':')?;
    let (folder, file) = file.strip_suffix(".rs")?.rsplit_once("/src/")?;
    let folder = folder.rsplit('/').next().unwrap_or(folder);
    let is_version =
        |(at, _): &(usize, &str)| folder[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let name = folder.match_indices('-').find(is_version).map_or(folder, |(at, _)| &folder[..at]);
    let known = FOLDERS.iter().find(|(folder, _)| *folder == name);
    let krate = known.map_or_else(|| name.replace('-', "_"), |(_, krate)| (*krate).into());
    let modules = file.split('/').filter(|part| !matches!(*part, "lib" | "main" | "mod"));
    Some(std::iter::once(&*krate).chain(modules).collect::<Vec<_>>().join("::"))
}

/// The path of a function without generic arguments: they name types of other crates. `<a::B as c::D>::e` is of `a`.
fn path_of(name: &str) -> &str {
    let name = name.trim_start_matches(['<', '&']);
    let end = name.find(['<', ' ', '>']).unwrap_or(name.len());
    name[..end].trim_end_matches("::")
}

/// What a thread does, in one sentence.
pub(super) fn describe(thread: &Thread) -> String {
    let mut sentence = format!("Thread {} ({})", thread.tid, thread.name);
    if let (Some(ran), Some(waited)) = (thread.ran_ms, thread.waited_ms) {
        sentence +=
            &format!(" ran {ran} ms and waited {waited} ms for a CPU, of {} ms", thread.window_ms);
    }
    if let Some(at) = location(thread) {
        sentence += &format!(", and is {at}");
    }
    sentence + "."
}

/// Where a thread is: the system call, and the function of the program.
pub(super) fn location(thread: &Thread) -> Option<String> {
    let call = thread.syscall.as_ref().map(|syscall| match &syscall.name {
        Some(name) => name.clone(),
        None if syscall.number < 0 => "a page fault".into(),
        None => format!("system call {}", syscall.number),
    });
    let kernel =
        thread.wchan.as_ref().map(|wchan| format!(" ({wchan} in the kernel)")).unwrap_or_default();
    let stack = thread.stacks.last();
    let function = stack.and_then(|stack| {
        let frames = || stack.frames.iter();
        let stripped = || frames().find(|frame| is_of_a_stripped_program(frame, stack));
        let named = || frames().find(|frame| frame.function.is_some());
        culprit(stack).or_else(stripped).or_else(named)
    });
    match (call, function) {
        (Some(call), Some(function)) => Some(format!("in {call}{kernel}, called by {function}")),
        (Some(call), None) => Some(format!("in {call}{kernel}")),
        (None, Some(function)) => Some(format!("in {function}")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Stack {
        let frame = |name: &&str| Frame { function: Some((*name).into()), ..Frame::default() };
        Stack { frames: names.iter().map(frame).collect(), ..Stack::default() }
    }

    #[test]
    fn the_culprit_is_the_innermost_function_of_the_program() {
        let computing = stack(&[
            "core::ptr::read_volatile",
            "shop::sort",
            "shop::main::{{closure}}",
            "<core::pin::Pin<P> as core::future::future::Future>::poll",
            "monoio::runtime::Runtime<D>::block_on",
            "shop::main",
        ]);
        assert_eq!(culprit(&computing).unwrap().function.as_deref(), Some("shop::sort"));
        assert_eq!(is_in_scheduler(&computing), Some(false));
        let turning = stack(&[
            "alloc::collections::vec_deque::pop",
            "monoio::runtime::Runtime<D>::block_on",
            "shop::main",
        ]);
        assert_eq!(culprit(&turning), None);
        assert_eq!(is_in_scheduler(&turning), Some(true));
        assert_eq!(is_in_scheduler(&stack(&["shop::main"])), None);
    }

    /// A frame without a name among others that have one is a stub of the linker, or was not named in time.
    #[test]
    fn a_program_is_stripped_if_none_of_its_functions_has_a_name() {
        let frame = |module: &str, function: Option<&str>| Frame {
            function: function.map(str::to_owned),
            module: Some(module.into()),
            offset: Some(0x1234),
            ..Frame::default()
        };
        let at = |frames: [Frame; 3]| {
            let stack = Stack { frames: frames.into(), ..Stack::default() };
            location(&Thread { stacks: vec![stack], ..Thread::default() }).unwrap()
        };
        let read = || frame("libc.so.6", Some("read"));
        assert_eq!(at([read(), frame("shop", None), frame("shop", Some("shop_main"))]), "in read");
        assert_eq!(at([read(), frame("libz.so", None), frame("shop", None)]), "in shop+0x1234");
        assert_eq!(at([read(), frame("a.sort", None), frame("a.sort", None)]), "in a.sort+0x1234");
    }

    #[test]
    fn a_module_of_the_program_may_be_named_like_a_scheduler() {
        for module in ["shop::async_task::compute", "my_smol::serve", "shop::glommio::task::f"] {
            let block_on = "monoio::runtime::Runtime<D>::block_on";
            let computing = stack(&["core::ptr::read", module, block_on, "shop::main"]);
            assert_eq!(is_in_scheduler(&computing), Some(false), "{module}");
            assert_eq!(culprit(&computing).unwrap().function.as_deref(), Some(module));
        }
    }

    /// A program may run all of its runtime within a subscriber.
    #[test]
    fn functions_outside_of_the_task_are_not_of_it() {
        let log = ["tracing_subscriber::", "slog::"];
        let block_on = "tokio::runtime::scheduler::current_thread::CoreGuard::block_on";
        let outer = [block_on, "tracing_subscriber::with_default", "shop::main"];
        let within = |inner: &[&str]| is_task_within(&stack(&[inner, &outer].concat()), &log);
        assert!(within(&["write", "tracing_subscriber::fmt::Layer<S>::on_event", "shop::serve"]));
        assert!(!within(&["shop::lock", "shop::serve"]));
        assert!(!within(&["shop::accesslog::write", "accesslog::write"]));
    }

    /// It blocks its thread although the innermost scheduler waits as it may.
    #[test]
    fn an_executor_within_a_task_is_of_the_task() {
        let [park, inner] = ["std::thread::park", "futures_executor::local_pool::run_executor"];
        let outer = [
            "futures_executor::local_pool::block_on",
            "shop::look_up",
            "shop::serve::{{closure}}",
            "tokio::runtime::task::core::Core<T,S>::poll",
            "tokio::runtime::scheduler::current_thread::Context::run_task",
            "shop::main",
        ];
        let nested = stack(&[&[park, inner][..], &outer].concat());
        assert_eq!(culprit(&nested).unwrap().function.as_deref(), Some("shop::look_up"));
        assert_eq!(is_in_scheduler(&nested), Some(false));
        let within = stack(&[&["shop::compute", inner][..], &outer].concat());
        assert_eq!(culprit(&within).unwrap().function.as_deref(), Some("shop::compute"));
        let the_whole_runtime = stack(&[park, inner, outer[0], "shop::main"]);
        assert_eq!(is_in_scheduler(&the_whole_runtime), Some(true));
        let blocking = ["tokio::runtime::blocking::pool::Inner::run"];
        let on_a_thread_for_it = stack(&[&[park, inner][..], &outer, &blocking].concat());
        assert_eq!(is_in_scheduler(&on_a_thread_for_it), Some(true));
        let entered = [
            "compio_runtime::runtime::Runtime::block_on",
            "shop::run::{{closure}}",
            "compio_runtime::runtime::Runtime::enter",
            "shop::run",
        ];
        assert_eq!(is_in_scheduler(&stack(&entered)), Some(true));
    }

    /// They wait with the task that polls them.
    #[test]
    fn a_scheduler_that_a_task_polls_is_none_that_blocks() {
        for inner in [
            "futures_util::stream::futures_unordered::FuturesUnordered<Fut>::poll_next",
            "tokio::task::local::LocalSet::tick",
        ] {
            let turning = stack(&[
                inner,
                "shop::serve::{{closure}}",
                "tokio::runtime::scheduler::current_thread::CoreGuard::block_on",
                "tokio::runtime::runtime::Runtime::block_on",
                "shop::main",
            ]);
            assert_eq!(is_in_scheduler(&turning), Some(true), "{inner}");
        }
    }

    /// With a bound on symbols, or in a program that is stripped in part, the task may be the frame without a name.
    #[test]
    fn a_frame_without_a_name_may_be_the_task() {
        let mut stack = stack(&["memcpy", "?", "tokio::runtime::task::raw::poll", "main"]);
        stack.frames[1].function = None;
        let mut in_modules = |modules: [&str; 4]| {
            for (frame, module) in stack.frames.iter_mut().zip(modules) {
                frame.module = Some(module.into());
            }
            is_in_scheduler(&stack)
        };
        assert_eq!(in_modules(["libc.so.6", "shop", "shop", "shop"]), None);
        assert_eq!(in_modules(["libc.so.6", "libz.so", "shop", "shop"]), Some(true));
    }

    #[test]
    fn the_file_of_an_inlined_function_tells_its_module() {
        for (location, module) in [
            ("/r/monoio-0.2.4/src/task/state.rs:239", Some("monoio::task::state")),
            ("/r/io-uring-0.6.4/src/sys/mod.rs:114", Some("io_uring::sys")),
            ("/rustc/5980/library/core/src/ops/function.rs:250", Some("core::ops::function")),
            ("/home/me/web-shop/src/main.rs:27", Some("web_shop")),
            ("/home/me/owned-io/traits/src/task.rs:1", Some("owned_io::task")),
            ("src/main.rs:27", None),
            ("/usr/src/zlib/src/deflate.c:1", None),
            ("../sysdeps/unix/sysv/linux/x86_64/syscall.S:38", None),
            ("", None),
        ] {
            assert_eq!(module_of(location).as_deref(), module, "{location}");
        }
    }

    #[test]
    fn inlined_functions_are_of_the_program_or_of_the_scheduler() {
        let frame = |(name, location): &(&str, &str)| Frame {
            function: Some((*name).into()),
            location: Some((*location).into()),
            ..Frame::default()
        };
        let stack = |frames: &[(&str, &str)]| Stack {
            frames: frames.iter().map(frame).collect(),
            ..Stack::default()
        };
        let outer =
            ("block_on<shop::serve::{async_block_env#0}>", "monoio-0.2.4/src/runtime.rs:144");
        let main = ("main", "/home/me/shop/src/main.rs:9");
        let scheduling = stack(&[("ref_inc", "monoio-0.2.4/src/task/state.rs:239"), outer, main]);
        assert_eq!((is_in_scheduler(&scheduling), culprit(&scheduling)), (Some(true), None));
        let sort = ("sort", "/home/me/shop/src/order.rs:5");
        let computing =
            stack(&[("swap", "/rustc/1/library/core/src/mem/mod.rs:1"), sort, outer, main]);
        assert_eq!(is_in_scheduler(&computing), Some(false));
        assert_eq!(culprit(&computing), Some(&computing.frames[1]));
    }

    #[test]
    fn a_generic_argument_does_not_make_a_scheduler() {
        assert_eq!(
            path_of("<shop::Task<tokio::runtime::task::X> as core::future::Future>::poll"),
            "shop::Task"
        );
        assert_eq!(path_of("shop::run::{{closure}}"), "shop::run::{{closure}}");
        assert_eq!(path_of("<F as shop::Trait>::f"), "F");
    }
}
