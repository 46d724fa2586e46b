use clap::CommandFactory;

use super::*;
#[cfg(feature = "kafka")]
use crate::config::iggy::MEMORY_BYTES;
use crate::config::{DataConfig, IggyConfig};
#[cfg(feature = "kafka")]
use crate::iggy::storage::kafka::KafkaConfig;

/// The path of a file for each test: each runs on a thread of its own.
fn temporary_file(name: &str) -> PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(format!("owned-io-{name}-{process}-{thread:?}"))
}

fn parse(text: &str) -> Result<Options, String> {
    let file = temporary_file("config");
    std::fs::write(&file, text).unwrap();
    let options = read(&file);
    std::fs::remove_file(&file).unwrap();
    options
}

/// What the flags and a file with this text configure together.
fn configured(file: &str, flags: &[&str]) -> Result<Config, String> {
    let flags = Flags::parse_from([&["owned-io-server"], flags].concat());
    flags.options.over(parse(file)?).into_config()
}

/// The same of a server for Iggy's clients.
fn configured_iggy(file: &str, flags: &[&str]) -> Result<IggyConfig, String> {
    let password = temporary_file("password");
    std::fs::write(&password, "secret\n").unwrap();
    let always = ["--tcp", "127.0.0.1:7", "--iggy-password-file", password.to_str().unwrap()];
    let config = configured(file, &[&always, flags].concat());
    std::fs::remove_file(&password).unwrap();
    Ok(config?.iggy.unwrap())
}

#[test]
fn flags_override_the_file() {
    let text = "echo = \"127.0.0.1:7\"\nworkers = 3\nring = \"default\"\ndeflate = \"takeover\"";
    let file = parse(text).unwrap();
    let flags = Flags::parse_from(["owned-io-server", "--workers", "5"]);
    let config = flags.options.over(file.clone()).into_config().unwrap();
    assert_eq!((config.workers.get(), config.ring), (5, Ring::Default));
    assert_eq!(config.websockets.deflate, Deflate::Takeover);
    let flags = Flags::parse_from(["owned-io-server", "--deflate", "shared"]);
    let config = flags.options.over(file).into_config().unwrap();
    assert_eq!(config.websockets.deflate, Deflate::Shared);
    let file = parse("echo = \"127.0.0.1:7\"").unwrap();
    assert_eq!(file.clone().into_config().unwrap().ring, Ring::Tuned);
    let flags = ["owned-io-server", "--ring", "tuned", "--ring", "default"];
    let config = Flags::parse_from(flags).options.over(file).into_config().unwrap();
    assert_eq!(config.ring, Ring::Default);
    let addr = ([127, 0, 0, 1], 7).into();
    let echo = Listener { service: Service::Echo, addr, is_over_tls: false };
    assert_eq!(config.listeners, [echo]);

    assert_eq!(config.websockets.engine, Engine::Native);
}

#[test]
fn stalls_are_watched_for_and_the_server_is_probed_unless_switched_off() {
    let stalls = |file: &str, flags: &[&str]| {
        configured(&format!("echo = \"127.0.0.1:7\"\n{file}"), flags).unwrap().stalls
    };
    let stall_time =
        |file: &str, flags: &[&str]| stalls(file, flags).time_min().map(|time| time.as_millis());
    assert_eq!(stall_time("", &[]), Some(100));
    let off = "stalls = \"off\"\nstall-milliseconds-min = 70";
    assert_eq!(stall_time(off, &[]), None);
    assert_eq!(stall_time(off, &["--stalls", "on"]), Some(70));
    let longer = ["--stalls", "on", "--stall-milliseconds-min", "900"];
    assert_eq!(stall_time(off, &longer), Some(900));
    assert_eq!(stall_time("", &["--stalls", "off"]), None);

    let stalls = |file: &str, flags: &[&str]| format!("{:?}", stalls(file, flags));
    assert!(stalls("", &[]).contains("probe_interval: Some(10s)"));
    let never = "stall-probe-seconds = 0";
    assert!(stalls(never, &[]).contains("probe_interval: None"));
    let seldom = ["--stall-probe-seconds", "60"];
    assert!(stalls(never, &seldom).contains("probe_interval: Some(60s)"));
}

#[test]
fn an_error_names_the_culprit_and_its_line() {
    let error = parse("workers = 3\n\nworker = 4").unwrap_err();
    assert!(error.contains("line 3") && error.contains("unknown field `worker`"), "{error}");
    let error = parse("workers = 0").unwrap_err();
    assert!(error.contains("line 1") && error.contains("nonzero"), "{error}");
}

