//! `hold`, and connections that are opened over a ramp.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{echo, load, server};

#[test]
fn connections_are_opened_over_a_ramp() {
    let (opened, when) = mpsc::channel();
    let opened = std::sync::Mutex::new(opened);
    let addr = server(move |_, mut stream| {
        opened.lock().expect("no panic").send(Instant::now()).expect("the test waits");
        echo(&mut stream, |_| ())
    });
    let options = "--connections 4 --payload 10 --ramp 0.4 --seconds 0.1 --warm-up 0";
    load("echo", addr, options).is_clean();
    let times: Vec<Instant> = when.try_iter().collect();
    assert_eq!(times.len(), 4);
    // One every 100 ms. The machine may make any of them late, but none early.
    assert!(times[3] - times[0] > Duration::from_millis(200), "{times:?}");
}

#[test]
fn idle_connections_and_those_the_server_closes() {
    let addr = server(|number, mut stream| {
        if number < 3 {
            thread::sleep(Duration::from_millis(200));
            return Ok(());
        }
        echo(&mut stream, |_| ())
    });
    let pid = std::process::id();
    let run = load("hold", addr, &format!("--connections 20 --seconds 0.6 --server-pid {pid}"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/connections/opened"), 20.0);
    assert_eq!(run.number("/hold/still_open"), 17.0, "{}", run.stdout);
    assert_eq!(run.json["connections"]["errors"]["closed by the server"], 3);
    assert!(run.number("/hold/server_rss_bytes_each") >= 0.0);
}
