//! Options with a few named values.

use clap::ValueEnum;
#[cfg(feature = "tungstenite")]
use owned_io_tungstenite::BufferGrowth;
use serde::Deserialize;

/// The two named sets of ring settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// The defaults of the runtime.
    Default,
    /// The best for a server under load. Needs Linux 6.1.
    #[default]
    Tuned,
}

/// Which worker serves a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The one that accepts it. The kernel chooses that one by a hash of the addresses.
    #[default]
    Hash,
    /// The one that has the fewest connections.
    LeastConnections,
}

/// The implementation of the WebSocket protocol. All but the native engine need feature `tungstenite`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// `owned-io-websocket`, which works on buffers that operations own.
    #[default]
    Native,
    /// tungstenite over buffers of 8 KiB.
    #[cfg(feature = "tungstenite")]
    TungsteniteFixed,
    /// tungstenite over buffers that grow by 128 KiB.
    #[cfg(feature = "tungstenite")]
    TungsteniteLinear,
    /// tungstenite over buffers that double, and that the connections of a worker share.
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
    pub const fn growth(self) -> Option<BufferGrowth> {
        match self {
            Self::Native => None,
            Self::TungsteniteFixed => Some(BufferGrowth::FIXED),
            Self::TungsteniteLinear => Some(BufferGrowth::LINEAR),
            Self::TungsteniteExponential => Some(BufferGrowth::EXPONENTIAL),
        }
    }
}

/// Where messages of Iggy's clients and events are kept.
#[cfg(feature = "kafka")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// In a directory or in memory, by this server alone.
    #[default]
    Local,
    /// In Kafka, shared with other servers.
    Kafka,
}

/// How to compress WebSocket messages (RFC 7692).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deflate {
    /// Not at all. Compression takes more processor time than everything else, and can give secrets away, so
    /// the operator has to ask for it.
    #[default]
    Off,
    /// Each message by itself, with a compressor that all connections of a worker share.
    Shared,
    /// With context takeover, where the client allows or asks for it. Each connection has its own compressor.
    Takeover,
}

/// Whether to do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// Do it.
    #[default]
    On,
    /// Leave it.
    Off,
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

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Why the server ended though nobody asked it to.
    Error,
    /// What clients notice.
    Warn,
    /// The start and the end of the server.
    #[default]
    Info,
    /// Each connection that fails, and why.
    Debug,
    /// Everything.
    Trace,
}
