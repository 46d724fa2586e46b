//! What a connection holds while it is answered from the disk.

use std::rc::Rc;
use std::time::Duration;

use owned_io::{ByteStream, Clock, Executor, OwnedReadExt, OwnedWriteExt};
use owned_io_log::SyncPolicy;
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::iggy;
use owned_io_sim::{Sim, pipe, run, seeds};

use super::client::{Client, login_frame, open, poll_frame};

/// A batch that is longer than what is reserved for a poll at first is in the account of its connection until the client
/// has it.
#[test]
fn a_long_batch_is_held_by_the_connection_that_polls_it() {
    const LONG: usize = 3 << 20;
    run(seeds(10), async |_| {
        let server = open(SyncPolicy::Batch).await?;
        let mut producer = Client::login(&server).await;
        producer.create_stream().await.unwrap();
        producer.create_topic("t", 1, (0, 0)).await.unwrap();
        producer.send("t", 0, &[vec![7; LONG]]).await.unwrap();

        let memory = Memory::divide(64 << 20, 100).expect("enough memory");
        let mut resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
        resources.iggy = Some(server);
        let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
        let (mut client, serving) = pipe();
        let connection = connections.add(serving.shutdown_handle());
        let account = connection.account().clone();
        let ctx = Context { connection, worker: Rc::new(resources) };
        let task = Sim::spawn(async move { iggy::serve::<Sim>(serving, &ctx).await });

        client.write_all([login_frame(), poll_frame("t")].concat()).await.into_result()?;
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
