//! What a request asks for (RFC 9112 section 3.2).

/// The path and the query that `target` stands for; none where no request of `method` has such a target.
///
/// | form | | stands for |
/// |---|---|---|
/// | origin | `/path?query` | itself |
/// | absolute | `http://host/path?query` | `/path?query`, or `/` where there is none |
/// | asterisk | `*`, of `OPTIONS` | itself |
/// | authority | `host:port`, of `CONNECT` | itself |
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

/// The path of a target in origin form; `/` where it is a query alone.
pub(super) fn path(target: &str) -> &str {
    match target.split_once('?').map_or(target, |(path, _)| path) {
        "" => "/",
        path => path,
    }
}

/// Whether this is what `Host` may say: a host, and maybe a port (RFC 9110 section 7.2); or nothing, where
/// the target has no authority. No user, and nothing that could be taken for more than one of them.
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
