//! The target of a request (RFC 9112 section 3.2), and `Host`.

use super::Refusal;

/// Checks that `method` can have `target`.
///
/// | form | target | |
/// |---|---|---|
/// | origin | `/path?query` | accepted |
/// | absolute | `http://host/path?query` | accepted if its [`authority`] equals `Host` |
/// | asterisk | `*`, of `OPTIONS` | not supported |
/// | authority | `host:port`, of `CONNECT` | not supported |
pub(super) fn check(method: &str, target: &str) -> Result<(), Refusal> {
    if method == "CONNECT" {
        return Err(Refusal::Connect);
    }
    // A fragment never leaves a client (RFC 9110 section 4.2.5). Bytes above 0x7F are no part of a URI.
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(Refusal::Target);
    }
    match target {
        "*" if method == "OPTIONS" => Err(Refusal::ServerWide),
        _ if target.starts_with('/') || split(target).is_some() => Ok(()),
        _ => Err(Refusal::Target),
    }
}

/// The authority of a target in absolute form.
pub(super) fn authority(target: &str) -> Option<&str> {
    split(target).map(|(authority, _)| authority)
}

/// The path of a target that was [checked](check), with the query if there is one.
pub(super) fn path_and_query(target: &str) -> &str {
    split(target).map_or(target, |(_, path)| path)
}

/// The authority, and the path and query, of a target in absolute form.
fn split(target: &str) -> Option<(&str, &str)> {
    if target.starts_with('/') {
        return None;
    }
    let (scheme, rest) = target.split_once("://")?;
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path_at);
    (is_http && !authority.is_empty()).then_some((authority, path))
}

/// Whether `host` is a host with an optional port (RFC 9110 section 7.2). Rejects user names, and characters that
/// could separate several hosts.
pub(super) fn is_host(host: &[u8]) -> bool {
    let (name, port) = match host {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let (address, port) = rest.split_at(end);
            let in_address = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
            if address.is_empty() || !address.iter().all(in_address) {
                return false;
            }
            return is_port(&port[1..]);
        }
        _ => host.split_at(host.iter().position(|byte| *byte == b':').unwrap_or(host.len())),
    };
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte);
    !name.is_empty() && name.iter().all(in_name) && is_port(port)
}

/// Whether it is empty, or a colon and at most five digits.
fn is_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_host() {
        for host in ["a", "example.com", "example.com:80", "a:", "[::1]:8080", "a_b.example", "%41"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":80",
            "a b",
            "user@example.com",
            "example.com/",
            "a,b",
            "a?b",
            "a:b",
            "a:123456",
            "[::1",
            "[]",
            "[::1]a",
            "[::1]:a",
            "[g]",
            "\u{e4}.example",
            "a:80:80",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn each_form_stands_for_a_path_or_is_refused() {
        for (method, target, expected) in [
            ("GET", "/", Ok("/")),
            ("GET", "/a?b=http://c/d", Ok("/a?b=http://c/d")),
            ("GET", "//a/b", Ok("//a/b")),
            ("GET", "HTTP://example.com:80/a?b", Ok("/a?b")),
            ("GET", "http://example.com", Ok("")),
            ("GET", "http://example.com?b", Ok("?b")),
            ("GET", "http:///a", Err(Refusal::Target)),
            ("GET", "ftp://example.com/a", Err(Refusal::Target)),
            ("GET", "example.com:80", Err(Refusal::Target)),
            ("GET", "*", Err(Refusal::Target)),
            ("GET", "a", Err(Refusal::Target)),
            ("GET", "/a#b", Err(Refusal::Target)),
            ("OPTIONS", "*", Err(Refusal::ServerWide)),
            ("CONNECT", "example.com:80", Err(Refusal::Connect)),
        ] {
            let path = check(method, target).map(|()| path_and_query(target));
            assert_eq!(path, expected, "{method} {target}");
        }
    }
}
