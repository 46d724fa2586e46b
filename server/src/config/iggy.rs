//! `--iggy-password-file`, `--data`, `--store` and the other options of Iggy's clients.

#[cfg(feature = "kafka")]
use std::num::NonZeroU32;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "kafka")]
use super::Store;
use super::options::SECONDS_MAX;
use super::{Listener, Service, SyncPolicy, file};
#[cfg(feature = "kafka")]
use crate::iggy::storage::kafka::KafkaConfig;
use crate::iggy::{CREDENTIAL_BYTES_MAX, Credentials};

/// The options of the streams of Iggy's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IggyConfig {
    /// Who may log in.
    pub credentials: Credentials,
    /// The bytes of messages that are kept in memory, over all streams: all messages, or the recent ones of those in
    /// [`data`](Self::data). With Kafka: those that wait for its acknowledgement.
    pub memory_max: usize,
    /// Where messages and streams are kept. None: in memory only.
    pub data: Option<DataConfig>,
    /// The Kafka that keeps them instead.
    #[cfg(feature = "kafka")]
    pub kafka: Option<KafkaConfig>,
}

/// The options of the log on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataConfig {
    /// The directory.
    pub dir: PathBuf,
    /// When messages are acknowledged.
    pub sync: SyncPolicy,
}

/// The options, as they are given.
#[derive(Debug, Default)]
pub(super) struct IggyOptions {
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) memory_max: Option<NonZeroUsize>,
    pub(super) data: Option<PathBuf>,
    pub(super) fsync: Option<SyncPolicy>,
    #[cfg(feature = "kafka")]
    pub(super) store: Option<Store>,
    #[cfg(feature = "kafka")]
    pub(super) kafka_brokers: Option<String>,
    #[cfg(feature = "kafka")]
    pub(super) kafka_seconds: Option<NonZeroU32>,
}

impl IggyOptions {
    /// The configuration of Iggy, if there is a password. Refuses a password that nobody is asked for, a listener without
    /// one, and options of the log on disk and of Kafka that would have no effect.
    pub(super) fn into_config(self, listeners: &[Listener]) -> Result<Option<IggyConfig>, String> {
        let data = self.data_config()?;
        let credentials = self.credentials(listeners)?;
        let memory_max = self.memory_max.map_or(MEMORY_BYTES, NonZeroUsize::get);
        #[cfg(feature = "kafka")]
        let kafka = self.kafka_config(memory_max)?;
        Ok(credentials.map(|credentials| IggyConfig {
            credentials,
            memory_max,
            data,
            #[cfg(feature = "kafka")]
            kafka,
        }))
    }

    fn credentials(&self, listeners: &[Listener]) -> Result<Option<Credentials>, String> {
        let mut of_iggy = listeners.iter().filter(|listener| listener.service == Service::Iggy);
        let Some(path) = &self.password_file else {
            return match of_iggy.next() {
                Some(listener) => Err(format!("--{} needs --iggy-password-file", listener.name())),
                None => Ok(None),
            };
        };
        let serves =
            |listener: &Listener| matches!(listener.service, Service::Iggy | Service::Http);
        if !listeners.iter().any(serves) {
            let services = "--tcp, --tcp-tls, --http or --https";
            return Err(format!(
                "--iggy-password-file: nobody is asked for it: give {services} an address"
            ));
        }
        let text = file::read(path).map_err(|error| {
            format!("--iggy-password-file: cannot read {}: {error}", path.display())
        })?;
        let password = text.lines().next().unwrap_or_default().to_owned();
        let user = self.user.clone().unwrap_or_else(|| USER.to_owned());
        let credentials = Credentials::new(user, password).ok_or_else(|| {
            format!(
                "--iggy-user and --iggy-password-file: each is 1 to {CREDENTIAL_BYTES_MAX} bytes long"
            )
        })?;
        Ok(Some(credentials))
    }

    /// The configuration of the log on disk, if there is one.
    fn data_config(&self) -> Result<Option<DataConfig>, String> {
        match self.data.clone() {
            Some(_) if self.password_file.is_none() => {
                Err("--data: nobody has messages to keep: it needs --iggy-password-file".to_owned())
            }
            Some(dir) if dir.as_os_str().is_empty() => {
                Err("--data: the directory has no name".to_owned())
            }
            Some(dir) => {
                let sync = self.fsync.unwrap_or(SyncPolicy::Batch);
                if let SyncPolicy::Interval(interval) = sync
                    && interval > Duration::from_secs(SECONDS_MAX as u64)
                {
                    let max = SyncPolicy::Interval(Duration::from_secs(SECONDS_MAX as u64));
                    return Err(format!("--fsync is {sync}, and may be at most {max}"));
                }
                Ok(Some(DataConfig { dir, sync }))
            }
            None if self.fsync.is_some() => {
                Err("--fsync needs --data: without it messages are kept in memory".to_owned())
            }
            None => Ok(None),
        }
    }

    /// The configuration of Kafka, if it is the store.
    #[cfg(feature = "kafka")]
    fn kafka_config(&self, memory_max: usize) -> Result<Option<KafkaConfig>, String> {
        if self.store.unwrap_or_default() == Store::Local {
            return match (&self.kafka_brokers, self.kafka_seconds) {
                (None, None) => Ok(None),
                (Some(_), _) => Err("--kafka-brokers needs --store kafka".to_owned()),
                (None, Some(_)) => Err("--kafka-seconds needs --store kafka".to_owned()),
            };
        }
        if self.password_file.is_none() {
            let needed = "it needs --iggy-password-file";
            return Err(format!("--store kafka: nobody has messages to keep: {needed}"));
        }
        if self.data.is_some() {
            return Err("--data and --store kafka: messages are kept in one of them".to_owned());
        }
        let brokers = self.kafka_brokers.clone().ok_or("--store kafka needs --kafka-brokers")?;
        let is_address = |broker: &str| {
            let address = broker.rsplit_once(':');
            address
                .is_some_and(|(host, port)| !host.trim().is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(broker) = brokers.split(',').find(|broker| !is_address(broker)) {
            return Err(format!("--kafka-brokers: {broker:?} is no HOST:PORT"));
        }
        let seconds = self.kafka_seconds.map_or(KAFKA_SECONDS, NonZeroU32::get);
        Ok(Some(KafkaConfig {
            brokers,
            message_time_max: Duration::from_secs(seconds.into()),
            waiting_bytes_max: memory_max,
        }))
    }
}

/// `--iggy-user`: the default of Iggy's SDKs.
const USER: &str = "iggy";

/// `--iggy-memory-max`: some hundred thousand messages of 1 KB.
pub(super) const MEMORY_BYTES: usize = 256 << 20;

/// `--kafka-seconds`: a broker that is restarted is back by then, and many clients wait no longer for an answer.
#[cfg(feature = "kafka")]
const KAFKA_SECONDS: u32 = 30;
