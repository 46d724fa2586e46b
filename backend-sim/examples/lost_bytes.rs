//! A service with a bug that does no harm on some runtimes, and how the simulator shows it.
//!
//! ```text
//! cargo run -p owned-io-sim --example lost_bytes            # finds it, under some seed
//! SIM_SEED=0 cargo run -p owned-io-sim --example lost_bytes # the same again, with more of the trace
//! cargo run -p owned-io-sim --example lost_bytes -- fixed   # the fix passes under every seed
//! ```

use std::io;
use std::pin::pin;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, ConnectOptions, ListenOptions, OwnedRead, OwnedReadExt, OwnedWrite,
    OwnedWriteExt, Runtime, Tcp, TcpListener, select,
};
use owned_io_sim::{Sim, World};

/// After this long without a question, the service sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Answers each digit with the same digit, and sends dots meanwhile. The bug: when the heartbeat comes first, the
/// pending read is dropped and a new one begins. On a completion-based runtime (tokio-uring, for example) the kernel
/// still has the old read, which takes the next digit.
async fn answer<R: Runtime>(mut stream: R::TcpStream) -> io::Result<()> {
    loop {
        let asked = {
            let mut read = pin!(stream.read(Vec::with_capacity(1)));
            select(read.as_mut(), R::sleep(HEARTBEAT)).await.first
        };
        let answer = match asked {
            None => b".".to_vec(),
            Some(result) => match result.into_result()? {
                (0, _) => return Ok(()),
                (_, digit) => digit,
            },
        };
        stream.write_all(answer).await.into_result()?;
    }
}

/// The fix: the read outlives the heartbeat, and is awaited again.
async fn answer_fixed<R: Runtime>(stream: R::TcpStream) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    loop {
        let mut pending = pin!(read.read(Vec::with_capacity(1)));
        let asked = loop {
            match select(pending.as_mut(), R::sleep(HEARTBEAT)).await.first {
                Some(asked) => break asked,
                None => write.write_all(".").await.into_result()?,
            };
        };
        let (n, digit) = asked.into_result()?;
        if n == 0 {
            return Ok(());
        }
        write.write_all(digit).await.into_result()?;
    }
}

async fn serve<R: Runtime>(is_fixed: bool) -> io::Result<()> {
    let bound = R::bind(ListenOptions::new(([0, 0, 0, 0], 7).into()))?;
    let mut listener = R::listen(&bound)?;
    loop {
        let (stream, _) = listener.accept().await?;
        if is_fixed {
            drop(R::spawn(answer_fixed::<R>(stream)));
        } else {
            drop(R::spawn(answer::<R>(stream)));
        }
    }
}

/// A client sends digits at random times. Every digit must come back.
pub async fn every_digit_is_answered(world: World, is_fixed: bool) -> io::Result<()> {
    let (server, client) = (world.host("server"), world.host("client"));
    server.start(move || serve::<Sim>(is_fixed));
    let asking = client.spawn(async move {
        let mut stream = Sim::connect(ConnectOptions::new(server.at(7))).await?;
        for digit in b'0'..=b'9' {
            Sim::sleep(Duration::from_millis(World::current().random(300))).await;
            stream.write_all(vec![digit]).await.into_result()?;
            // Five dots take half a second: an answer that is not there by then never comes.
            let mut dots = 0;
            loop {
                let answer = stream.read_exact(Vec::with_capacity(1), 1).await.into_result()?.1;
                if answer == [digit] {
                    break;
                }
                dots += 1;
                assert!(dots < 5, "no answer to {}", char::from(digit));
            }
        }
        stream.shutdown().await
    });
    asking.await.expect("a digit was not answered")
}

fn main() {
    let is_fixed = std::env::args().nth(1).is_some_and(|arg| arg == "fixed");
    owned_io_sim::run(owned_io_sim::seeds(100), async |world| {
        every_digit_is_answered(world, is_fixed).await
    });
    println!("every digit was answered, under every seed");
}
