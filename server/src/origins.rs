//! [`AllowedOrigins`]: whose pages may open WebSockets.

use std::sync::Arc;

use owned_io_websocket::handshake::Origins;

/// The origins whose pages may open WebSockets.
///
/// A browser lets any page open a WebSocket to any server, and sends the user's cookies along: a page that
/// the user only happens to visit could speak to the server in their name (cross-site WebSocket hijacking).
/// What it cannot do is lie about where it is from, so a server that knows its users by cookies, or by where
/// they are in a network, has to look at `Origin`. Clients that are no browsers send none, and are let in.
#[derive(Clone, Debug, Default)]
pub struct AllowedOrigins {
    /// None: any.
    only: Option<Arc<[String]>>,
}

impl AllowedOrigins {
    /// These alone: a scheme, a host, and a port where it is not the scheme's, `https://example.com` say.
    ///
    /// # Errors
    /// A sentence that says which of them is no origin.
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

    /// Passes them to `ask`.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(Origins<'_>) -> T) -> T {
        match &self.only {
            None => ask(Origins::Any),
            Some(only) => ask(Origins::Only(&borrowed(only))),
        }
    }

    /// The same for what waits.
    pub(crate) async fn with_async<T>(&self, ask: impl AsyncFnOnce(Origins<'_>) -> T) -> T {
        match &self.only {
            None => ask(Origins::Any).await,
            Some(only) => ask(Origins::Only(&borrowed(only))).await,
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
