//! `load post`: posts events to a topic over HTTP/1.1, and checks each answer.
//!
//! It has a loop of its own, because answers differ in length and in status, and because connections end where a server
//! ends them: after a request, if each has a connection, or when they were idle.

mod answer;
mod client;
mod run;
mod slots;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::bounds::{Bounded, Connections, MessageRate, NonZeroSeconds, Seconds};
use super::iggy::access::Access;
use super::options::{self, PATIENCE, Target, WARM_UP};
use super::{Failure, Report};
use run::Run;

/// The length of an event: Kafka's brokers take up to a megabyte by default.
type EventBytes = Bounded<1, 1_000_000>;

/// The most memory for requests, in bytes: each connection has its own.
const REQUESTS_BYTES_MAX: u64 = 1 << 30;

/// The options of `load post`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Where the events go: /events/STREAM/TOPIC, with a query if need be.
    #[arg(long, value_name = "PATH")]
    path: String,
    /// The length of an event.
    #[arg(long, value_name = "BYTES")]
    payload: EventBytes,
    /// The most connections at a time, each with one request in flight. Without --rate there are always as many.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// Each request has a connection of its own, which the server ends.
    #[arg(long)]
    #[serde(default)]
    per_connection: bool,
    /// Open loop: so many events a second. Those without a free connection wait, also after the window.
    #[arg(long, value_name = "EVENTS_PER_S")]
    pub(crate) rate: Option<MessageRate>,
    /// The measured window.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// The time before it.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long a request may take, and how long after the window a waiting one may begin.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
    #[command(flatten)]
    #[serde(skip)]
    access: Access,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        self.check().map_err(Failure::new)?;
        if target.websocket.is_some() {
            return Err(Failure::new("`load post` speaks HTTP, without --websocket"));
        }
        if target.windows {
            return Err(Failure::new("`load post` has one window, without --windows"));
        }
        target.prepare(self.connections.count())?;
        let mut run = Run::new(self, target, &self.request(target)?)?;
        run.drive()?;
        run.into_report(self)?.finish(target)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.path.starts_with('/') || !self.path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("--path: expected a path such as /events/shop/orders".to_owned());
        }
        let bytes = self.connections.get() * (self.payload.get() + HEAD_BYTES);
        if bytes > REQUESTS_BYTES_MAX {
            return Err(format!("the requests would take {bytes} B: {REQUESTS_BYTES_MAX} at most"));
        }
        Ok(())
    }

    /// A request, whose body begins with a number that changes.
    fn request(&self, target: &Target) -> Result<Request, Failure> {
        let (host, path, length) = (target.addr, &self.path, self.payload.count());
        let connection = if self.per_connection { "Connection: close\r\n" } else { "" };
        let authorization = if self.access.is_named() {
            let (user, password) = (self.access.user(), self.access.password()?);
            let credentials = STANDARD.encode(format!("{user}:{password}"));
            format!("Authorization: Basic {credentials}\r\n")
        } else {
            String::new()
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}{connection}\
             Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
        );
        let body_at = head.len();
        let letters = (b'a'..=b'z').cycle().take(length);
        Ok(Request { bytes: head.into_bytes().into_iter().chain(letters).collect(), body_at })
    }
}

/// About the length of a head without a password, in bytes.
const HEAD_BYTES: u64 = 200;

/// The digits of an event's number.
const DIGITS: usize = 16;

/// What each event is made from: a number and letters.
#[derive(Clone, Debug)]
struct Request {
    bytes: Vec<u8>,
    body_at: usize,
}

impl Request {
    /// Makes the body that of this event. A body without room has the last digits.
    fn number(&mut self, mut number: u64) {
        let body = &mut self.bytes[self.body_at..];
        let digits = body.len().min(DIGITS);
        for digit in body[..digits].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        options: Options,
    }

    fn parse(text: &str) -> Line {
        let line = "load 127.0.0.1:7 --connections 1 --seconds 1 ".to_owned() + text;
        Line::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn a_request_has_a_number_in_its_body() {
        let Line { target, options } = parse("--path /events/s/t?key=a --payload 20");
        let mut request = options.request(&target).unwrap();
        request.number(98_765);
        let head = "POST /events/s/t?key=a HTTP/1.1\r\nHost: 127.0.0.1:7\r\n\
                    Content-Type: application/octet-stream\r\nContent-Length: 20\r\n\r\n";
        let expected = head.to_owned() + "0000000000098765qrst";
        assert_eq!(String::from_utf8(request.bytes).unwrap(), expected);
        let Line { target, options } = parse("--path /events/s/t --payload 2 --per-connection");
        let mut request = options.request(&target).unwrap();
        request.number(98_765);
        let text = String::from_utf8(request.bytes).unwrap();
        assert!(text.contains("\r\nConnection: close\r\n") && text.ends_with("\r\n65"), "{text}");
    }

    #[test]
    fn options_that_do_not_fit_together() {
        for (text, what) in [
            ("--path events --payload 1", "--path"),
            ("--path /events/s/\u{e9} --payload 1", "--path"),
            ("--path /e --payload 1000000 --connections 1100", "the requests would take"),
        ] {
            let line = "load 127.0.0.1:7 --seconds 1 ".to_owned() + text;
            let connections = if text.contains("--connections") { "" } else { " --connections 1" };
            let line = line + connections;
            let line = Line::try_parse_from(line.split_whitespace()).unwrap();
            let error = line.options.check().unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert_eq!(parse("--path /events/s/t --payload 1000000").options.check(), Ok(()));
    }
}
