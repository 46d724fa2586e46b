//! monoio on io_uring.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use monoio::buf::IoBuf;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt, Splitable};
use monoio::net::{TcpListener, TcpStream};
use monoio::time::sleep;
use monoio::{IoUringDriver, RuntimeBuilder, spawn};
use peers_common::{ACCEPT_PAUSE, BUF_BYTES};

use crate::Args;
use crate::fault::{self, Fault, GREEDY_BUF_BYTES, MESSAGE_BYTES};
use crate::host::{Host, heartbeat};

pub(crate) fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen_with_backlog(args.addr, args.backlog)?;
    let runtime = RuntimeBuilder::<IoUringDriver>::new().enable_timer().build();
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = Rc::new(TcpListener::from_std(listener)?);
        let host = Host::start(args, listener.local_addr()?)?;
        spawn(heartbeat(Arc::clone(&host), sleep));
        spawn(fault::on_event_loop(Arc::clone(&host), sleep));
        for _ in 1..host.args.accept.pending() {
            spawn(accept_all(Rc::clone(&listener), Arc::clone(&host)));
        }
        accept_all(listener, host).await
    })
}

async fn accept_all(listener: Rc<TcpListener>, host: Arc<Host>) -> io::Result<()> {
    loop {
        match accept(&host, &listener).await {
            Some(Ok((stream, _))) => drop(spawn(connection(stream, Arc::clone(&host)))),
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
) -> Option<io::Result<(TcpStream, SocketAddr)>> {
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
        Fault::Greedy => echo_in_pieces(&mut stream).await,
        _ => {
            let ended = echo(&mut stream).await;
            if host.has(Fault::KeepClosed) {
                std::mem::forget(stream);
            }
            ended
        }
    }
}

async fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut buf = Vec::with_capacity(BUF_BYTES);
    loop {
        let (read, filled) = stream.read(buf).await;
        if read? == 0 {
            return Ok(());
        }
        let (written, emptied) = stream.write_all(filled).await;
        written?;
        buf = emptied;
    }
}

async fn echo_in_pieces(stream: &mut TcpStream) -> io::Result<()> {
    let mut buf = Vec::with_capacity(GREEDY_BUF_BYTES);
    loop {
        let (read, mut filled) = stream.read(buf).await;
        let n = read?;
        if n == 0 {
            return Ok(());
        }
        for from in (0..n).step_by(MESSAGE_BYTES) {
            let message = filled.slice(from..n.min(from + MESSAGE_BYTES));
            let (written, message) = stream.write_all(message).await;
            written?;
            filled = message.into_inner();
        }
        buf = filled;
    }
}

async fn drop_when_silent(mut stream: TcpStream, host: &Host) -> io::Result<()> {
    loop {
        let read = stream.read(Vec::with_capacity(BUF_BYTES));
        let (read, filled) = if host.has(Fault::DropRead) {
            match fault::or_drop(read, sleep).await {
                Some(read) => read,
                None => return Ok(()),
            }
        } else {
            read.await
        };
        if read? == 0 {
            return Ok(());
        }
        stream.write_all(filled).await.0?;
    }
}

/// One task reads, whatever the other can write.
async fn echo_from_queue(stream: TcpStream, host: Arc<Host>) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let (sender, queue) = async_channel::unbounded::<Vec<u8>>();
    let queued = host.queued.clone();
    spawn(async move {
        while let Ok(bytes) = queue.recv().await {
            let len = bytes.len() as u64;
            let (written, _) = writer.write_all(bytes).await;
            queued.sub(len);
            if written.is_err() {
                break;
            }
        }
        queue.close();
        while let Ok(bytes) = queue.try_recv() {
            queued.sub(bytes.len() as u64);
        }
    });
    loop {
        let (read, filled) = reader.read(Vec::with_capacity(BUF_BYTES)).await;
        let n = read?;
        if n == 0 {
            return Ok(());
        }
        host.queued.add(n as u64);
        if sender.send(filled).await.is_err() {
            host.queued.sub(n as u64);
            return Ok(());
        }
    }
}
