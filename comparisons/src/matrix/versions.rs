//! The versions of what is measured.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::servers::{FOLDER, Server};

/// Where a version is found. Paths start from the folder of `servers.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum Version {
    /// Of packages, in a lock file of cargo's.
    Lock { file: String, packages: Vec<String> },
    /// The first line that a command prints, where it is installed.
    Command(Vec<String>),
    /// Of `name`: what follows `after` in a file, up to a space, a quotation mark or a tag.
    Text { name: String, file: String, after: String },
}

/// The distinct versions, each as a name and a version, or as a command prints it.
pub(crate) fn of(servers: &[&Server]) -> Vec<String> {
    let mut sources: Vec<&Version> = Vec::new();
    for source in servers.iter().flat_map(|server| &server.versions) {
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    let mut versions: Vec<String> = Vec::new();
    for version in sources.into_iter().flat_map(Version::find) {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions
}

impl Version {
    fn find(&self) -> Vec<String> {
        let read =
            |file: &str| fs::read_to_string(Path::new(FOLDER).join(file)).unwrap_or_default();
        match self {
            Self::Lock { file, packages } => {
                let text = read(file);
                packages.iter().filter_map(|name| locked(&text, name)).collect()
            }
            Self::Command(words) => printed(words).into_iter().collect(),
            Self::Text { name, file, after } => {
                following(&read(file), after).map(|it| format!("{name} {it}")).into_iter().collect()
            }
        }
    }
}

/// A package of a lock file. Of several versions the last, which is the newest.
fn locked(text: &str, name: &str) -> Option<String> {
    let version = following(text, &format!("name = \"{name}\"\nversion = \""))?;
    Some(format!("{name} {version}"))
}

fn following<'a>(text: &'a str, after: &str) -> Option<&'a str> {
    let (_, version) = text.rsplit_once(after)?;
    version.split(|it: char| it.is_whitespace() || matches!(it, '"' | '<')).next()
}

fn printed(words: &[String]) -> Option<String> {
    let (program, args) = words.split_first()?;
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::servers::{Servers, Service};
    use super::*;

    #[test]
    fn a_locked_package_has_a_version() {
        let text = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\n[[package]]\n\
                    name = \"a\"\nversion = \"2.0.0\"\n";
        assert_eq!(locked(text, "a").as_deref(), Some("a 2.0.0"));
        assert_eq!(locked(text, "b"), None);
    }

    #[test]
    fn versions_are_found_where_the_servers_say() {
        let servers = Servers::read().unwrap();
        for (row, names) in [
            ("tokio", &["tokio ", "tokio-uring ", "compio-runtime ", "monoio ", "zlib-rs "][..]),
            ("ws-sockudo", &["sockudo-ws "]),
            ("ws-uwebsockets", &["libuwebsockets-sys 0."]),
            ("ws-gws", &["gws 1."]),
            ("ws-babl", &["babl 0."]),
            ("ws-vertx", &["vertx-core 5."]),
        ] {
            let server = servers.resolve(row, Service::Echo).unwrap();
            let found = of(&[&server, &server]);
            for name in names {
                let count = found.iter().filter(|it| it.starts_with(name)).count();
                assert_eq!(count, 1, "{row}: {found:?}");
            }
        }
    }
}
