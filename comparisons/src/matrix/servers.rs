//! The servers that a plan can name: `comparisons/servers.toml`, which says how an entry is written.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::Failure;
use super::versions::Version;

/// The folder that an entry's paths start from.
pub(crate) const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

const FILE: &str = "servers.toml";

/// The option of every entry that names the same row once more, to compare it with itself.
const REPEATED: &str = "again";

/// What may stand for a value in a command, until it is run.
const AT_BUILD: [&str; 2] = ["{programs}", "{target}"];
const AT_RUN: [&str; 6] = ["{addr}", "{cert}", "{key}", "{password}", "{data}", "{objects}"];

/// All entries, one for each runtime where an entry has several.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    entries: Vec<Entry>,
}

/// A server as a row names it, with all that is needed to build and run it for one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// The row: the entry's name and the options.
    pub(crate) name: String,
    pub(crate) runtime: String,
    pub(crate) protocol: Protocol,
    pub(crate) build: Vec<String>,
    pub(crate) optional: bool,
    pub(crate) run: Vec<String>,
    /// Where its echo is over WebSocket, if not where all others have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// How many cores it runs on.
    #[serde(default = "one_core", skip_serializing_if = "is_one_core")]
    pub(crate) cores: NonZeroUsize,
    pub(crate) versions: Vec<Version>,
}

/// What a server and `load` speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Protocol {
    Tcp,
    Tls,
    #[serde(rename = "websocket")]
    WebSocket,
}

/// What a server does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Service {
    Echo,
    /// Echo over WebSocket, each message compressed for itself.
    Deflate,
    Sink,
    Source,
    /// Streams of messages, by Iggy's protocol.
    Iggy,
    /// Each message that is published is pushed to all subscribers.
    Fanout,
    /// Objects over HTTP.
    Object,
    /// Events that are posted over HTTP.
    Events,
}

/// What each row of a workload is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) enum Baseline {
    /// The hand-written server on the same runtime.
    Peer,
    /// The same server over TCP.
    Tcp,
    /// The same server on our own WebSocket engine.
    Native,
    /// One row.
    Row(String),
}

/// An entry of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    runtime: Option<String>,
    build: Vec<String>,
    #[serde(default)]
    optional: bool,
    run: Vec<String>,
    protocol: Protocol,
    services: Services,
    #[serde(default)]
    options: BTreeMap<String, OptionEntry>,
    peer: Option<String>,
    #[serde(default)]
    versions: Vec<Version>,
}

type Services = BTreeMap<Service, Vec<String>>;

/// An option of an entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OptionEntry {
    #[serde(default)]
    args: Vec<String>,
    protocol: Option<Protocol>,
    services: Option<Services>,
    extends: Option<String>,
    path: Option<String>,
    cores: Option<NonZeroUsize>,
}

/// A row's name, taken apart.
struct RowName<'a> {
    entry: &'a Entry,
    options: Vec<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Vec<Table>,
}

impl Servers {
    /// Those of `comparisons/servers.toml`.
    ///
    /// # Errors
    /// A sentence that names the entry and what is wrong with it.
    pub(crate) fn read() -> Result<Self, Failure> {
        let file = format!("{FOLDER}/{FILE}");
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        text.and_then(|text| Self::parse(&text))
            .map_err(|why| Failure::new(format!("cannot use {file}: {why}")))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let File { server } = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut entries: Vec<Entry> = Vec::new();
        for table in server {
            let name = table.get("name").map_or_else(|| "a server".to_owned(), Value::to_string);
            let named = |why: String| format!("{name}: {}", why.trim_end().replace('\n', ", "));
            for entry in for_each_runtime(table).map_err(named)? {
                let entry: Entry =
                    entry.try_into().map_err(|error: toml::de::Error| named(error.to_string()))?;
                entry.check().map_err(named)?;
                if entries.iter().any(|other| other.name == entry.name) {
                    return Err(named(format!("there are two servers {:?}", entry.name)));
                }
                entries.push(entry);
            }
        }
        for entry in &entries {
            if let Some(peer) = &entry.peer
                && entries.iter().all(|other| other.name != *peer)
            {
                return Err(format!("{:?}: there is no peer {peer:?}", entry.name));
            }
        }
        Ok(Self { entries })
    }

