//! `--origin` and the other options of objects.

use std::net::{Ipv6Addr, ToSocketAddrs};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::time::Duration;

use super::Listener;
use crate::config::Service;
use crate::object::{Directory, HttpOrigin, ObjectsConfig, Origin};

/// How many addresses of an origin are tried: those of two machines in both families.
const ADDRS_MAX: usize = 4;

/// The options, as they are given.
#[derive(Debug, Default)]
pub(super) struct ObjectOptions {
    pub(super) origin: Option<String>,
    pub(super) chunk: Option<u32>,
    pub(super) fresh_seconds: Option<u32>,
    pub(super) stale_seconds: Option<u32>,
    pub(super) memory_max: Option<NonZeroUsize>,
    pub(super) object_bytes_max: Option<NonZeroU32>,
}

impl ObjectOptions {
    /// The configuration of objects, if there is an origin. Refuses an origin that nobody is served from.
    pub(super) fn into_config(
        self,
        listeners: &[Listener],
    ) -> Result<Option<ObjectsConfig>, String> {
        let Some(origin) = self.origin else { return Ok(None) };
        if !listeners.iter().any(|listener| listener.service == Service::Http) {
            return Err(
                "--origin: nobody asks for objects: give --http or --https an address".into()
            );
        }
        let mut config = ObjectsConfig::new(parse(&origin)?);
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        config.chunk_bytes = self.chunk.and_then(|bytes| NonZeroUsize::new(bytes as usize));
        if let Some(time) = self.fresh_seconds {
            config.lifetime.fresh = seconds(time);
        }
        if let Some(time) = self.stale_seconds {
            config.lifetime.stale = seconds(time);
        }
        if let Some(bytes) = self.memory_max {
            config.memory_max = bytes.get();
        }
        if let Some(bytes) = self.object_bytes_max {
            config.object_bytes_max = u64::from(bytes.get());
        }
        Ok(Some(config))
    }
}

/// A URL with its scheme, or a directory. The name of a server is resolved here, once.
fn parse(text: &str) -> Result<Origin, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        let opened = Directory::open(Path::new(text));
        let error = |error| format!("--origin: cannot use the directory {text:?}: {error}");
        return opened.map(Origin::Directory).map_err(error);
    };
    let refused =
        |why: &str| format!("--origin: {text:?} is not an origin like http://host:80/path: {why}");
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(refused("the scheme is not http"));
    }
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['?', '#', '@', '\\']) {
        return Err(refused("it has a character that is not allowed"));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let prefix = path.trim_end_matches('/');
    if prefix.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(refused("a segment of the path is . or .."));
    }
    let (host, port) =
        split(authority).ok_or_else(|| refused("the host or the port is not valid"))?;
    let resolved = (host, port).to_socket_addrs();
    let resolved =
        resolved.map_err(|error| format!("--origin: cannot resolve {host:?}: {error}"))?;
    let addrs: Vec<_> = resolved.take(ADDRS_MAX).collect();
    if addrs.is_empty() {
        return Err(format!("--origin: {host:?} has no address"));
    }
    Ok(Origin::Http(HttpOrigin::new(&addrs, authority, prefix)))
}

/// The host of an authority, without brackets, and its port, 80 by default.
fn split(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => 80,
        None => return None,
        // `parse` would accept a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
    };
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_', ':'].contains(&c);
    (port > 0 && !host.is_empty() && host.chars().all(is_name_char)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_server_or_a_directory_or_named() {
        for (text, addr, host, prefix) in [
            ("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", ""),
            ("HTTP://127.0.0.1:8080/", "127.0.0.1:8080", "127.0.0.1:8080", ""),
            ("http://[::1]:81/a/b/", "[::1]:81", "[::1]:81", "/a/b"),
        ] {
            let Ok(Origin::Http(origin)) = parse(text) else { panic!("{text}") };
            assert_eq!(origin.addrs(), [addr.parse().unwrap()], "{text}");
            assert_eq!((origin.host(), origin.prefix()), (host, prefix), "{text}");
        }
        let dir = std::env::temp_dir();
        assert!(matches!(parse(dir.to_str().unwrap()), Ok(Origin::Directory(_))));
        for text in [
            "https://127.0.0.1",
            "ftp://127.0.0.1",
            "http://",
            "http:///a",
            "http://:80",
            "http://127.0.0.1:",
            "http://127.0.0.1:0",
            "http://127.0.0.1:+80",
            "http://127.0.0.1:65536",
            "http://127.0.0.1:80:80",
            "http://[::1",
            "http://[::1]80",
            "http://[127.0.0.1]",
            "http://user@127.0.0.1",
            "http://127.0.0.1/a?b",
            "http://127.0.0.1/a#b",
            "http://127.0.0.1/../a",
            "http://127.0.0.1/a b",
            "",
            "/nowhere/at/all",
            "/dev/null",
        ] {
            let why = parse(text).unwrap_err();
            assert!(
                why.contains("--origin") && why.contains(&format!("{text:?}")),
                "{text}: {why}"
            );
        }
    }
}
