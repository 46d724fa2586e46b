//! [`Leaving`]: how the server is asked to end.

use owned_io::StopSignal;

/// How the server is asked to end, in two steps. From any thread; clones are the same.
///
/// Whoever gives the first sees to it that the second follows: load balancers, which ask for `/health`, have
/// that long to send new clients elsewhere, before they would be refused.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    /// It will end: `/health` says so, and all else goes on.
    pub notice: StopSignal,
    /// It ends: nobody is accepted any more, and each connection is asked to end.
    pub stop: StopSignal,
}

impl Leaving {
    /// Whether it was asked to end, in either step.
    pub fn is_leaving(&self) -> bool {
        self.notice.is_stopped() || self.stop.is_stopped()
    }
}

/// Without notice.
impl From<StopSignal> for Leaving {
    fn from(stop: StopSignal) -> Self {
        Self { notice: StopSignal::new(), stop }
    }
}
