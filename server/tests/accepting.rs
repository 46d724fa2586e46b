//! The accept loop in the simulation: its places, its end, and what becomes of the others when one
//! panics.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{
    BoundAddr, ConnectOptions, ListenOptions, OwnedReadExt, OwnedWriteExt, Runtime, StopSignal,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::connections::Connections;
use owned_io_server::places::Places;
use owned_io_sim::{Config, Sim, SimStream};

const SEEDS: u64 = 100;

fn simulate(case: impl AsyncFn() -> io::Result<()>) {
    for seed in 0..SEEDS {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap().unwrap();
    }
}

fn bind(port: u16) -> io::Result<BoundAddr> {
    Sim::bind(ListenOptions::new(([10, 0, 0, 1], port).into()))
}

async fn connect(bound: &BoundAddr) -> io::Result<SimStream> {
    Sim::connect(ConnectOptions::new(bound.local_addr())).await
}

/// A listener that nobody connects to takes no place from the others, and together they serve no
/// more than there are places.
#[test]
fn listeners_share_the_places() {
    simulate(async || {
        let places = Places::new(1);
        let bound = [bind(7)?, bind(8)?];
        let served = Rc::new(Cell::new(0));
        for bound in &bound {
            let (listener, places) = (Sim::listen(bound)?, places.clone());
            let served = Rc::clone(&served);
            drop(Sim::spawn(async move {
                let serve = |mut stream: SimStream| {
                    let served = Rc::clone(&served);
                    async move {
                        served.set(served.get() + 1);
                        assert_eq!(served.get(), 1, "served at once");
                        stream.write_all("served").await.into_result()?;
                        let asked = stream.read_exact(Vec::with_capacity(1), 1).await;
                        served.set(served.get() - 1);
                        asked.into_result().map(drop)
                    }
                };
                let connections = Connections::default();
                accept_loop::<Sim, _, _>(listener, places, connections, &StopSignal::new(), serve)
                    .await;
            }));
        }
        // All wait for the one place, half of them at each listener.
        let mut clients = Vec::new();
        for client in 0..6 {
            clients.push(connect(&bound[client % 2]).await?);
        }
        let served = clients.into_iter().map(|mut client| {
            Sim::spawn(async move {
                client.read_exact(Vec::with_capacity(6), 6).await.into_result()?;
                Sim::sleep(Duration::from_millis(1)).await;
                client.write_all("x").await.into_result()
            })
        });
        for served in served.collect::<Vec<_>>() {
            served.await.unwrap()?;
        }
        Ok(())
    });
}

/// However many clients there are to accept.
#[test]
fn it_ends_at_the_stop_signal() {
    simulate(async || {
        let bound = bind(7)?;
        let listener = Sim::listen(&bound)?;
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(connect(&bound).await?);
        }
        let (stop, accepted) = (StopSignal::new(), Cell::new(0));
        let serve = |_stream| {
            accepted.set(accepted.get() + 1);
            stop.stop();
            pending()
        };
        let (places, connections) = (Places::new(1000), Connections::default());
        accept_loop::<Sim, _, _>(listener, places, connections, &stop, serve).await;
        assert_eq!(accepted.get(), 1);
        Ok(())
    });
}
