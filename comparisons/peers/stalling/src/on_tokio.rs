//! tokio, one current-thread runtime.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use peers_common::{ACCEPT_PAUSE, BUF_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_local, unconstrained};
use tokio::time::sleep;

use crate::drain;
use crate::fault::{self, Fault, GREEDY_BUF_BYTES, MESSAGE_BYTES};
use crate::host::{Host, heartbeat};
use crate::{AcceptLoop, Args};

pub(crate) fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen_with_backlog(args.addr, args.backlog)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let host = Host::start(args, listener.local_addr()?)?;
        spawn_local(heartbeat(Arc::clone(&host), sleep));
        spawn_local(fault::on_event_loop(Arc::clone(&host), sleep));
        if host.args.accept == AcceptLoop::Drain {
            let serve = |stream| drop(spawn_local(served(stream, Arc::clone(&host))));
            return drain::accept_all(listener, serve).await;
        }
        let listener = Rc::new(TcpListener::from_std(listener)?);
        for _ in 1..host.args.accept.pending() {
            spawn_local(accept_all(Rc::clone(&listener), Arc::clone(&host)));
        }
        accept_all(listener, host).await
    })
}

async fn served(stream: std::net::TcpStream, host: Arc<Host>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    connection(TcpStream::from_std(stream)?, host).await
}

async fn accept_all(listener: Rc<TcpListener>, host: Arc<Host>) -> io::Result<()> {
    loop {
        match accept(&host, &listener).await {
            Some(Ok((stream, _))) => drop(spawn_local(connection(stream, Arc::clone(&host)))),
            Some(Err(error)) if host.args.fault != Fault::AcceptSpin => {
                peers_common::print_accept_error(&error);
                sleep(ACCEPT_PAUSE).await;
            }
            Some(Err(_)) | None => {}
        }
    }
}

/// None if the pending accept was dropped.
async fn accept(
    host: &Host,
    listener: &TcpListener,
) -> Option<io::Result<(TcpStream, std::net::SocketAddr)>> {
    if host.has(Fault::DropAccept) {
        return fault::or_drop(listener.accept(), sleep).await;
    }
    Some(listener.accept().await)
}

/// An error ends this connection only.
async fn connection(mut stream: TcpStream, host: Arc<Host>) -> io::Result<()> {
    let _counted = host.connections.count();
    match host.args.fault {
        Fault::DropRead => drop_when_silent(stream, &host).await,
        Fault::IgnoreBackPressure => echo_from_queue(stream, host).await,
        Fault::Greedy => unconstrained(echo_in_pieces(&mut stream)).await,
        _ => {
            let ended = echo(&mut stream).await;
            if host.has(Fault::KeepClosed) {
                std::mem::forget(stream);
            }
            ended
        }
    }
}

pub(crate) async fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let n = stream.read(&mut buf).await?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buf[..n]).await?;
    }
}

async fn echo_in_pieces(stream: &mut TcpStream) -> io::Result<()> {
    let mut buf = vec![0; GREEDY_BUF_BYTES];
    loop {
        let n = stream.read(&mut buf).await?;
        if n == 0 {
            return Ok(());
        }
        for message in buf[..n].chunks(MESSAGE_BYTES) {
            stream.write_all(message).await?;
        }
    }
}

async fn drop_when_silent(mut stream: TcpStream, host: &Host) -> io::Result<()> {
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let read = stream.read(&mut buf);
        let n = if host.has(Fault::DropRead) {
            match fault::or_drop(read, sleep).await {
                Some(n) => n?,
                None => return Ok(()),
            }
        } else {
            read.await?
        };
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buf[..n]).await?;
    }
}

/// One task reads, whatever the other can write.
async fn echo_from_queue(stream: TcpStream, host: Arc<Host>) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    let (sender, queue) = async_channel::unbounded::<Vec<u8>>();
    let queued = host.queued.clone();
    spawn_local(async move {
        while let Ok(bytes) = queue.recv().await {
            let written = write.write_all(&bytes).await;
            queued.sub(bytes.len() as u64);
            if written.is_err() {
                break;
            }
        }
        queue.close();
        while let Ok(bytes) = queue.try_recv() {
            queued.sub(bytes.len() as u64);
        }
    });
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let n = read.read(&mut buf).await?;
        if n == 0 {
            return Ok(());
        }
        host.queued.add(n as u64);
        if sender.send(buf[..n].to_vec()).await.is_err() {
            host.queued.sub(n as u64);
            return Ok(());
        }
    }
}
