//! [`AllowedOrigins`]: which pages may open WebSockets and send events.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use owned_io_websocket::handshake::Origins;

/// The origins whose pages may open WebSockets, and send [events](crate::service::events).
///
/// A browser lets any page open a WebSocket to any server, or send it a request, and sends the user's cookies along, or
/// the password that it remembers. A page that a user happens to visit could so act in their name (cross-site WebSocket
/// hijacking, and cross-site request forgery). The page cannot choose the
/// `Origin` that the browser sends. A server that identifies users by cookies, or by their network, must
/// therefore check it. Clients that are not browsers send no origin, and are admitted.
#[derive(Clone, Debug, Default)]
pub struct AllowedOrigins {
    /// None: any.
    only: Option<Arc<[String]>>,
}

impl AllowedOrigins {
    /// Only these. An origin is a scheme, a host, and a port if it is not the scheme's default, for example
    /// `https://example.com`. Each is brought into the form that browsers send (RFC 6454 section 6.2): in lower
    /// case, without the scheme's default port, and an IPv6 address as short as can be.
    ///
    /// # Errors
    /// A sentence that names the first entry that is not an origin. No page could ever match it.
    pub fn only(origins: Vec<String>) -> Result<Self, String> {
        let normalised = origins.iter().map(|origin| {
            normalised(origin).map_err(|why| {
                format!("--origins: {origin:?} is not an origin like https://example.com: {why}")
            })
        });
        Ok(Self { only: Some(normalised.collect::<Result<_, _>>()?) })
    }

    /// Calls `f` with the origins, in the form that the handshake takes.
    pub(crate) fn with<T>(&self, f: impl FnOnce(Origins<'_>) -> T) -> T {
        match &self.only {
            None => f(Origins::Any),
            Some(only) => f(Origins::Only(&borrowed(only))),
        }
    }
}

/// The form of an origin that browsers send, or why it is not an origin.
fn normalised(origin: &str) -> Result<String, &'static str> {
    let origin = origin.to_ascii_lowercase();
    let (scheme, authority) = origin.split_once("://").ok_or("there is no ://")?;
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || ['+', '-', '.'].contains(&c);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_scheme_char)
    {
        return Err("the scheme is not valid");
    }
    if authority.contains(['/', '?', '#']) {
        return Err("nothing may follow the host and the port, not even a slash");
    }
    if authority.contains('@') {
        return Err("a user is not allowed");
    }
    // The colons of an IPv6 address are in brackets.
    let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
    let (host, port) = authority.split_at(port_at.unwrap_or(authority.len()));
    let host = normalised_host(host)?;
    let default_port = match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    };
    match port.strip_prefix(':').map(port_number) {
        Some(None) => Err("the port is not a number from 1 to 65535"),
        Some(Some(port)) if Some(port) != default_port => Ok(format!("{scheme}://{host}:{port}")),
        _ => Ok(format!("{scheme}://{host}")),
    }
}

/// A port from 1 to 65535.
fn port_number(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()); // `parse` would accept a sign
    digits.parse().ok().filter(|port| is_number && *port > 0)
}

fn normalised_host(host: &str) -> Result<String, &'static str> {
    if let Some(addr) = host.strip_prefix('[') {
        let addr = addr.strip_suffix(']').and_then(|addr| addr.parse::<Ipv6Addr>().ok());
        let addr = addr.ok_or("what is in brackets is not an IPv6 address")?;
        return Ok(match (addr.to_ipv4_mapped(), addr.segments()) {
            (Some(_), [.., high, low]) => format!("[::ffff:{high:x}:{low:x}]"), // as browsers do
            (None, _) => format!("[{addr}]"),
        });
    }
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
    if host.is_empty() || !host.chars().all(is_host_char) {
        // A name with other letters is sent as xn--….
        return Err("the host may only have ASCII letters, digits, dots, hyphens and underscores");
    }
    // A browser takes a host that ends in a number for an IPv4 address, and sends it as four numbers (WHATWG URL,
    // "ends in a number").
    let is_number = |label: &str| match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    };
    let last = host.trim_end_matches('.').rsplit('.').next();
    if last.is_some_and(is_number) && host.parse::<Ipv4Addr>().is_err() {
        return Err("the host ends in a number, so it has to be an IPv4 address of four numbers");
    }
    Ok(host.to_owned())
}

fn borrowed(only: &[String]) -> Vec<&str> {
    only.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_not_an_origin_is_named() {
        let only = |origins: &[&str]| {
            AllowedOrigins::only(origins.iter().map(ToString::to_string).collect()).map(|_| ())
        };
        assert_eq!(only(&["https://example.com", "http://[::1]:8080", "null://x"]), Ok(()));
        for wrong in [
            "example.com",
            "null",
            "https://example.com/",
            "https://example.com/path",
            "https://example.com?query",
            "https://example.com#fragment",
            "https://user@example.com",
            "https://user:password@example.com",
            "https://",
            "https://:443",
            "://example.com",
            "2https://example.com",
            "https://*.example.com",
            "https://a b",
            "https://b\u{fc}cher.example",
            "https://a:",
            "https://a:0",
            "https://a:99999",
            "https://a:-1",
            "https://a:+1",
            "https://a:b",
            "https://a:1:2",
            "https://[::1",
            "https://::1",
            "https://[::g]",
            "https://1.2.3",
            "https://1.2.3.256",
            "https://0x7f.1",
            "https://0x7f",
            "https://1.2.3.0x",
            "https://2130706433",
        ] {
            let why = only(&["https://a.example", wrong]).unwrap_err();
            assert!(why.contains(&format!("{wrong:?}")), "{why}");
        }
    }

    #[test]
    fn an_origin_has_the_form_that_browsers_send() {
        for (given, sent) in [
            ("HTTPS://Example.COM", "https://example.com"),
            ("https://example.com:443", "https://example.com"),
            ("https://example.com:80", "https://example.com:80"),
            ("http://example.com:0080", "http://example.com"),
            ("http://example.com:08080", "http://example.com:8080"),
            ("http://[0:0:0:0:0:0:0:1]:80", "http://[::1]"),
            ("http://[::ffff:1.2.3.4]", "http://[::ffff:102:304]"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
            ("https://xn--bcher-kva.example.", "https://xn--bcher-kva.example."),
            ("https://3d.example", "https://3d.example"),
            ("http://3d-printer", "http://3d-printer"),
            ("http://10gnas:8080", "http://10gnas:8080"),
            ("http://a.0xg", "http://a.0xg"),
        ] {
            assert_eq!(normalised(given).as_deref(), Ok(sent));
        }
    }
}
