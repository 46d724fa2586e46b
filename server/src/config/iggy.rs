//! `--iggy-password-file`, `--data`, `--store` and the other options of Iggy's clients.

#[cfg(feature = "kafka")]
use std::num::NonZeroU32;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "kafka")]
use super::Store;
use super::options::SECONDS_MAX;
use super::{DataConfig, IggyConfig, Listener, Service, SyncPolicy, file};
#[cfg(feature = "kafka")]
use crate::iggy::storage::kafka::KafkaConfig;
use crate::iggy::{CREDENTIAL_BYTES_MAX, Credentials};

/// The user of Iggy's clients that their SDKs have for a default.
const IGGY_USER: &str = "iggy";

/// `--iggy-memory-max`: some hundred thousand messages of 1 KB.
pub(super) const IGGY_MEMORY_BYTES: usize = 256 << 20;

/// A broker that is restarted is back by then, and many clients wait no longer for an answer.
#[cfg(feature = "kafka")]
const KAFKA_SECONDS: u32 = 30;

/// The configuration of Iggy, if there is a password. Refuses a password that nobody is asked for, and a listener
/// without one.
pub(super) fn iggy(
    listeners: &[Listener],
    user: Option<String>,
    password_file: Option<PathBuf>,
    memory_max: Option<NonZeroUsize>,
    data: Option<DataConfig>,
) -> Result<Option<IggyConfig>, String> {
    let mut of_iggy = listeners.iter().filter(|listener| listener.service == Service::Iggy);
    let Some(path) = password_file else {
        return match of_iggy.next() {
            Some(listener) => Err(format!("--{} needs --iggy-password-file", listener.name())),
            None => Ok(None),
        };
    };
    let serves = |listener: &Listener| matches!(listener.service, Service::Iggy | Service::Http);
    if !listeners.iter().any(serves) {
        let services = "--tcp, --tcp-tls, --http or --https";
        return Err(format!(
            "--iggy-password-file: nobody is asked for it: give {services} an address"
        ));
    }
    let text = file::read(&path).map_err(|error| {
        format!("--iggy-password-file: cannot read {}: {error}", path.display())
    })?;
    let password = text.lines().next().unwrap_or_default().to_owned();
    let user = user.unwrap_or_else(|| IGGY_USER.to_owned());
    let credentials = Credentials::new(user, password).ok_or_else(|| {
        format!(
            "--iggy-user and --iggy-password-file: each is 1 to {CREDENTIAL_BYTES_MAX} bytes long"
        )
    })?;
    let memory_max = memory_max.map_or(IGGY_MEMORY_BYTES, NonZeroUsize::get);
    Ok(Some(IggyConfig {
        credentials,
        memory_max,
        data,
        #[cfg(feature = "kafka")]
        kafka: None,
    }))
}

/// Adds the configuration of Kafka, if it is the store. Refuses options that would have no effect.
#[cfg(feature = "kafka")]
pub(super) fn kafka(
    store: Option<Store>,
    brokers: Option<String>,
    seconds: Option<NonZeroU32>,
    has_data: bool,
    iggy: Option<&mut IggyConfig>,
) -> Result<(), String> {
    if store.unwrap_or_default() == Store::Local {
        return match (brokers, seconds) {
            (None, None) => Ok(()),
            (Some(_), _) => Err("--kafka-brokers needs --store kafka".to_owned()),
            (None, Some(_)) => Err("--kafka-seconds needs --store kafka".to_owned()),
        };
    }
    let Some(iggy) = iggy else {
        let needed = "it needs --iggy-password-file";
        return Err(format!("--store kafka: nobody has messages to keep: {needed}"));
    };
    if has_data {
        return Err("--data and --store kafka: messages are kept in one of them".to_owned());
    }
    let brokers = brokers.ok_or("--store kafka needs --kafka-brokers")?;
    let is_address = |broker: &str| {
        let address = broker.rsplit_once(':');
        address.is_some_and(|(host, port)| !host.trim().is_empty() && port.parse::<u16>().is_ok())
    };
    if let Some(broker) = brokers.split(',').find(|broker| !is_address(broker)) {
        return Err(format!("--kafka-brokers: {broker:?} is no HOST:PORT"));
    }
    let seconds = seconds.map_or(KAFKA_SECONDS, NonZeroU32::get);
    iggy.kafka = Some(KafkaConfig {
        brokers,
        message_time_max: Duration::from_secs(seconds.into()),
        waiting_bytes_max: iggy.memory_max,
    });
    Ok(())
}

/// The configuration of the log on disk, if there is one. Refuses options that would have no effect.
pub(super) fn data(
    dir: Option<PathBuf>,
    sync: Option<SyncPolicy>,
    has_iggy: bool,
) -> Result<Option<DataConfig>, String> {
    match dir {
        Some(_) if !has_iggy => {
            Err("--data: nobody has messages to keep: it needs --iggy-password-file".to_owned())
        }
        Some(dir) if dir.as_os_str().is_empty() => {
            Err("--data: the directory has no name".to_owned())
        }
        Some(dir) => {
            let sync = sync.unwrap_or(SyncPolicy::Batch);
            if let SyncPolicy::Interval(interval) = sync
                && interval > Duration::from_secs(SECONDS_MAX as u64)
            {
                let max = SyncPolicy::Interval(Duration::from_secs(SECONDS_MAX as u64));
                return Err(format!("--fsync is {sync}, and may be at most {max}"));
            }
            Ok(Some(DataConfig { dir, sync }))
        }
        None if sync.is_some() => {
            Err("--fsync needs --data: without it messages are kept in memory".to_owned())
        }
        None => Ok(None),
    }
}
