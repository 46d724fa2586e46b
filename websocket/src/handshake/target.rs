//! The target of a request (RFC 9112 section 3.2).

/// Returns the path and the query of `target`, or `None` if a request of `method` cannot have this
/// target.
///
/// | form | target | path and query |
/// |---|---|---|
/// | origin | `/path?query` | the target |
/// | absolute | `http://host/path?query` | `/path?query`, or `/` if there is none |
/// | asterisk | `*`, of `OPTIONS` | the target |
/// | authority | `host:port`, of `CONNECT` | the target |
pub(super) fn origin_form<'b>(method: &str, target: &'b str) -> Option<&'b str> {
    if target.starts_with('/') || method == "CONNECT" || (method == "OPTIONS" && target == "*") {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    let is_ours =
        ["http", "https", "ws", "wss"].iter().any(|ours| scheme.eq_ignore_ascii_case(ours));
    let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path_at);
    (is_ours && !authority.is_empty()).then_some(match path {
        "" => "/",
        path => path,
    })
}

/// The path of a target in origin form; `/` if the target is only a query.
pub(super) fn path(target: &str) -> &str {
    match target.split_once('?').map_or(target, |(path, _)| path) {
        "" => "/",
        path => path,
    }
}

/// Whether this is a valid `Host`: a host with an optional port (RFC 9110 section 7.2), or nothing
/// if the target has no authority. Rejects user names, and characters that could separate several
/// hosts.
pub(super) fn is_authority(host: &[u8]) -> bool {
    host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_host() {
        for host in ["", "example.com", "example.com:80", "[::1]:8080", "a_b.example", "%41"] {
            assert!(is_authority(host.as_bytes()), "{host}");
        }
        for host in ["a b", "user@example.com", "example.com/", "a\tb", "a?b", "\u{e4}.example"] {
            assert!(!is_authority(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn each_form_stands_for_a_path_or_for_nothing() {
        for (method, target, expected) in [
            ("GET", "/", Some("/")),
            ("GET", "/a?b=http://c/d", Some("/a?b=http://c/d")),
            ("GET", "http://example.com", Some("/")),
            ("GET", "HTTP://example.com:80/a?b", Some("/a?b")),
            ("GET", "wss://[::1]:443/a", Some("/a")),
            ("GET", "http://example.com?b", Some("?b")),
            ("GET", "http:///a", None),
            ("GET", "ftp://example.com/a", None),
            ("GET", "example.com:80", None),
            ("GET", "*", None),
            ("GET", "a", None),
            ("OPTIONS", "*", Some("*")),
            ("CONNECT", "example.com:80", Some("example.com:80")),
        ] {
            assert_eq!(origin_form(method, target), expected, "{method} {target}");
        }
        assert_eq!((path("/a?b"), path("?b"), path("/")), ("/a", "/", "/"));
    }
}