    /// The server that a row names, for one service.
    ///
    /// # Errors
    /// What of the name is unknown, with what there is; or that it does not serve this.
    pub(crate) fn resolve(&self, row: &str, service: Service) -> Result<Server, String> {
        let RowName { entry, options } = self.parse_row(row)?;
        let (protocol, services) = entry.speaks(&options);
        let Some(args) = services.get(&service) else {
            let served = list(services.keys());
            return Err(format!("{row:?} does not serve {service}: it serves {served}"));
        };
        let settings = options.iter().filter_map(|option| entry.options.get(*option));
        let path = settings.clone().find_map(|option| option.path.clone());
        if path.is_some() && service != Service::Echo {
            return Err(format!("{row:?} does not serve {service}: it serves echo"));
        }
        let cores = settings.clone().filter_map(|option| option.cores).max();
        let cores = cores.unwrap_or_else(one_core);
        let added = settings.flat_map(|option| &option.args);
        let run = entry.run.iter().chain(args).chain(added).cloned().collect();
        let Entry { build, optional, versions, .. } = entry.clone();
        let runtime = entry.runtime.clone().unwrap_or_else(|| entry.name.clone());
        let name = row.to_owned();
        Ok(Server { name, runtime, protocol, build, optional, run, path, cores, versions })
    }

    /// The row that `row` is compared with; none if that is itself.
    ///
    /// # Errors
    /// When there is no such row.
    pub(crate) fn baseline(
        &self,
        row: &str,
        baseline: &Baseline,
    ) -> Result<Option<String>, String> {
        let named = self.parse_row(row)?;
        if let Some(same) = repeated_row(row) {
            return Ok(Some(same.to_owned()));
        }
        let name = match baseline {
            Baseline::Row(name) => Some(name.clone()),
            Baseline::Peer => named.peer(),
            Baseline::Tcp => named.over_tcp(),
            Baseline::Native => named.on_native_engine(),
        };
        let name = name.ok_or_else(|| format!("{row:?} has no {}", baseline.twin()))?;
        Ok((name != row).then_some(name))
    }

    fn parse_row<'a>(&'a self, row: &'a str) -> Result<RowName<'a>, String> {
        let mut words = row.split('/');
        let name = words.next().unwrap_or_default();
        let entry = self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let names = list(self.entries.iter().map(|entry| &entry.name));
            format!("there is no server {name:?}: there are {names}")
        })?;
        let options: Vec<_> = words.collect();
        for (index, option) in options.iter().enumerate() {
            let is_last = index + 1 == options.len();
            let is_known = entry.options.contains_key(*option) || *option == REPEATED && is_last;
            if !is_known {
                let known = [REPEATED].into_iter().chain(entry.options.keys().map(String::as_str));
                let known = list(known);
                return Err(format!("{row:?}: {name:?} has no option {option:?}: it has {known}"));
            }
            let excludes = |other: &&&str| {
                *other == option || entry.sets_protocol(option) && entry.sets_protocol(other)
            };
            if let Some(other) = options[..index].iter().find(excludes) {
                return Err(format!("{row:?}: {option:?} and {other:?} exclude each other"));
            }
        }
        Ok(RowName { entry, options })
    }
}

