//! What stacks say: who runs, the runtime or the program.

use crate::evidence::{Frame, Stack, Thread};

/// Functions of a scheduler: below them on the stack (further in) is what it runs. A name matches if it contains one.
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
const NOT_THE_PROGRAM: [&str; 24] = [
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
    "owned_io_os",
    "owned_io_stalls",
];

/// The innermost function of the program: the one to look at first.
pub(super) fn culprit(stack: &Stack) -> Option<&Frame> {
    task_frames(stack).iter().find(|frame| is_of_the_program(frame))
}

/// Whether the scheduler itself runs, and no task of the program. `None` if the stack does not say.
pub(super) fn is_in_scheduler(stack: &Stack) -> Option<bool> {
    if !stack.frames.iter().any(is_scheduler) {
        return None;
    }
    Some(!task_frames(stack).iter().any(is_of_the_program))
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

pub(super) fn has_function(stack: &Stack, part: &str) -> bool {
    stack
        .frames
        .iter()
        .any(|frame| frame.function.as_deref().is_some_and(|name| name.contains(part)))
}

/// The frames that the scheduler called last, the innermost first. All frames if no scheduler is known.
fn task_frames(stack: &Stack) -> &[Frame] {
    let end = stack.frames.iter().position(is_scheduler).unwrap_or(stack.frames.len());
    &stack.frames[..end]
}

fn is_scheduler(frame: &Frame) -> bool {
    frame
        .function
        .as_deref()
        .is_some_and(|name| SCHEDULERS.iter().any(|part| path_of(name).contains(part)))
}

fn is_of_the_program(frame: &Frame) -> bool {
    let Some(name) = frame.function.as_deref() else { return false };
    let path = path_of(name);
    let Some((krate, _)) = path.split_once("::") else { return false }; // a function of C
    !NOT_THE_PROGRAM.contains(&krate)
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
        culprit(stack).or_else(|| stack.frames.iter().find(|f| f.function.is_some()))
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
