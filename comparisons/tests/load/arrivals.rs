//! `arrivals` and `burst`.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{RUN_MAX, echo, good_echo, load, server};

#[test]
fn arrivals_while_others_are_busy() {
    let options = "--busy 4 --payload 200 --rate 100 --seconds 0.5 --warm-up 0.1";
    let run = load("arrivals", good_echo(), options);
    run.is_clean();
    assert_eq!(run.number("/arrivals/came"), 50.0, "{}", run.stdout);
    let answered = run.number("/arrivals/within_1_s") + run.number("/arrivals/over_1_s");
    assert_eq!(answered, 50.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 50.0);
    assert_eq!(run.number("/arrivals/never") + run.number("/arrivals/failed"), 0.0);
    assert!(run.number("/messages/received") > 50.0, "{}", run.stdout);
    let options = "--busy 0 --payload 200 --rate 200 --seconds 0.25 --warm-up 0";
    let run = load("arrivals", good_echo(), options);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 50.0, "{}", run.stdout);
}

#[test]
fn arrivals_that_are_late_fail_or_get_no_echo() {
    // After the two busy ones: every fifth is never answered, every fifth closed, every fifth slow.
    let addr = server(|number, mut stream| {
        match number.checked_sub(2).map(|newcomer| newcomer % 5) {
            Some(0) => thread::sleep(RUN_MAX),
            Some(1) => return Ok(()),
            Some(2) => thread::sleep(Duration::from_millis(1200)),
            _ => {}
        }
        echo(&mut stream, |_| ())
    });
    let options = "--busy 2 --payload 20 --rate 100 --seconds 0.5 --warm-up 0 --patience 2";
    let run = load("arrivals", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/arrivals/came"), 50.0);
    assert_eq!(run.number("/arrivals/never"), 10.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/failed"), 10.0, "{}", run.stdout);
    assert!(run.number("/arrivals/over_1_s") >= 10.0, "{}", run.stdout);
    assert!(run.number("/arrivals/first_echo_us/max") > 1_190_000.0, "{}", run.stdout);
    // In the timeline those that wait in vain have the patience, and those that fail are counted.
    let slots = |of: &str| -> Vec<f64> {
        let slots = run.json.pointer(&format!("/arrivals/timeline/{of}"));
        slots.and_then(Value::as_array).unwrap().iter().filter_map(Value::as_f64).collect()
    };
    assert_eq!(slots("newcomers/received").iter().sum::<f64>(), 30.0, "{}", run.stdout);
    assert_eq!(slots("failed").iter().sum::<f64>(), 10.0, "{}", run.stdout);
    let in_vain = slots("newcomers/longest_us").into_iter().filter(|us| *us == 2_000_000.0);
    assert_eq!(in_vain.count(), 10, "{}", run.stdout);
    assert!(run.number("/arrivals/timeline/began_unix_ms") > 1.6e12, "{}", run.stdout);
}

#[test]
fn busy_connections_and_arrivals_have_separate_errors() {
    // One busy connection fails while it is opened and one later; every fifth new connection fails.
    let addr = server(|number, mut stream| {
        let ended = stream.try_clone()?;
        let mut rounds = 0;
        match number {
            0 => Ok(()),
            1 => echo(&mut stream, |_| {
                rounds += 1;
                if rounds == 20 {
                    let _ = ended.shutdown(Shutdown::Both);
                }
            }),
            4.. if number % 5 == 0 => Ok(()),
            _ => echo(&mut stream, |_| ()),
        }
    });
    let options = "--busy 4 --payload 20 --rate 100 --seconds 0.5 --warm-up 0";
    let run = load("arrivals", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // An end may arrive as a close or as a reset.
    let failed = |pointer: &str| -> u64 {
        let errors = run.json.pointer(pointer).and_then(Value::as_object).expect("errors");
        errors.values().filter_map(Value::as_u64).sum()
    };
    assert_eq!(run.number("/connections/wanted"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/opened"), 3.0, "{}", run.stdout);
    assert_eq!(failed("/connections/errors"), 2, "{}", run.stdout);
    assert_eq!(failed("/arrivals/errors"), 10, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/failed"), 10.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 40.0, "{}", run.stdout);
}

#[test]
fn an_arrival_with_a_wrong_echo() {
    let addr =
        server(|number, mut stream| echo(&mut stream, |bytes| bytes[0] ^= u8::from(number == 20)));
    let options = "--busy 2 --payload 20 --rate 100 --seconds 0.5 --warm-up 0";
    load("arrivals", addr, options).is_wrong("message 0 is wrong");
}

#[test]
fn a_burst() {
    let run = load("burst", good_echo(), "--connections 60");
    run.is_clean();
    assert_eq!(run.number("/burst/connected"), 60.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/echoed"), 60.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/never") + run.number("/burst/failed"), 0.0);
    assert!(run.number("/burst/connect_us/max") <= run.number("/burst/first_echo_us/max"));
}

#[test]
fn a_burst_that_is_not_echoed() {
    let addr = server(|number, mut stream| {
        match number {
            0..5 => thread::sleep(RUN_MAX),
            5..8 => return Ok(()),
            _ => {}
        }
        echo(&mut stream, |bytes| bytes[0] ^= u8::from(number == 10))
    });
    let run = load("burst", addr, "--connections 20 --patience 0.5");
    run.is_wrong("message 0 is wrong");
    assert_eq!(run.number("/burst/echoed"), 11.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/never"), 5.0, "{}", run.stdout);
    // Three that the server closed, and the one with a wrong echo.
    assert_eq!(run.number("/burst/failed"), 4.0, "{}", run.stdout);
    assert!(run.stdout.contains("5 never, 4 failed"), "{}", run.stdout);
}
