//! What the readiness family asks of a socket, on tokio.

#![cfg(target_os = "linux")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use owned_io::Executor;
use owned_io_os::readiness::{self, Interest, Readiness};
use owned_io_tokio::{Config, Tokio, TokioSocket};

#[test]
fn the_socket_remembers_what_the_reactor_reports() {
    check::<TokioSocket>();
}

#[test]
#[should_panic(expected = "to stay ready")]
fn a_socket_that_forgets_a_report_is_noticed() {
    check::<Defective<true>>();
}

#[test]
#[should_panic(expected = "expected a wait for bytes")]
fn a_socket_that_never_clears_a_report_is_noticed() {
    check::<Defective<false>>();
}

fn check<S: Readiness>() {
    let checked = Tokio::block_on(Config::default(), readiness::check::<S>());
    checked.expect("a runtime").expect("sockets");
}

/// A socket that forgets each report at once, or never.
#[derive(Debug)]
struct Defective<const FORGETS: bool>(TokioSocket);

impl<const FORGETS: bool> AsFd for Defective<FORGETS> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<const FORGETS: bool> Readiness for Defective<FORGETS> {
    type Clock = Tokio;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        TokioSocket::register(fd).map(Self)
    }

    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>> {
        let polled = self.0.poll_ready(cx, interest);
        if FORGETS && polled.is_ready() {
            self.0.clear_ready(interest);
        }
        polled
    }

    fn clear_ready(&self, interest: Interest) {
        if FORGETS {
            self.0.clear_ready(interest);
        }
    }

    fn poll_yield(cx: &mut Context<'_>) {
        TokioSocket::poll_yield(cx);
    }
}
