//! glommio. Its listening socket is its own: it adopts one only through unsafe code.

use std::io;
use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt, io as futures_io};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::sleep;
use glommio::{GlommioError, LocalExecutorBuilder, Placement, spawn_local};
use peers_common::{ACCEPT_PAUSE, BUF_BYTES};

use crate::Args;
use crate::fault::{self, Fault, GREEDY_BUF_BYTES, MESSAGE_BYTES};
use crate::host::{Host, heartbeat};

pub(crate) fn serve(args: Args) -> io::Result<()> {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make();
    executor.map_err(io::Error::from).map_err(peers_common::no_runtime)?.run(async {
        let listener = TcpListener::bind(args.addr)
            .map_err(|error| peers_common::no_listener(args.addr, error.into()))?;
        let host = Host::start(args, listener.local_addr()?)?;
        spawn_local(heartbeat(Arc::clone(&host), sleep)).detach();
        spawn_local(fault::on_event_loop(Arc::clone(&host), sleep)).detach();
        loop {
            match accept(&host, &listener).await {
                Some(Ok(stream)) => {
                    drop(spawn_local(connection(stream, Arc::clone(&host))).detach());
                }
                Some(Err(error)) if host.args.fault != Fault::AcceptSpin => {
                    peers_common::print_accept_error(&error.into());
                    sleep(ACCEPT_PAUSE).await;
                }
                Some(Err(_)) | None => {}
            }
        }
    })
}

/// None if the pending accept was dropped.
async fn accept(
    host: &Host,
    listener: &TcpListener,
) -> Option<Result<TcpStream, GlommioError<()>>> {
    if host.has(Fault::DropAccept) {
        return fault::or_drop(listener.accept(), sleep).await;
    }
    Some(listener.accept().await)
}

/// An error ends this connection only.
async fn connection(mut stream: TcpStream, host: Arc<Host>) -> io::Result<()> {
    let _counted = host.connections.count();
    stream.set_nodelay(true)?;
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
    let (mut read, mut write) = futures_io::split(stream);
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
    })
    .detach();
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
