//! Handing over: cases for the sentences of [`HandOver`].
//!
//! The suite has its own macro, because handing over is not part of [`Runtime`]:
//!
//! ```ignore
//! owned_io::hand_over_conformance! { runtime: my_backend::MyRuntime, config: my_backend::Config::default() }
//! ```

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::prove::prove;
use super::support::{
    self, connect, echo, echoed, expect_closed, expect_pending, joined, listener, loopback,
    poll_once, soon,
};
use super::worker::workers;
use crate::{HandOver, Runtime, TcpListener, channel};

/// Creates a `#[test]` for each case about handing over, for one runtime and one configuration.
#[macro_export]
macro_rules! hand_over_conformance {
    (runtime: $runtime:ty, config: $config:expr $(,)?) => {
        $crate::__hand_over_conformance! {
            { $runtime, $config }
            a_worker_serves_what_another_accepts
            a_dropped_connection_is_closed
            a_dropped_accept_loses_no_client
            a_listener_accepts_in_both_ways
        }
    };
}

/// Expands to the tests of [`hand_over_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __hand_over_conformance {
    ({ $runtime:ty, $config:expr } $($case:ident)*) => {
        $(#[test]
        fn $case() {
            let case = $crate::conformance::hand_over::$case::<$runtime>;
            $crate::conformance::hand_over::check::<$runtime>(::std::stringify!($case), &$config, case);
        })*
    };
}

/// Creates a `#[test]` for each [canary](super::canary) of handing over, over a correct runtime.
#[macro_export]
macro_rules! hand_over_canaries {
    (runtime: $runtime:ty, config: $config:expr $(,)?) => {
        $crate::__canaries! {
            functions { $runtime, $config }
            leaks_streams: LeaksStreams => hand_over::a_dropped_connection_is_closed,
            loses_clients: LosesClients => hand_over::a_dropped_accept_loses_no_client,
        }
    };
}

/// Checks that a case passes. The tests of [`hand_over_conformance!`] call it.
///
/// # Panics
/// If the case fails.
pub fn check<R: Runtime>(name: &str, config: &R::Config, case: fn(&R::Config)) {
    if let Err(why) = prove(config, case) {
        panic!("{} does not keep hand_over::{name}: {why}", R::NAME);
    }
}

/// "Makes it a connection of the calling worker", although another one has accepted it. "The first read returns at once
/// what has arrived by then."
pub fn a_worker_serves_what_another_accepts<R: Runtime + HandOver>(config: &R::Config) {
    const CLIENTS: usize = 32;
    let bound = R::bind(loopback()).unwrap();
    let (sender, receiver) = channel::<R::Detached>(NonZeroUsize::MIN);
    let ends = Arc::new(Mutex::new((Some(sender), Some(receiver))));
    R::run_workers(workers::<R>(config, 2), move |worker| {
        let (bound, ends) = (bound.clone(), Arc::clone(&ends));
        async move {
            if worker.id == 1 {
                let mut accepted = ends.lock().unwrap().1.take().expect("one worker is the second");
                let mut echoing = Vec::new();
                let all = soon::<R, _>("all connections", async {
                    while let Some(detached) = accepted.receive::<R>().await {
                        echoing.push(R::spawn(echo(R::adopt(detached)?)));
                    }
                    Ok::<(), std::io::Error>(())
                });
                all.await?;
                assert_eq!(echoing.len(), CLIENTS, "the connections that were handed over");
                for task in echoing {
                    joined::<R, _>("the end of an echo", task).await;
                }
                return Ok(());
            }
            let sender = ends.lock().unwrap().0.take().expect("one worker is the first");
            let (mut listener, addr) = (R::listen(&bound)?, bound.local_addr());
            let clients = R::spawn(async move {
                for _ in 0..CLIENTS {
                    let mut client = connect::<R>(addr).await;
                    assert_eq!(echoed(&mut client, b"hello").await, b"hello");
                }
            });
            for _ in 0..CLIENTS {
                let accept = soon::<R, _>("a client", R::accept_detached(&mut listener));
                let (detached, _) = accept.await?;
                sender.send::<R>(detached).await.expect("the other worker receives");
            }
            drop(sender);
            joined::<R, _>("the end of the clients", clients).await;
            Ok(())
        }
    })
    .unwrap();
}

/// "Dropping it closes the connection."
pub fn a_dropped_connection_is_closed<R: Runtime + HandOver>(config: &R::Config) {
    support::run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut client = connect::<R>(addr).await;
        let (detached, _) = R::accept_detached(&mut listener).await.unwrap();
        drop(detached);
        expect_closed::<R>(&mut client).await;
    });
}

/// "A dropped accept has taken no client."
pub fn a_dropped_accept_loses_no_client<R: Runtime + HandOver>(config: &R::Config) {
    support::run::<R, _>(config, async {
        const CLIENTS: usize = 20;
        let (mut listener, addr) = listener::<R>(loopback());
        expect_pending::<R>("an accept", R::accept_detached(&mut listener)).await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect::<R>(addr).await);
        }
        // Each accept is polled once and dropped: it returned a client, or left it in the queue.
        let mut accepted = 0;
        for _ in 0..CLIENTS {
            if let Poll::Ready(outcome) = poll_once(pin!(R::accept_detached(&mut listener))).await {
                drop(outcome.unwrap());
                accepted += 1;
            }
        }
        for _ in accepted..CLIENTS {
            soon::<R, _>("a client", R::accept_detached(&mut listener)).await.unwrap();
        }
        expect_pending::<R>("a further accept", R::accept_detached(&mut listener)).await;
    });
}

/// "`accept` for any worker": both take clients from the same queue, and report the same peer.
pub fn a_listener_accepts_in_both_ways<R: Runtime + HandOver>(config: &R::Config) {
    support::run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        for is_detached in [true, false, true] {
            let mut client = connect::<R>(addr).await;
            let (stream, peer) = if is_detached {
                let (detached, peer) = R::accept_detached(&mut listener).await.unwrap();
                (R::adopt(detached).unwrap(), peer)
            } else {
                listener.accept().await.unwrap()
            };
            assert_eq!(peer, crate::TcpStream::local_addr(&client).unwrap());
            drop(R::spawn(echo(stream)));
            let answer = soon::<R, _>("an echo", echoed(&mut client, b"hello"));
            assert_eq!(answer.await, b"hello");
        }
    });
}