#[cfg(feature = "tungstenite")]
#[test]
fn an_engine_is_chosen_by_file_or_by_flag() {
    let engine = parse("engine = \"tungstenite-linear\"").unwrap().engine;
    assert_eq!(engine, Some(Engine::TungsteniteLinear));
    let flags = Flags::parse_from(["owned-io-server", "--engine", "tungstenite-fixed"]);
    assert_eq!(flags.options.engine, Some(Engine::TungsteniteFixed));
}

/// Both are refused together, whether flags or the file set them. A default may be set explicitly.
#[cfg(feature = "tungstenite")]
#[test]
fn compression_needs_the_native_engine() {
    let configured =
        |file: &str, flags: &[&str]| configured(&format!("http = \"127.0.0.1:7\"\n{file}"), flags);
    let deflate = "deflate = \"shared\"";
    for (file, flags) in [
        ("", &["--engine", "tungstenite-fixed", "--deflate", "shared"][..]),
        (deflate, &["--engine", "tungstenite-linear"]),
        ("engine = \"tungstenite-exponential\"", &["--deflate", "takeover"]),
    ] {
        let error = configured(file, flags).unwrap_err();
        assert!(error.contains("--deflate") && error.contains("--engine"), "{error}");
    }
    assert!(configured(deflate, &["--engine", "native"]).is_ok());
    assert!(configured(deflate, &["--engine", "tungstenite-fixed", "--deflate", "off"]).is_ok());
}

