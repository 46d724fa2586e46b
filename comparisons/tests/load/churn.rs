//! `churn`.

use std::io;
use std::thread;
use std::time::Duration;

use super::{RUN_MAX, echo, good_echo, load, server};

#[test]
fn connections_that_come_and_go() {
    let options = "--connections 4 --payload 100 --seconds 0.3 --warm-up 0.05";
    let run = load("churn", good_echo(), options);
    run.is_clean();
    assert!(run.number("/churn/done") > 10.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/whole_us/count"), run.number("/churn/first_echo_us/count"));
    let run = load("churn", good_echo(), &format!("{options} --rate 100"));
    run.is_clean();
    assert_eq!(run.number("/churn/first_echo_us/count"), 30.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/whole_us/count"), 30.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/opened"), 35.0, "{}", run.stdout);
}

#[test]
fn connections_without_a_slot_wait_and_are_timed_from_the_intended_moment() {
    let addr = server(|_, mut stream| {
        thread::sleep(Duration::from_millis(100));
        echo(&mut stream, |_| ())
    });
    let options = "--connections 1 --rate 20 --seconds 0.5 --warm-up 0";
    let run = load("churn", addr, options);
    run.is_clean();
    assert!(run.number("/messages/held_back") >= 3.0, "{}", run.stdout);
    // The last is scheduled at 450 ms and opens at 900 ms, when the window is long over.
    assert!(run.number("/churn/first_echo_us/max") > 540_000.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/first_echo_us/count"), 10.0, "{}", run.stdout);
    assert!(run.number("/churn/done") < 10.0, "{}", run.stdout);
}

#[test]
fn connections_that_never_get_a_slot_are_errors() {
    // The first is served. The next keeps its slot until patience is over.
    let addr = server(|number, mut stream| {
        if number > 0 {
            thread::sleep(RUN_MAX);
        }
        echo(&mut stream, |_| ())
    });
    let options = "--connections 1 --rate 100 --seconds 0.3 --warm-up 0 --patience 0.5";
    let run = load("churn", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let errors = &run.json["connections"]["errors"];
    let never_begun = "not begun within 0.5 s after the window: no slot was free";
    let never_begun = errors[never_begun].as_u64().expect("some");
    assert!(run.number("/messages/unsent") >= never_begun as f64, "{}", run.stdout);
    let given_up = errors["not closed within 0.5 s"].as_u64().expect("one at least");
    assert_eq!(run.number("/connections/opened"), 1.0, "{}", run.stdout);
    assert_eq!(1 + given_up + never_begun, 30, "{}", run.stdout);
    assert_eq!(run.number("/connections/wanted"), 30.0, "{}", run.stdout);
}

#[test]
fn a_connection_that_does_not_close_is_counted() {
    let addr = server(|_, mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    let options = "--connections 2 --seconds 0.3 --warm-up 0 --patience 0.2";
    load("churn", addr, options).is_refused("not closed within 0.2 s (");
}
