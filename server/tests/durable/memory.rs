//! What a connection holds while it is answered from the disk.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, Executor, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig,
};
use owned_io_log::SyncPolicy;
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::{http, iggy};
use owned_io_sim::{Fault, Sim, SimStream, World, pipe, run, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Message, connect};

use super::client::{Client, login_frame, open_with, poll_frame, send_frame};

/// A connection to a server with a message of `len` bytes.
async fn serve(len: usize) -> io::Result<(SimStream, SimStream, Context)> {
    serve_batches(4096, &[len]).await
}

/// A connection to a server with a batch of one message for each of these lengths.
async fn serve_batches(
    segment_bytes: u64,
    lens: &[usize],
) -> io::Result<(SimStream, SimStream, Context)> {
    let server = open_with(SyncPolicy::Batch, segment_bytes).await?;
    let mut producer = Client::login(&server).await;
    producer.create_stream().await.unwrap();
    producer.create_topic("t", 1, (0, 0)).await.unwrap();
    for len in lens {
        producer.send("t", 0, &[vec![7; *len]]).await.unwrap();
    }
    // Half of it is not guaranteed to any connection: 28 MB.
    let memory = Memory::divide(64 << 20, 100).expect("enough memory");
    let mut resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
    resources.iggy = Some(server);
    let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
    let (client, serving) = pipe();
    let connection = connections.add(serving.shutdown_handle());
    Ok((client, serving, Context { connection, worker: Rc::new(resources) }))
}

/// A batch that is longer than what is reserved for a poll at first is in the account of its connection until the client
/// has it.
#[test]
fn a_long_batch_is_held_by_the_connection_that_polls_it() {
    const LONG: usize = 3 << 20;
    run(seeds(10), async |_| {
        let (mut client, serving, ctx) = serve(LONG).await?;
        let account = ctx.connection.account().clone();
        let task = Sim::spawn(async move { iggy::serve::<Sim>(serving, &ctx).await });
        client.write_all([login_frame(), poll_frame("t", 1)].concat()).await.into_result()?;
        Sim::sleep(Duration::from_secs(1)).await;
        assert!(account.held_bytes() >= LONG, "{} are held", account.held_bytes());
        let len = 12 + 8 + 16 + 64 + LONG; // a login, a header, and a poll with a message
        let answers = client.read_exact(Vec::with_capacity(len), len).await.into_result()?.1;
        assert!(answers.ends_with(&[7; LONG]));
        Sim::sleep(Duration::from_secs(1)).await;
        assert_eq!(account.held_bytes(), 0);
        drop(client);
        task.await.unwrap()
    });
}

/// A client that sends and leaves at once: its batch is in the account of its connection until it is stored. Otherwise
/// such clients could make the server hold any number of batches.
#[test]
fn a_batch_is_held_by_its_connection_although_the_client_has_gone() {
    const LONG: usize = 3 << 20;
    run(seeds(10), async |world: World| {
        let (mut client, serving, ctx) = serve(1).await?;
        let account = ctx.connection.account().clone();
        let server = ctx.worker.iggy.clone().expect("a server");
        let mut another = Client::login(&server).await;
        let task = Sim::spawn(async move { iggy::serve::<Sim>(serving, &ctx).await });
        client.write_all(login_frame()).await.into_result()?;
        client.read_exact(Vec::with_capacity(12), 12).await.into_result()?;
        let lasts = Duration::from_secs(10);
        world.apply(Fault::SlowDisk { host: world.main_host(), lasts });
        client.write_all(send_frame("t", &[7; LONG])).await.into_result()?;
        drop(client);
        let mut has_arrived = false;
        loop {
            let held = account.held_bytes();
            if another.topic("t").await.topic.messages_count > 1 {
                break;
            }
            has_arrived |= held >= LONG;
            assert!(!has_arrived || held >= LONG, "{held} are held while it is written");
            Sim::sleep(Duration::from_millis(1)).await;
        }
        assert!(has_arrived);
        let _ = task.await.unwrap(); // an error: nobody reads the answer
        assert_eq!(account.held_bytes(), 0);
        Ok(())
    });
}

/// Batches that were read together share their memory, of which the queue of the WebSocket counts nothing. The
/// connection holds one such answer at a time.
#[test]
fn batches_that_were_read_together_are_held_by_the_connection_that_polls_them() {
    const LEN: usize = 900_000;
    run(seeds(3), async |_| {
        let (client, serving, ctx) = serve_batches(8 << 20, &[LEN, LEN]).await?;
        let account = ctx.connection.account().clone();
        drop(Sim::spawn(async move { http::serve::<Sim>(serving, &ctx).await.unwrap() }));
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let offer = Offer { host: "localhost", path: "/", ..Offer::default() };
        let config = owned_io_websocket::Config::default();
        let mut socket = connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap().0;
        socket.outgoing.send(Message::Binary(&login_frame())).await.unwrap();
        socket.incoming.receive().await.unwrap().expect("an answer");
        let polls = [poll_frame("t", 2), poll_frame("t", 2)].concat();
        socket.outgoing.send(Message::Binary(&polls)).await.unwrap();
        Sim::sleep(Duration::from_secs(1)).await; // nobody reads the answers
        let held = account.held_bytes();
        assert!((2 * LEN..4 * LEN).contains(&held), "{held} are held");
        for _ in 0..2 {
            let answer = socket.incoming.receive().await.unwrap().expect("an answer");
            assert_eq!(answer.as_bytes().len(), 8 + 16 + 2 * (64 + LEN));
        }
        Ok(())
    });
}

/// There is room for it once, and not for a second one in the queue of the WebSocket.
#[test]
fn a_long_batch_is_reserved_once_on_its_way_to_a_websocket() {
    const LONG: usize = 15 << 20;
    run(seeds(3), async |_| {
        let (client, serving, ctx) = serve(LONG).await?;
        let account = ctx.connection.account().clone();
        drop(Sim::spawn(async move { http::serve::<Sim>(serving, &ctx).await.unwrap() }));
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let offer = Offer { host: "localhost", path: "/", ..Offer::default() };
        let config = owned_io_websocket::Config::default();
        let mut socket = connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap().0;
        for (request, len) in [(login_frame(), 12), (poll_frame("t", 1), 8 + 16 + 64 + LONG)] {
            socket.outgoing.send(Message::Binary(&request)).await.unwrap();
            let answer = socket.incoming.receive().await.unwrap().expect("an answer");
            assert_eq!(answer.as_bytes().len(), len);
        }
        assert!(account.held_bytes() < LONG);
        Ok(())
    });
}
