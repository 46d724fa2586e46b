//! The server's WebSocket echo, on tokio, with an injected fault that the comparison has to find.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::hint;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use owned_io::{
    ByteStream, Clock, Executor, ListenOptions, MemoryBudget, Pool, PoolConfig, Tcp, TcpListener,
};
use owned_io_tokio::Tokio;
use owned_io_websocket::Config;
use owned_io_websocket::stream::{Buffers, Error, Message, Outgoing, accept};
use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Fault};
use rustix::time::{ClockId, clock_gettime};

/// The extra time of each message with [`Fault::Slow`].
const SPIN: Duration = Duration::from_micros(20);

/// One of this many messages is wrong with [`Fault::Corrupt`].
const CORRUPT_EVERY: u64 = 1000;

/// The share of its own CPU time that the server uses once more with [`Fault::Slower`].
const SLOWER_SHARE: f64 = 0.03;

/// The clock of the thread is read once in so many messages: reading it takes as long as a tenth of a message.
const SLOWER_EVERY: u64 = 64;

/// The bytes that a worker of the server may assemble at once.
const ASSEMBLED_BYTES_MAX: usize = 256 << 20;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Fault, serve)
}

fn serve(args: Args) -> io::Result<()> {
    Tokio::block_on(<Tokio as Executor>::Config::default(), async {
        let bound = Tokio::bind(ListenOptions::new(args.addr))?;
        let mut listener = Tokio::listen(&bound)?;
        peers_common::print_listening(bound.local_addr());
        let mut pool = PoolConfig::default();
        pool.buf_bytes = BUF_BYTES;
        let buffers = Buffers::new(Pool::new(pool), MemoryBudget::new(ASSEMBLED_BYTES_MAX));
        let messages = Rc::new(Cell::new(0));
        let extra_cpu = Rc::new(ExtraCpu::default());
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (messages, extra_cpu) = (Rc::clone(&messages), Rc::clone(&extra_cpu));
                    let injector = FaultInjector { fault: args.fault, messages, extra_cpu };
                    drop(Tokio::spawn(echo(stream, buffers.clone(), injector)));
                }
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    Tokio::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })?
}

/// An error ends this connection only.
async fn echo(
    stream: impl ByteStream,
    buffers: Buffers,
    injector: FaultInjector,
) -> Result<(), Error> {
    let mut socket = accept::<Tokio, _>(stream, &buffers, Config::default()).await?;
    while let Some(message) = socket.incoming.receive().await? {
        injector.echo(&mut socket.outgoing, message)?;
        while let Some(message) = socket.incoming.try_receive() {
            injector.echo(&mut socket.outgoing, message)?;
        }
        socket.outgoing.flush().await?;
    }
    Ok(())
}

/// Injects the fault into the messages of all connections.
struct FaultInjector {
    fault: Fault,
    /// The number of messages so far, on all connections.
    messages: Rc<Cell<u64>>,
    extra_cpu: Rc<ExtraCpu>,
}

impl FaultInjector {
    fn echo(&self, outgoing: &mut Outgoing, message: Message<'_>) -> Result<(), Error> {
        self.messages.set(self.messages.get() + 1);
        match self.fault {
            Fault::None => {}
            Fault::Slow => {
                let began = Instant::now();
                while began.elapsed() < SPIN {
                    hint::spin_loop();
                }
            }
            Fault::Slower if self.messages.get().is_multiple_of(SLOWER_EVERY) => {
                self.extra_cpu.use_share(SLOWER_SHARE);
            }
            Fault::Slower => {}
            Fault::Corrupt if self.messages.get().is_multiple_of(CORRUPT_EVERY) => {
                let mut payload = message.as_bytes().to_vec();
                if let Some(last) = payload.last_mut() {
                    *last ^= 1;
                }
                return Ok(outgoing.write(Message::Binary(&payload))?);
            }
            Fault::Corrupt => {}
        }
        Ok(outgoing.write(message)?)
    }
}

/// CPU time that the server uses for nothing. It follows what messages cost at present, whatever they are.
#[derive(Default)]
struct ExtraCpu {
    used: Cell<Duration>,
}

impl ExtraCpu {
    /// Spins until the extra CPU time of this thread is so large a share of the rest.
    fn use_share(&self, share: f64) {
        let began = thread_cpu();
        let rest = began.saturating_sub(self.used.get());
        let missing = rest.mul_f64(share).saturating_sub(self.used.get());
        let mut spun = Duration::ZERO;
        while spun < missing {
            hint::spin_loop();
            spun = thread_cpu().saturating_sub(began);
        }
        self.used.set(self.used.get() + spun);
    }
}

/// The CPU time of this thread, the only one of the server with work to do.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
