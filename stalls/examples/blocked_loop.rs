//! The program of the README: a blocking call on tokio, and what the detector says of it.

use std::time::Duration;

use owned_io_stalls::{Config, Detector};

fn main() -> std::io::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let detector = Detector::start(Config::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let heart = detector.watch_current_thread("main");
        tokio::spawn(async move {
            loop {
                heart.beat();
                tokio::time::sleep(heart.interval()).await;
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        look_up();
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    for incident in detector.incidents() {
        println!("{incident}");
    }
    Ok(())
}

/// A mistake: it blocks the event loop.
#[inline(never)]
fn look_up() {
    std::thread::sleep(Duration::from_secs(3));
}
