//! [`AllowedOrigins`]: which pages may open WebSockets.

use std::sync::Arc;

use owned_io_websocket::handshake::Origins;

/// The origins whose pages may open WebSockets.
///
/// A browser lets any page open a WebSocket to any server, and sends the user's cookies along. A page that a
/// user happens to visit could so act in their name (cross-site WebSocket hijacking). The page cannot choose the
/// `Origin` that the browser sends. A server that identifies users by cookies, or by their network, must
/// therefore check it. Clients that are no browsers send no origin, and are admitted.
#[derive(Clone, Debug, Default)]
pub struct AllowedOrigins {
    /// None: any.
    only: Option<Arc<[String]>>,
}

impl AllowedOrigins {
    /// Only these. An origin is a scheme, a host, and a port if it is not the scheme's default, for example
    /// `https://example.com`.
    ///
    /// # Errors
    /// A sentence that names the first that is no origin.
    pub fn only(origins: Vec<String>) -> Result<Self, String> {
        let wrong = |origin: &&String| {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_none_or(|host| host.is_empty() || host.contains(['/', '?', '#', ' ', '*']))
        };
        match origins.iter().find(wrong) {
            Some(wrong) => {
                Err(format!("--origins: {wrong:?} is no origin as https://example.com is"))
            }
            None => Ok(Self { only: Some(origins.into()) }),
        }
    }

    /// Calls `f` with the origins, in the form that the handshake takes.
    pub(crate) fn with<T>(&self, f: impl FnOnce(Origins<'_>) -> T) -> T {
        match &self.only {
            None => f(Origins::Any),
            Some(only) => f(Origins::Only(&borrowed(only))),
        }
    }

    /// As [`with`](Self::with), for a function that waits.
    pub(crate) async fn with_async<T>(&self, f: impl AsyncFnOnce(Origins<'_>) -> T) -> T {
        match &self.only {
            None => f(Origins::Any).await,
            Some(only) => f(Origins::Only(&borrowed(only))).await,
        }
    }
}

fn borrowed(only: &[String]) -> Vec<&str> {
    only.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_origin_is_named() {
        let only = |origins: &[&str]| {
            AllowedOrigins::only(origins.iter().map(ToString::to_string).collect()).map(|_| ())
        };
        assert_eq!(only(&["https://example.com", "http://[::1]:8080", "null://x"]), Ok(()));
        for wrong in ["example.com", "https://example.com/", "https://", "https://*.example.com"] {
            let why = only(&["https://a.example", wrong]).unwrap_err();
            assert!(why.contains(wrong), "{why}");
        }
    }
}