impl Entry {
    /// Whether it can be used, whichever row names it.
    fn check(&self) -> Result<(), String> {
        let words = |key: &str, words: &[String], known: &[&str]| {
            let unknown = words.iter().find_map(|word| unknown_placeholder(word, known));
            unknown.map_or(Ok(()), |it| {
                Err(format!("{key}: there is no {it}: there are {}", list(known)))
            })
        };
        if self.build.is_empty() || self.run.is_empty() {
            return Err("`build` and `run` need a program".to_owned());
        }
        words("build", &self.build, &AT_BUILD)?;
        words("run", &self.run, &AT_RUN)?;
        for args in self.services.values() {
            words("services", args, &AT_RUN)?;
        }
        for (name, setting) in &self.options {
            words(name, &setting.args, &AT_RUN)?;
            for args in setting.services.iter().flat_map(BTreeMap::values) {
                words(name, args, &AT_RUN)?;
            }
            let OptionEntry { protocol, services, extends, .. } = setting;
            if protocol.is_some() != services.is_some() || services.is_some() && extends.is_some() {
                return Err(format!(
                    "option {name:?}: `protocol` and `services` go together, without `extends`"
                ));
            }
            if let Some(path) = &setting.path
                && (extends.is_none() || !path.starts_with('/'))
            {
                return Err(format!("option {name:?}: `path` begins with / and needs `extends`"));
            }
            let base = extends.as_ref().map(|base| (base, self.options.get(base)));
            if let Some((base, found)) = base
                && found.is_none_or(|it| it.services.is_none())
            {
                return Err(format!("option {name:?} extends {base:?}, which serves nothing"));
            }
        }
        Ok(())
    }

    fn sets_protocol(&self, option: &str) -> bool {
        self.options.get(option).is_some_and(|it| it.protocol.is_some() || it.extends.is_some())
    }

    /// What it speaks and serves with these options, all of which it has.
    fn speaks(&self, options: &[&str]) -> (Protocol, &Services) {
        let settings = options.iter().filter_map(|option| self.options.get(*option));
        let settings =
            settings.map(|it| it.extends.as_ref().map_or(it, |base| &self.options[base]));
        let mut own = settings.filter_map(|it| Some((it.protocol?, it.services.as_ref()?)));
        own.next().unwrap_or((self.protocol, &self.services))
    }
}

impl RowName<'_> {
    fn peer(&self) -> Option<String> {
        let is_plain = !self.options.iter().any(|option| self.entry.sets_protocol(option));
        let peer = self.entry.peer.as_ref().filter(|_| is_plain)?;
        Some(row(peer, &self.options))
    }

    fn over_tcp(&self) -> Option<String> {
        let Entry { name, protocol, .. } = self.entry;
        let has_own = self.options.iter().any(|option| self.entry.sets_protocol(option));
        let options = self.options.iter().copied();
        let options: Vec<_> = options.filter(|it| !self.entry.sets_protocol(it)).collect();
        (has_own && *protocol == Protocol::Tcp).then(|| row(name, &options))
    }

    fn on_native_engine(&self) -> Option<String> {
        let base = |option: &str| self.entry.options.get(option)?.extends.as_deref();
        self.options.iter().find_map(|option| base(option))?;
        let options = self.options.iter().map(|option| base(option).unwrap_or(option));
        Some(row(&self.entry.name, &options.collect::<Vec<_>>()))
    }
}

impl Baseline {
    /// In a sentence.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Peer => "the echo server written by hand",
            Self::Tcp => "the same over TCP",
            Self::Native => "the same on our own engine",
            Self::Row(name) => name,
        }
    }

    const fn twin(&self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Tcp => "twin over TCP",
            Self::Native => "twin on our engine",
            Self::Row(_) => "baseline",
        }
    }
}

impl From<String> for Baseline {
    fn from(text: String) -> Self {
        match text.as_str() {
            "peer" => Self::Peer,
            "tcp" => Self::Tcp,
            "native" => Self::Native,
            _ => Self::Row(text),
        }
    }
}

impl From<Baseline> for String {
    fn from(baseline: Baseline) -> Self {
        match baseline {
            Baseline::Peer => "peer".to_owned(),
            Baseline::Tcp => "tcp".to_owned(),
            Baseline::Native => "native".to_owned(),
            Baseline::Row(name) => name,
        }
    }
}

