//! tokio with two threads, whose tasks move between them. The detector watches them as a pool.

use std::io;
use std::sync::Arc;

use owned_io_stalls::Gauge;
use peers_common::ACCEPT_PAUSE;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::spawn;
use tokio::time::sleep;

use crate::Args;
use crate::fault::{self, Fault};
use crate::host::{Host, beat};
use crate::on_tokio::echo;

/// While one is blocked, the other works; unless it sleeps, and the blocked one is that which waits for I/O for both.
const THREADS: usize = 2;

pub(crate) fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen_with_backlog(args.addr, args.backlog)?;
    listener.set_nonblocking(true)?;
    let host = Host::start(args, listener.local_addr()?)?;
    let pool = host.watch_pool();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).enable_all();
    if let Some(pool) = &pool {
        let [start, stop, park, unpark] = [(); 4].map(|()| pool.clone());
        builder
            .on_thread_start(move || start.thread_started())
            .on_thread_stop(move || stop.thread_stopped())
            .on_thread_park(move || park.thread_parked())
            .on_thread_unpark(move || unpark.thread_unparked());
    }
    // The thread that waits here is none of the pool, so all tasks are spawned.
    builder.build().map_err(peers_common::no_runtime)?.block_on(async {
        if let Some(heart) = pool.map(|pool| pool.heart()) {
            let beating = Arc::clone(&host);
            spawn(async move { beat(&beating, &heart, sleep).await });
        }
        // A computation on one thread alone may delay nobody: the other takes its tasks.
        let faults = if host.args.fault == Fault::Compute { THREADS } else { 1 };
        for _ in 0..faults {
            spawn(fault::on_event_loop(Arc::clone(&host), sleep));
        }
        spawn(accept_all(TcpListener::from_std(listener)?, host.connections.clone())).await?
    })
}

async fn accept_all(listener: TcpListener, connections: Gauge) -> io::Result<()> {
    loop {
        match listener.accept().await {
            // An error ends this connection only.
            Ok((mut stream, _)) => {
                let counted = connections.count();
                drop(spawn(async move {
                    let _counted = counted;
                    echo(&mut stream).await
                }));
            }
            Err(error) => {
                peers_common::print_accept_error(&error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
