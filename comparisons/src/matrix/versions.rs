//! Which versions of what is compared were measured.

use std::fs;
use std::process::Command;

/// What our server and the peers beside it are built of: a lock file, and of what is in it.
const LOCKED: [(&str, &[&str]); 2] = [
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"),
        &[
            "tokio",
            "tokio-uring",
            "compio-runtime",
            "monoio",
            "glommio",
            "tungstenite",
            "rustls",
            "zlib-rs",
        ],
    ),
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/peers/websocket/Cargo.lock"),
        &[
            "tokio-tungstenite",
            "fastwebsockets",
            "tokio-websockets",
            "sockudo-ws",
            "compio-ws",
            "monoio-tungstenite",
        ],
    ),
];

/// What other peers are built with, where it is installed. Those pin their libraries themselves.
const TOOLS: [(&str, &str); 3] = [("g++", "--version"), ("go", "version"), ("java", "--version")];

/// Each as its name and its version, or as it says itself.
pub(crate) fn here() -> Vec<String> {
    let locked = LOCKED.iter().flat_map(|(file, names)| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let versions = names.iter().filter_map(|name| locked(&text, name));
        versions.collect::<Vec<_>>()
    });
    let tools = TOOLS.iter().filter_map(|(tool, argument)| {
        let output = Command::new(tool).arg(argument).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout);
        said.lines().next().filter(|_| output.status.success()).map(str::to_owned)
    });
    locked.chain(tools).collect()
}

/// A package of a lock file; the newest, which is the last, of several.
fn locked(text: &str, name: &str) -> Option<String> {
    let (_, after) = text.rsplit_once(&format!("name = \"{name}\"\nversion = \""))?;
    let (version, _) = after.split_once('"')?;
    Some(format!("{name} {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_has_a_version() {
        let text = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\n[[package]]\n\
                    name = \"a\"\nversion = \"2.0.0\"\n";
        assert_eq!(locked(text, "a").as_deref(), Some("a 2.0.0"));
        assert_eq!(locked(text, "b"), None);
        let here = here();
        for name in LOCKED.iter().flat_map(|(_, names)| *names) {
            assert!(here.iter().any(|it| it.starts_with(&format!("{name} "))), "{name}: {here:?}");
        }
    }
}
