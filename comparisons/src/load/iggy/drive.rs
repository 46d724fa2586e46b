//! A closed loop with one request in flight on each connection, which may end by their number.

use std::time::Duration;

use super::super::dial::Dialer;
use super::super::exchange::Exchange;
use super::super::histogram::Histogram;
use super::super::options::Target;
use super::super::pace::{Clock, ns};
use super::super::session::{Opening, ReadyEvent, Session};
use super::super::window::Window;
use crate::Failure;

/// Opens connections with one request in flight, and logs them in.
///
/// # Errors
/// None could be opened.
pub(super) fn open<E: Exchange>(
    target: &Target,
    exchange: E,
    connections: usize,
    patience: Duration,
) -> Result<Session<E>, Failure> {
    let mut session = Session::new(exchange, Clock::new(), connections, 1, 0)?;
    let mut dialer = Dialer::new(target, connections)?;
    session.open_all(&mut dialer, patience, Duration::ZERO, Opening::Connect)?;
    session.tally.require_opened()?;
    Ok(session)
}

/// Sends a request on each connection, and the next as soon as it is answered, until the window is over or each connection
/// has sent `requests`. Then waits for the last answers. Gives up the connections without an answer when none has come
/// for as long as `patience`. Returns the latencies of what was sent in the window.
pub(super) fn drive<E: Exchange>(
    session: &mut Session<E>,
    window: &mut Window,
    requests: u64,
    patience: Duration,
) -> Result<Histogram, Failure> {
    let clock = session.clock;
    let mut latency = Histogram::new();
    let mut ready: Vec<ReadyEvent> = Vec::new();
    let mut left = vec![requests; session.connections()];
    for (index, left) in left.iter_mut().enumerate() {
        *left = left.saturating_sub(1);
        session.release(index, clock.now());
        session.flush(index);
    }
    let mut last_answer = clock.now();
    loop {
        let now = clock.now();
        window.observe(clock, now, &session.tally)?;
        if session.outstanding == 0 {
            return Ok(latency);
        }
        let deadline = last_answer.saturating_add(ns(patience));
        if now >= deadline {
            give_up(session, patience);
            return Ok(latency);
        }
        let next = window.next_after(now, deadline).min(deadline);
        session.wait(&mut ready, Duration::from_nanos(next - now))?;
        for event in &ready {
            let index = event.index;
            let outcome = session.handle_event(*event);
            for message in outcome.answered.clone() {
                let started = session.started(index, message);
                if window.contains(started) {
                    latency.record(outcome.now - started);
                }
                last_answer = outcome.now;
                if outcome.now < window.end && left[index] > 0 {
                    left[index] -= 1;
                    session.release(index, outcome.now);
                }
            }
            session.flush(index);
        }
    }
}

fn give_up<E: Exchange>(session: &mut Session<E>, patience: Duration) {
    let kind = format!("not answered within {} s", patience.as_secs_f64());
    for index in 0..session.connections() {
        if session.has_outstanding(index) {
            session.give_up(index, &kind);
        }
    }
}