impl Server {
    /// The same as a row of its own.
    pub(crate) fn again(&self) -> Self {
        Self { name: format!("{}/{REPEATED}", self.name), ..self.clone() }
    }
}

const fn one_core() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn is_one_core(cores: &NonZeroUsize) -> bool {
    *cores == one_core()
}

impl Service {
    /// Where it is among the services over HTTP.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Echo | Self::Deflate => "/echo",
            Self::Sink => "/sink",
            Self::Source => "/source",
            // `load` knows the paths below.
            Self::Iggy | Self::Fanout => "/",
            Self::Object => "/object",
            Self::Events => "/events",
        }
    }
}

impl Display for Service {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Deflate => "deflate",
            Self::Sink => "sink",
            Self::Source => "source",
            Self::Iggy => "iggy",
            Self::Fanout => "fanout",
            Self::Object => "object",
            Self::Events => "events",
        })
    }
}

/// With `runtimes`, a table for each of them.
fn for_each_runtime(mut table: Table) -> Result<Vec<Table>, String> {
    let Some(runtimes) = table.remove("runtimes") else { return Ok(vec![table]) };
    let runtimes: Vec<String> =
        runtimes.try_into().map_err(|error| format!("runtimes: {error}"))?;
    let of = |runtime: String| {
        let mut table = table.clone();
        table.iter_mut().for_each(|(_, value)| replace(value, "{runtime}", &runtime));
        table.insert("runtime".to_owned(), runtime.into());
        table
    };
    Ok(runtimes.into_iter().map(of).collect())
}

/// In all strings within `value`.
fn replace(value: &mut Value, placeholder: &str, with: &str) {
    match value {
        Value::String(text) => *text = text.replace(placeholder, with),
        Value::Array(values) => values.iter_mut().for_each(|it| replace(it, placeholder, with)),
        Value::Table(table) => {
            table.iter_mut().for_each(|(_, value)| replace(value, placeholder, with));
        }
        _ => {}
    }
}

