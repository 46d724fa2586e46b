//! The services on simulated hosts, while links and hosts fail. Whatever a client receives is right, and once the
//! faults are over every client is served again.
//!
//! `SIM_SEEDS` sets the number of seeds. A failure prints its seed, its faults and its trace.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use owned_io::Random as _;
use owned_io::{
    ByteStream, Clock, ConnectOptions, Executor, ListenOptions, MemoryBudget, OwnedReadExt,
    OwnedWriteExt, Pool, PoolConfig, StopSignal, Tcp, shutdown_after,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connection_limit::ConnectionLimit;
use owned_io_server::connections::{ConnectionHandle, Connections};
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::{echo, http, sink, source};
use owned_io_sim::{FaultPlan, Host, RandomFaults, Sim, SimStream, World, run, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{
    Buffers, EncodedFrame, Error, Message, WebSocket, accept, connect,
};
use owned_io_websocket::{CloseCode, CloseFrame, Config, Fragment, MessageKind};

const PORT: u16 = 7;

/// When the last fault of any plan is over: faults begin within 10 s and last 5 s.
const ALL_IS_WELL: Duration = Duration::from_secs(16);

/// How long a session may take without faults.
const PATIENCE: Duration = Duration::from_secs(20);

const CLIENTS: usize = 3;

/// The connection limit. It has to be large, because a client whose host goes down keeps its permit.
const CONNECTIONS_MAX: usize = 10_000;

type Outcome = Result<(), Box<dyn StdError>>;

#[test]
fn echo_gives_back_what_it_gets() {
    simulate(
        || serve(echo::serve),
        async |mut stream, world| {
            for _ in 0..5 {
                let sent = random_bytes(world, 20_000);
                stream.write_all(sent.clone()).await.into_result()?;
                let back = Vec::with_capacity(sent.len());
                let back = stream.read_exact(back, sent.len()).await.into_result()?.1;
                assert!(back == sent);
                Sim::sleep(Duration::from_millis(world.random(500))).await;
            }
            Ok(())
        },
    );
}

#[test]
fn sink_answers_each_message_by_its_length() {
    simulate(
        || serve(sink::serve::<Sim>),
        async |mut stream, world| {
            for _ in 0..5 {
                let message = random_bytes(world, 20_000);
                let len = message.len() as u32;
                stream.write_all(len.to_le_bytes().to_vec()).await.into_result()?;
                stream.write_all(message).await.into_result()?;
                let answer = stream.read_exact(Vec::with_capacity(8), 8).await.into_result()?.1;
                assert_eq!(answer, u64::from(len).to_le_bytes());
                Sim::sleep(Duration::from_millis(world.random(500))).await;
            }
            Ok(())
        },
    );
}

#[test]
fn source_sends_what_is_asked_for() {
    simulate(
        || serve(source::serve::<Sim>),
        async |mut stream, world| {
            for _ in 0..3 {
                let (messages, bytes) = (1 + world.random(20) as u32, world.random(3_000) as u32);
                let request = [messages, bytes, 4].map(u32::to_le_bytes).concat();
                stream.write_all(request).await.into_result()?;
                for n in 0..messages as usize {
                    let len = 4 + bytes as usize;
                    let read = stream.read_exact(Vec::with_capacity(len), len).await;
                    let message = read.into_result()?.1;
                    assert_eq!(message[..4], bytes.to_le_bytes());
                    let counts_up = |(i, byte): (usize, &u8)| *byte == (n + i) as u8;
                    assert!(message[4..].iter().enumerate().all(counts_up));
                }
                Sim::sleep(Duration::from_millis(world.random(500))).await;
            }
            Ok(())
        },
    );
}

#[test]
fn upgraded_connections_echo_each_message() {
    simulate(
        || serve(http::serve::<Sim>),
        async |stream, world| {
            let mut socket = upgrade(stream, "/echo").await?;
            for _ in 0..5 {
                let sent = random_bytes(world, 50_000);
                socket.outgoing.send(Message::Binary(&sent)).await?;
                assert_eq!(socket.incoming.receive().await?, Some(Message::Binary(&sent)));
                Sim::sleep(Duration::from_millis(world.random(500))).await;
            }
            socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await?;
            Ok(())
        },
    );
}

/// From its first event on, each subscriber receives every event once and in order.
#[test]
fn fan_out_reaches_every_subscriber_in_order() {
    simulate(
        || {
            let events = Rc::new(Events::default());
            drop(Sim::spawn(publish(Rc::clone(&events))));
            let buffers = buffers();
            serve(async move |stream, _: &Context| {
                subscribe(stream, buffers.clone(), Rc::clone(&events)).await
            })
        },
        async |stream, _| {
            let mut socket = upgrade(stream, "/").await?;
            let mut last = None;
            for _ in 0..60 {
                let Some(Message::Binary(event)) = socket.incoming.receive().await? else {
                    return Err("ended by the server".into());
                };
                let number = u64::from_le_bytes(event[..8].try_into()?);
                assert!(last.is_none_or(|last| number == last + 1), "{number} after {last:?}");
                assert!(event.iter().skip(8).all(|byte| *byte == number as u8));
                last = Some(number);
            }
            Ok(())
        },
    );
}

/// Starts `service` on a host and clients on others. Each client runs one session after the other, which may fail,
/// until the faults are over; then one session must succeed.
fn simulate<Fut>(
    service: impl Fn() -> Fut + Copy + 'static,
    session: impl AsyncFn(SimStream, World) -> Outcome + Copy + 'static,
) where
    Fut: Future<Output = io::Result<()>> + 'static,
{
    run(seeds(50), async |world| {
        let server = world.host("server");
        server.start(service);
        let satisfied = Rc::new(Cell::new(0));
        let mut hosts = vec![server.clone()];
        for number in 0..CLIENTS {
            let host = world.host(&format!("client {number}"));
            let (server, satisfied) = (server.clone(), Rc::clone(&satisfied));
            host.start(move || client(world, server.clone(), session, Rc::clone(&satisfied)));
            hosts.push(host);
        }
        world.inject(FaultPlan::random(&hosts, RandomFaults::default()));
        while satisfied.get() < CLIENTS {
            Sim::sleep(Duration::from_secs(1)).await;
            let late = ALL_IS_WELL + 10 * PATIENCE;
            assert!(world.elapsed() < late, "not all clients were served in the end");
        }
        Ok(())
    });
}

async fn client(
    world: World,
    server: Host,
    session: impl AsyncFn(SimStream, World) -> Outcome,
    satisfied: Rc<Cell<usize>>,
) -> io::Result<()> {
    loop {
        let is_well = world.elapsed() >= ALL_IS_WELL;
        let outcome = one_session(world, &server, &session).await;
        match outcome {
            Ok(()) if is_well => break,
            Err(error) if is_well => panic!("all is well, and yet: {error}"),
            Ok(()) | Err(_) => Sim::sleep(Duration::from_millis(100)).await,
        }
    }
    satisfied.set(satisfied.get() + 1);
    Ok(())
}

async fn one_session(
    world: World,
    server: &Host,
    session: &impl AsyncFn(SimStream, World) -> Outcome,
) -> Outcome {
    let stream = Sim::connect(ConnectOptions::new(server.at(PORT))).await?;
    let handle = stream.shutdown_handle();
    let session = async {
        let outcome = session(stream, world).await;
        // As an `io::Error`, which `shutdown_after` needs.
        outcome.map_err(|error| io::Error::other(error.to_string()))
    };
    Ok(shutdown_after::<Sim, io::Result<()>>(PATIENCE, &handle, session).await?)
}

/// Runs the server's accept loop until its host goes down.
async fn serve<E: StdError + 'static>(
    service: impl AsyncFn(SimStream, &Context) -> Result<(), E> + 'static,
) -> io::Result<()> {
    let bound = Sim::bind(ListenOptions::new(([0, 0, 0, 0], PORT).into()))?;
    // A host may have no descriptors when it starts again.
    let listener = loop {
        match Sim::listen(&bound) {
            Ok(listener) => break listener,
            Err(error) if owned_io::is_exhaustion(&error) => {
                Sim::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error),
        }
    };
    let (limit, stop) = (ConnectionLimit::new(CONNECTIONS_MAX), StopSignal::new());
    let memory = Memory::divide(1 << 30, CONNECTIONS_MAX).expect("enough memory");
    let resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
    let worker = Rc::new(resources);
    let connections = Connections::new(DrainSignal::default(), worker.budget.clone());
    let serve = async move |stream, connection: ConnectionHandle| {
        service(stream, &Context { connection, worker: Rc::clone(&worker) }).await
    };
    accept_loop::<Sim, _>(listener, limit, connections, &stop, serve).await;
    Ok(())
}

/// The events that a server has published, and the subscribers that wait for more.
#[derive(Default)]
struct Events {
    frames: RefCell<Vec<EncodedFrame>>,
    waiting: RefCell<Vec<Waker>>,
}

async fn publish(events: Rc<Events>) {
    for number in 0_u64.. {
        let len = 8 + number as usize * 1_037 % 8_000;
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(len, number as u8);
        let frame = EncodedFrame::new(Fragment::Whole(MessageKind::Binary), &payload);
        events.frames.borrow_mut().push(frame);
        events.waiting.take().into_iter().for_each(Waker::wake);
        Sim::sleep(Duration::from_millis(20)).await;
    }
}

async fn subscribe(stream: SimStream, buffers: Buffers, events: Rc<Events>) -> Result<(), Error> {
    let WebSocket { incoming: _incoming, mut outgoing } =
        accept::<Sim, _>(stream, &buffers, Config::default()).await?;
    let mut next = events.frames.borrow().len();
    loop {
        poll_fn(|cx| {
            if next < events.frames.borrow().len() {
                return Poll::Ready(());
            }
            events.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let frame = events.frames.borrow()[next].clone();
        outgoing.write_frame(&frame)?;
        next += 1;
        outgoing.flush().await?;
    }
}

fn buffers() -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 24))
}

async fn upgrade(stream: SimStream, path: &str) -> Result<WebSocket<SimStream>, Error> {
    let offer = Offer { host: "server", path, ..Offer::default() };
    Ok(connect::<Sim, _>(stream, &buffers(), Config::default(), &offer).await?.0)
}

fn random_bytes(world: World, bytes_max: u64) -> Vec<u8> {
    let mut bytes = vec![0; world.random(bytes_max) as usize];
    Sim::fill_random(&mut bytes);
    bytes
}
