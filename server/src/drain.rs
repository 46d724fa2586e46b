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

/// Asks each connection to close, waits until all have, and resets those that have not after `time`. No connection
/// is added once `adopted` has ended. Returns how many were reset, and the output of `adopted` if it has ended.
pub(crate) async fn drain<R: Runtime, T>(
    connections: &Connections,
    limit: &ConnectionLimit,
    adopted: impl Future<Output = T>,
    time: Duration,
) -> (usize, Option<T>) {
    connections.close_all();
    let drained = async {
        let adopted = adopted.await;
        limit.all_released().await;
        adopted
    };
    match select(pin!(drained), R::sleep(time)).await.first {
        Some(adopted) => (0, Some(adopted)),
        None => (connections.reset_all(), None),
    }
}
