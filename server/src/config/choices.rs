//! Options with a few named values.

use clap::ValueEnum;
#[cfg(feature = "tungstenite")]
use owned_io_tungstenite::Strategy;
use serde::Deserialize;

/// The two named sets of ring settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// The runtime's own.
    #[default]
    Default,
    /// Those that serve a loaded server best.
    Tuned,
}

/// What speaks the protocol of WebSockets. All but the native engine need feature `tungstenite`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Ours, which works on buffers that operations own.
    #[default]
    Native,
    /// tungstenite over buffers of 8 KiB.
    #[cfg(feature = "tungstenite")]
    TungsteniteFixed,
    /// tungstenite over buffers that grow by 128 KiB.
    #[cfg(feature = "tungstenite")]
    TungsteniteLinear,
    /// tungstenite over buffers that double, and are the worker's.
    #[cfg(feature = "tungstenite")]
    TungsteniteExponential,
}

impl Engine {
    /// All of them, the default first.
    pub const ALL: &[Self] = &[
        Self::Native,
        #[cfg(feature = "tungstenite")]
        Self::TungsteniteFixed,
        #[cfg(feature = "tungstenite")]
        Self::TungsteniteLinear,
        #[cfg(feature = "tungstenite")]
        Self::TungsteniteExponential,
    ];

    /// The buffers of a bridge; none for the native engine.
    #[cfg(feature = "tungstenite")]
    pub const fn strategy(self) -> Option<Strategy> {
        match self {
            Self::Native => None,
            Self::TungsteniteFixed => Some(Strategy::FIXED),
            Self::TungsteniteLinear => Some(Strategy::LINEAR),
            Self::TungsteniteExponential => Some(Strategy::EXPONENTIAL),
        }
    }
}

/// How to compress WebSocket messages (RFC 7692).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deflate {
    /// Not at all: it takes more of the processor than all the rest, and can give secrets away, so it is
    /// for whoever runs the server to choose.
    #[default]
    Off,
    /// Each message for itself, by what all connections of a worker share.
    Shared,
    /// With context takeover, where the client allows or asks for it: each connection has its own.
    Takeover,
}

/// How to write logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What to log: this, and what is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Why the server ended that should not have.
    Error,
    /// What clients suffer from.
    Warn,
    /// How the server begins and ends.
    #[default]
    Info,
    /// Each connection that fails, and why.
    Debug,
    /// All there is.
    Trace,
}
