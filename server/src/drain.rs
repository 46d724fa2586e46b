//! The drain: how the server ends without cutting connections off.

use std::pin::pin;
use std::time::Duration;

use owned_io::{Runtime, StopSignal, select};

use crate::connection_limit::ConnectionLimit;
use crate::connections::Connections;

/// Asks the server to end, in two steps, from any thread. Clones are the same signal.
///
/// The caller that gives notice must also stop the server later. Between the two steps load balancers, which
/// poll `/health`, send new clients elsewhere before those would be refused.
#[derive(Clone, Debug, Default)]
pub struct DrainSignal {
    /// Notice: the server will end. `/health` answers 503, and everything else goes on.
    pub notice: StopSignal,
    /// Stop: the listeners close, and each connection is asked to close.
    pub stop: StopSignal,
}

impl DrainSignal {
    /// Whether either step was taken.
    pub fn has_begun(&self) -> bool {
        self.notice.is_stopped() || self.stop.is_stopped()
    }
}

/// Without notice.
impl From<StopSignal> for DrainSignal {
    fn from(stop: StopSignal) -> Self {
        Self { notice: StopSignal::new(), stop }
    }
}

/// Asks each connection to close, waits until all have, and resets those that have not after `time`. Returns
/// how many were reset.
pub(crate) async fn drain<R: Runtime>(
    connections: &Connections,
    limit: &ConnectionLimit,
    time: Duration,
) -> usize {
    connections.close_all();
    match select(pin!(limit.all_released()), R::sleep(time)).await.first {
        Some(()) => 0,
        None => connections.reset_all(),
    }
}