#[test]
fn the_log_on_disk_is_configured_by_file_or_by_flags() {
    let configured =
        |file: &str, flags: &[&str]| configured_iggy(file, flags).map(|iggy| iggy.data);
    let data = |dir: &str, sync| Ok(Some(DataConfig { dir: dir.into(), sync }));
    let interval = SyncPolicy::Interval(Duration::from_millis(250));
    assert_eq!(configured("", &[]), Ok::<_, String>(None));
    assert_eq!(configured("", &["--data", "d"]), data("d", SyncPolicy::Batch));
    let file = "data = \"/f\"\nfsync = \"interval:250\"";
    assert_eq!(configured(file, &[]), data("/f", interval));
    assert_eq!(configured(file, &["--fsync", "never"]), data("/f", SyncPolicy::Never));
    for (file, flags, culprit) in [
        ("fsync = \"never\"", &[][..], "--fsync needs --data"),
        ("fsync = \"always\"", &["--data", "d"], "fsync: expected never, batch, or"),
        ("data = \"\"", &[], "--data: the directory has no name"),
        ("", &["--data", "d", "--fsync", "interval:31536000001"], "may be at most interval:"),
    ] {
        let error = configured(file, flags).unwrap_err();
        assert!(error.contains(culprit), "{error}");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_is_configured_by_file_or_by_flags() {
    let configured =
        |file: &str, flags: &[&str]| configured_iggy(file, flags).map(|iggy| iggy.kafka);
    let kafka = |brokers: &str, seconds| {
        let message_time_max = Duration::from_secs(seconds);
        let waiting_bytes_max = MEMORY_BYTES;
        let brokers = brokers.to_owned();
        Ok(Some(KafkaConfig { brokers, message_time_max, waiting_bytes_max }))
    };
    assert_eq!(configured("", &[]), Ok::<_, String>(None));
    assert_eq!(configured("", &["--store", "local"]), Ok(None));
    let file = "store = \"kafka\"\nkafka-brokers = \"a:1,[::1]:2\"";
    assert_eq!(configured(file, &[]), kafka("a:1,[::1]:2", 30));
    let flags = ["--kafka-brokers", "b:9092", "--kafka-seconds", "3"];
    assert_eq!(configured(file, &flags), kafka("b:9092", 3));
    for (file, flags, culprit) in [
        ("store = \"kafka\"", &[][..], "--store kafka needs --kafka-brokers"),
        ("", &["--kafka-brokers", "a:1"], "--kafka-brokers needs --store kafka"),
        ("kafka-seconds = 1", &[], "--kafka-seconds needs --store kafka"),
        (file, &["--data", "d"], "--data and --store kafka"),
        (file, &["--kafka-brokers", "a:1,b"], "\"b\" is no HOST:PORT"),
        (file, &["--kafka-seconds", "3601"], "--kafka-seconds is 3601"),
    ] {
        let error = configured(file, flags).unwrap_err();
        assert!(error.contains(culprit), "{error}");
    }
    let flags = ["server", "--echo", "127.0.0.1:7", "--store", "kafka"];
    let error = Flags::parse_from(flags).into_config().unwrap_err();
    assert!(error.contains("nobody has messages to keep"), "{error}");
}

fn value_name(arg: &clap::Arg) -> Option<&str> {
    arg.get_value_names()?.first().map(|name| name.as_str())
}

/// Each default that the help names is the one that applies.
#[test]
fn the_help_tells_the_defaults() {
    // Their defaults depend on the machine, are not a value, or need another option.
    const DESCRIBED: [&str; 5] = ["workers", "memory-max", "origins", "fsync", "kafka-seconds"];
    let dir = std::env::temp_dir();
    let configured = |flags: &[&str]| {
        let objects = ["--http", "127.0.0.1:8", "--origin", dir.to_str().unwrap()];
        let always = [&["owned-io-server", "--echo", "127.0.0.1:7"][..], &objects].concat();
        let enough = ["--workers", "1", "--memory-max", "1000000000000"];
        let flags = Flags::parse_from([&always[..], &enough, flags].concat());
        format!("{:?}", flags.into_config().unwrap())
    };
    for arg in Flags::command().get_arguments() {
        let option = arg.get_long().expect("there are no positional arguments");
        let help = arg.get_help().expect("each option has a help").to_string();
        let Some((_, default)) = help.split_once("[default: ") else {
            let is_named =
                ["ADDR", "DIR", "FILE", "LIST", "URL|DIR"].contains(&value_name(arg).unwrap());
            assert!(is_named || option == "runtime", "--{option} names no default");
            continue;
        };
        let default = default.trim_end_matches(']').split(',').next().unwrap();
        if !DESCRIBED.contains(&option) {
            let flag = format!("--{option}");
            assert_eq!(configured(&[&flag, default]), configured(&[]), "{flag} {default}");
        }
    }
}

/// From the flags and from the file.
#[test]
fn absurd_numbers_are_refused() {
    let command = Flags::command();
    let in_seconds = command.get_arguments().filter(|arg| value_name(arg) == Some("SECONDS"));
    let absurd_times = in_seconds.map(|arg| (arg.get_long().unwrap(), "4294967295"));
    let absurd_counts = [
        ("workers", "18446744073709551615"),
        ("workers", "1025"),
        ("connections-max", "18446744073709551615"),
        ("chunk", "16777217"),
        ("stall-milliseconds-min", "3600001"),
        ("stall-probe-seconds", "3601"),
    ];
    for (option, number) in absurd_times.chain(absurd_counts) {
        let flags = ["owned-io-server", "--echo", "127.0.0.1:7", &format!("--{option}"), number];
        let error = Flags::parse_from(flags).into_config().unwrap_err();
        assert!(error.contains(&format!("--{option} is {number}")), "{error}");
    }
    let most = ["--workers", "1024", "--connections-max", "16777216"];
    let longest = ["--drain-seconds", "31536000", "--idle-seconds-max", "31536000"];
    let serving = ["owned-io-server", "--echo", "127.0.0.1:7", "--memory-max", "1000000000000000"];
    let flags = [&serving[..], &most, &longest].concat();
    let config = Flags::parse_from(flags).into_config().unwrap();
    assert_eq!(config.connections_max(), 1 << 34);
    let file = parse("echo = \"127.0.0.1:7\"\nworkers = 1025").unwrap();
    assert!(file.into_config().unwrap_err().contains("--workers is 1025"));
}

#[test]
fn two_listeners_on_one_address_are_named() {
    let config = |one: &str, other: &str| {
        let flags = ["owned-io-server", "--sink", one, "--http", other];
        Flags::parse_from(flags).into_config().map(drop)
    };
    for (one, other) in [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("0.0.0.0:7", "127.0.0.1:7"),
        ("[::1]:7", "[::]:7"),
        ("127.0.0.1:7", "[::ffff:127.0.0.1]:7"),
        ("[fe80::1%2]:7", "[fe80::1%2]:7"),
        ("[fe80::1%2]:7", "[::]:7"),
    ] {
        let error = config(one, other).unwrap_err();
        assert!(error.contains("--sink and --http"), "{error}");
    }
    for (one, other) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:7", "127.0.0.1:8"),
        ("127.0.0.1:7", "127.0.0.2:7"),
        ("127.0.0.1:7", "[::1]:7"),
        ("[fe80::1%2]:7", "[fe80::1%3]:7"),
    ] {
        assert_eq!(config(one, other), Ok(()));
    }
    let flags = ["owned-io-server", "--echo", "127.0.0.1:7", "--admin", "127.0.0.1:7"];
    let error = Flags::parse_from(flags).into_config().unwrap_err();
    assert!(error.contains("--echo and --admin are both to listen on 127.0.0.1:7"), "{error}");
}

#[test]
fn serving_nothing_is_refused() {
    let flags = ["owned-io-server", "--admin", "127.0.0.1:7"];
    let error = Flags::parse_from(flags).into_config().unwrap_err();
    assert!(error.contains("nothing to serve"), "{error}");
    let error = Options::default().into_config().unwrap_err();
    assert!(error.contains("--echo"), "{error}");
}