/// The first `{…}` in a word that is not among `known`.
fn unknown_placeholder(word: &str, known: &[&str]) -> Option<String> {
    let mut rest = word;
    while let Some((_, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let placeholder = format!("{{{name}}}");
        if !known.contains(&&*placeholder) {
            return Some(placeholder);
        }
        rest = after;
    }
    None
}

fn row(name: &str, options: &[&str]) -> String {
    options.iter().fold(name.to_owned(), |row, option| row + "/" + option)
}

/// The row that this one is once more; none if it is no such row.
fn repeated_row(row: &str) -> Option<&str> {
    row.strip_suffix(REPEATED)?.strip_suffix('/')
}

/// Separated by commas.
pub(crate) fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> Servers {
        Servers::read().unwrap()
    }

    fn run(row: &str, service: Service) -> String {
        servers().resolve(row, service).unwrap().run.join(" ")
    }

    #[test]
    fn a_row_is_a_command_line() {
        let run_echo = |row| run(row, Service::Echo);
        let ours = "owned-io-server --runtime compio --workers 1";
        assert_eq!(run_echo("compio"), format!("{ours} --echo {{addr}}"));
        assert_eq!(
            run_echo("compio/ring-default"),
            format!("{ours} --echo {{addr}} --ring default")
        );
        let tls = "--echo-tls {addr} --tls-cert {cert} --tls-key {key} --ring default";
        assert_eq!(run_echo("compio/ring-default/tls"), format!("{ours} {tls}"));
        let linear = "--http {addr} --engine tungstenite-linear";
        assert_eq!(run_echo("compio/tungstenite-linear"), format!("{ours} {linear}"));
        let hops = servers().resolve("compio/hops-app", Service::Echo).unwrap();
        assert_eq!(hops.run.join(" "), format!("{ours} --http {{addr}}"));
        assert_eq!(hops.path.as_deref(), Some("/echo?hops=app"));
        let deflate = run("compio/websocket", Service::Deflate);
        assert_eq!(deflate, format!("{ours} --http {{addr}} --deflate shared"));
        assert_eq!(run("ws-gws", Service::Deflate), "ws-gws {addr} --deflate");
        let data = "--iggy-password-file {password} --data {data} --fsync never";
        let iggy = run("compio/fsync-never/websocket", Service::Iggy);
        assert_eq!(iggy, format!("{ours} --http {{addr}} {data}"));
        assert_eq!(
            run("compio/fsync-never", Service::Iggy),
            format!("{ours} --tcp {{addr}} {data}")
        );
        let balanced =
            servers().resolve("tokio/workers-4/least-connections", Service::Echo).unwrap();
        let options = "--workers 4 --pin --balance least-connections";
        let balanced = (balanced.run.join(" "), balanced.cores.get());
        let ours_on_tokio = ours.replace("compio", "tokio");
        assert_eq!(balanced, (format!("{ours_on_tokio} --echo {{addr}} {options}"), 4));
        assert_eq!(hops.cores.get(), 1);
        let objects = "--http {addr} --origin {objects} --chunk 4096";
        assert_eq!(run("compio/chunk-4k", Service::Object), format!("{ours} {objects}"));
        assert_eq!(run("object-epoll", Service::Object), "object-epoll {addr} --objects {objects}");
        assert_eq!(
            run("compat-compio/chunk-4k", Service::Object),
            "object-through-traits --runtime compio --ring tuned {addr} --objects {objects} --chunk 4096"
        );
        for row in ["object-epoll", "object-uring"] {
            let zero_copy = run(&format!("{row}/zero-copy"), Service::Object);
            assert_eq!(zero_copy, format!("{row} {{addr}} --objects {{objects}} --zero-copy"));
        }
        let kafka = "--store kafka --kafka-brokers 127.0.0.1:9092 --http {addr} --iggy-password-file {password}";
        assert_eq!(run("kafka-compio", Service::Events), format!("{ours} {kafka}"));
        assert_eq!(run_echo("ws-faulty/slow"), "ws-faulty {addr} --fault slow");
        let traits = run_echo("traits-monoio/ring-default");
        assert_eq!(
            traits,
            "echo-through-traits --runtime monoio --ring tuned {addr} --ring default"
        );
    }

    #[test]
    fn a_row_has_a_runtime_and_a_protocol() {
        let servers = servers();
        for (row, runtime, protocol) in [
            ("tokio-uring/ring-default", "tokio-uring", Protocol::Tcp),
            ("echo-compio", "compio", Protocol::Tcp),
            ("compio/tungstenite-fixed", "compio", Protocol::WebSocket),
            ("glommio/tls", "glommio", Protocol::Tls),
            ("echo-tokio-rustls", "echo-tokio-rustls", Protocol::Tls),
            ("ws-sockudo", "ws-sockudo", Protocol::WebSocket),
        ] {
            let server = servers.resolve(row, Service::Echo).unwrap();
            assert_eq!((&*server.runtime, server.protocol), (runtime, protocol), "{row}");
        }
    }

    #[test]
    fn a_row_has_what_it_is_compared_with() {
        let servers = servers();
        let other = Baseline::Row("tokio".to_owned());
        for (row, baseline, name) in [
            ("compio/ring-default", Baseline::Peer, Some("echo-compio/ring-default")),
            ("traits-tokio", Baseline::Peer, Some("echo-tokio")),
            ("compio/ring-default/websocket", Baseline::Tcp, Some("compio/ring-default")),
            ("compio/tls", Baseline::Tcp, Some("compio")),
            ("kafka-glommio", Baseline::Peer, Some("events-hyper")),
            ("compio/fsync-batch/websocket", Baseline::Tcp, Some("compio/fsync-batch")),
            ("tokio/tungstenite-fixed", Baseline::Tcp, Some("tokio")),
            (
                "tokio/ring-default/tungstenite-fixed",
                Baseline::Native,
                Some("tokio/ring-default/websocket"),
            ),
            ("compio/websocket/again", Baseline::Tcp, Some("compio/websocket")),
            ("compio", other.clone(), Some("tokio")),
            ("tokio", other, None),
        ] {
            let found = servers.baseline(row, &baseline).unwrap();
            assert_eq!(found.as_deref(), name, "{row} {baseline:?}");
        }
        for (row, baseline, why) in [
            ("echo-tokio", Baseline::Peer, "\"echo-tokio\" has no peer"),
            ("tokio/websocket", Baseline::Peer, "\"tokio/websocket\" has no peer"),
            ("tokio", Baseline::Tcp, "\"tokio\" has no twin over TCP"),
            ("tokio/websocket", Baseline::Native, "has no twin on our engine"),
        ] {
            assert!(servers.baseline(row, &baseline).unwrap_err().contains(why), "{row}");
        }
    }

    #[test]
    fn an_unknown_name_is_shown_with_the_known_ones() {
        let servers = servers();
        for (row, service, why) in [
            ("turbo", Service::Echo, "no server \"turbo\": there are tokio, tokio-uring, compio"),
            (
                "compio/ring-defualt",
                Service::Echo,
                "no option \"ring-defualt\": it has again, chunk-16k, chunk-4k, fsync-batch, fsync-never, hops-app, least-connections, ring-default, stalls-off, tls,",
            ),
            (
                "echo-epoll/ring-default",
                Service::Echo,
                "\"echo-epoll\" has no option \"ring-default\"",
            ),
            ("echo-tokio", Service::Sink, "\"echo-tokio\" does not serve sink: it serves echo"),
            (
                "tokio",
                Service::Deflate,
                "does not serve deflate: it serves echo, sink, source, iggy",
            ),
            ("tokio/hops-app", Service::Sink, "does not serve sink: it serves echo"),
            ("tokio/hops-app/websocket", Service::Echo, "exclude each other"),
            ("tokio/tls/websocket", Service::Echo, "\"websocket\" and \"tls\" exclude each other"),
        ] {
            let error = servers.resolve(row, service).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    const ENTRY: &str = r#"
        [[server]]
        name = "small"
        build = ["make", "{programs}/small"]
        run = ["small"]
        protocol = "tcp"
        services.echo = ["{addr}"]
        options.tls = { protocol = "tls", services.echo = ["{addr}", "{cert}"] }
    "#;

    #[test]
    fn errors_name_the_entry() {
        assert!(Servers::parse(ENTRY).is_ok());
        for (right, wrong, why) in [
            ("build =", "biuld =", "unknown field `biuld`, expected one of `name`"),
            ("\"tcp\"", "\"udp\"", "unknown variant `udp`, expected one of `tcp`"),
            ("{programs}", "{program}", "build: there is no {program}: there are {programs}"),
            ("{addr}\"]\n", "{port}\"]\n", "services: there is no {port}: there are {addr}"),
            ("services.echo = [\"{addr}\"]", "services.ecco = []", "unknown variant `ecco`"),
            ("[\"small\"]", "[]", "`build` and `run` need a program"),
            ("protocol = \"tls\", ", "", "option \"tls\": `protocol` and `services` go together"),
            ("options.tls = {", "options.tls = { extends = \"it\",", "without `extends`"),
            ("options.tls = {", "options.tls = { path = \"/echo\",", "`path` begins with /"),
            ("protocol = \"tcp\"", "protocol = \"tcp\"\npeer = \"large\"", "no peer \"large\""),
        ] {
            assert!(ENTRY.contains(right), "{right}");
            let error = Servers::parse(&ENTRY.replacen(right, wrong, 1)).unwrap_err();
            assert!(error.contains(why) && error.contains("\"small\": "), "{error}");
        }
        let twice = Servers::parse(&format!("{ENTRY}{ENTRY}")).unwrap_err();
        assert!(twice.contains("two servers \"small\""), "{twice}");
    }
}
