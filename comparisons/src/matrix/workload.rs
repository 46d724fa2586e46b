//! A workload: one load on several servers, and the figures that are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::pairs::Pairing;
use super::servers::{Baseline, Protocol, Server, Service};
use crate::load::{Load, NonZeroSeconds};

/// A window of this length has enough messages to count system calls per message.
const COUNTED_SECONDS: f64 = 0.3;

/// How far the interval of equal rows may reach from 1, in per cent, where the plan does not say how narrow it is to be.
const EQUAL_PERCENT: f64 = 2.0;

/// One load on several servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) load: Load,
    /// Whether TLS sessions are resumed, in rows that speak TLS.
    pub(crate) tls_resume: bool,
    /// What each row is compared with.
    pub(crate) baseline: Baseline,
    /// The rows, with those that they are compared with.
    pub(crate) rows: Vec<PlannedRow>,
    pub(crate) figures: Vec<Figure>,
    /// Of some figures, by their names, instead of their own.
    pub(crate) titles: BTreeMap<String, String>,
    /// The servers' limit of open files, if it is to be other than that of this process.
    pub(crate) open_files: Option<u32>,
    /// How often each row is measured, as the plan says, if not in pairs.
    pub(crate) rounds: usize,
    /// How it is measured in pairs; none if it is measured in rounds.
    #[serde(default)]
    pub(crate) pairing: Option<Pairing>,
    /// The name of the workload that has this as one of its rates.
    pub(crate) sweep: Option<String>,
}

/// A row before it is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlannedRow {
    pub(crate) server: Server,
    /// The row that it is compared with; none if that is itself.
    pub(crate) baseline: Option<String>,
}

/// The service that a load needs.
pub(crate) const fn service(load: &Load) -> Service {
    match load {
        Load::Echo(_)
        | Load::Arrivals(_)
        | Load::Burst(_)
        | Load::Churn(_)
        | Load::Hold(_)
        | Load::Limit(_) => Service::Echo,
        Load::Deflate(_) => Service::Deflate,
        Load::Sink(_) => Service::Sink,
        Load::Fetch(_) | Load::Source(_) => Service::Source,
        Load::Consume(_) | Load::Produce(_) => Service::Iggy,
        Load::Subscribe(_) => Service::Fanout,
        Load::Object(_) => Service::Object,
        Load::Post(_) => Service::Events,
    }
}

impl Workload {
    pub(crate) fn title(&self, figure: Figure) -> &str {
        self.titles.get(figure.name()).map_or_else(|| figure.title(), String::as_str)
    }

    /// The command line of `load`, but for the address and where it runs.
    pub(crate) fn load_line(&self) -> String {
        format!("{} {}", self.load.name(), self.load.args().join(" "))
    }

    /// How far from 1 the interval of equal rows may reach, in per cent.
    pub(crate) fn equal_percent(&self) -> f64 {
        self.pairing.map_or(EQUAL_PERCENT, |pairing| pairing.width_percent)
    }

    /// The arguments that depend on the row's protocol.
    pub(crate) fn args_for<'a>(&self, server: &'a Server) -> Vec<&'a str> {
        match server.protocol {
            Protocol::WebSocket => {
                let path = server.path.as_deref().unwrap_or_else(|| service(&self.load).path());
                vec!["--websocket", path]
            }
            Protocol::Tls if self.tls_resume => vec!["--tls-resume"],
            Protocol::Tls | Protocol::Tcp => Vec::new(),
        }
    }

    /// Changes the length of the window, if the load has one.
    pub(crate) fn change_seconds(&mut self, to: impl Fn(NonZeroSeconds) -> NonZeroSeconds) {
        if let Some(seconds) = self.load.seconds_mut() {
            *seconds = to(*seconds);
        }
    }

    /// The load with a window that is long enough to count system calls. None if it does not have exactly one window
    /// with messages.
    pub(crate) fn load_for_counting(&self) -> Option<Load> {
        let has_messages = match self.load {
            Load::Churn(_)
            | Load::Consume(_)
            | Load::Deflate(_)
            | Load::Echo(_)
            | Load::Fetch(_)
            | Load::Object(_)
            | Load::Post(_)
            | Load::Produce(_)
            | Load::Sink(_)
            | Load::Source(_) => true,
            Load::Arrivals(_)
            | Load::Burst(_)
            | Load::Hold(_)
            | Load::Limit(_)
            | Load::Subscribe(_) => false,
        };
        let mut load = has_messages.then(|| self.load.clone())?;
        if let Some(seconds) = load.seconds_mut()
            && let Ok(shorter) = f64::from(*seconds).min(COUNTED_SECONDS).try_into()
        {
            *seconds = shorter;
        }
        Some(load)
    }
}
