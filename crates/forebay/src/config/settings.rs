//! The values of a configuration: checked, in the types that the engine and the mount take.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::{Error, Kind, Result};
use forebay_engine::governor::schedule::Schedule;
use forebay_engine::rules::Rule;
use forebay_engine::{Config, Tunables, Watermark};
use forebay_fuse::{Locks, Passthrough, Transport};

use super::keys::{self, Change, KEYS, Key, Value};
use super::raw::{Origin, RawConfig};
use super::words::{self, meaning, word_for};

#[derive(Debug, Clone)]
pub struct Settings {
    pub engine: Config,
    pub tunables: Tunables,
    pub mount: MountSettings,
    pub log: LogSettings,
    pub metrics_listen: Option<SocketAddr>,
    /// Present if the mount is a member of a store that several nodes share.
    pub cluster: Option<ClusterSettings>,
    /// Admission rules that hold from the start.
    pub rules: Vec<Rule>,
    shown: Shown,
}

#[derive(Debug, Clone)]
pub struct MountSettings {
    pub no_exec: bool,
    pub passthrough: Passthrough,
    pub transport: Transport,
    pub kernel_writeback: bool,
    pub entry_ttl: Duration,
    pub attr_ttl: Duration,
    pub threads: usize,
    pub busy_poll: Duration,
}

/// How a mount reaches the other members of its store.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    pub registry: String,
    /// `None`: the host name.
    pub node: Option<String>,
    pub listen: SocketAddr,
    pub key: Option<PathBuf>,
    /// Present if the connections between members use TLS.
    pub certificates: Option<Certificates>,
    /// The number of other members that keep this member's acknowledged bytes, too.
    pub copies: u8,
    /// A write waits for the copies; otherwise fsync does.
    pub copies_at_write: bool,
    /// An fsync fails if it reaches fewer than `copies` members.
    pub copies_or_fail: bool,
    pub shares_reads: bool,
    pub locks: Locks,
    /// `None`: the node's name.
    pub domain: Option<String>,
}

/// The certificate of this member, its key, and the certificate authority of all members.
#[derive(Debug, Clone)]
pub struct Certificates {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

#[derive(Debug, Clone)]
pub struct LogSettings {
    pub json: bool,
    pub level: &'static str,
    pub file: Option<PathBuf>,
}

type Shown = BTreeMap<&'static str, (Value, Origin)>;

impl Settings {
    pub fn resolve(raw: &RawConfig) -> Result<Settings> {
        let mut shown = Shown::new();
        for key in KEYS {
            shown.insert(key.name, raw.value(key)?);
        }
        let at = |name: &str| &shown[name].0;
        let mut tunables = Tunables::default();
        for key in live_keys() {
            set_tunable(&mut tunables, key.name, at(key.name));
        }
        check(&tunables)?;
        let passthrough = meaning(&words::PASSTHROUGH, word(at("passthrough")));
        let settings = Settings {
            engine: Config {
                read_only: flag(at("read-only")),
                names_max: count(at("names-max")),
                digests_from: match passthrough {
                    Passthrough::Auto | Passthrough::Always => {
                        bytes(at("digests-from")).expect("a size without auto")
                    }
                    // Files written past the daemon were empty before: they are flushed as a whole.
                    Passthrough::New | Passthrough::ReadOnly | Passthrough::Off => u64::MAX,
                },
                ..Config::default()
            },
            tunables,
            mount: MountSettings {
                no_exec: flag(at("noexec")),
                passthrough,
                transport: meaning(&words::TRANSPORT, word(at("transport"))),
                kernel_writeback: flag(at("kernel-writeback")),
                entry_ttl: time_or(at("entry-ttl"), at("trust")),
                attr_ttl: time_or(at("attr-ttl"), at("trust")),
                threads: count(at("threads")),
                busy_poll: time(at("busy-poll")),
            },
            log: LogSettings {
                json: meaning(&words::LOG_IS_JSON, word(at("log-format"))),
                level: word(at("log-level")),
                file: file(at("log-file")),
            },
            metrics_listen: listen(at("metrics-listen")),
            cluster: text(at("registry")).map(|registry| ClusterSettings {
                registry,
                node: text(at("node")),
                listen: listen(at("peer-listen")).expect("it has a default"),
                key: file(at("cluster-key")),
                certificates: certificates(CERTIFICATES.map(|name| file(at(name)))),
                copies: count(at("copies")) as u8,
                copies_at_write: meaning(&words::COPIES_AT_WRITE, word(at("copies-at"))),
                copies_or_fail: meaning(&words::COPIES_OR_FAIL, word(at("copies-short"))),
                shares_reads: flag(at("share-reads")),
                locks: meaning(&words::LOCKS, word(at("locks"))),
                domain: text(at("failure-domain")),
            }),
            rules: raw.rules.clone(),
            shown,
        };
        settings.check_together()?;
        Ok(settings)
    }

    /// Every key with its value and origin, in the table's order.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, &Value, &Origin)> {
        KEYS.iter().map(|key| {
            let (value, origin) = &self.shown[key.name];
            (key, value, origin)
        })
    }

    pub fn value(&self, name: &str) -> Option<&Value> {
        self.shown.get(name).map(|(value, _)| value)
    }

    /// Whether the user gave the value for this mount alone; a file may be meant for other mounts, too.
    fn is_typed(&self, name: &str) -> bool {
        let origin = self.shown.get(name).map(|(_, origin)| origin);
        matches!(origin, Some(Origin::Flag | Origin::Env(_)))
    }

    /// Refuses keys that exclude each other, which no check of a single value can find.
    fn check_together(&self) -> Result<()> {
        let writeback = self.mount.kernel_writeback;
        if writeback
            && matches!(
                self.mount.passthrough,
                Passthrough::Always | Passthrough::New | Passthrough::ReadOnly
            )
        {
            return Err(Error::new(
                Kind::Usage,
                "kernel-writeback excludes passthrough: leave passthrough at auto or off, or \
                 kernel-writeback out",
            ));
        }
        if self.mount.busy_poll > BUSY_POLL_MAX {
            return Err(Error::new(
                Kind::Usage,
                "busy-poll is a moment, not a pause: give at most 10ms, or 0s for none",
            ));
        }
        if self.cluster.is_some() && writeback {
            return Err(Error::new(
                Kind::Usage,
                "kernel-writeback excludes registry: pages that the kernel writes later would go over \
                 what other nodes wrote meanwhile; leave kernel-writeback out",
            ));
        }
        let given = |name: &&str| matches!(self.value(name), Some(Value::File(Some(_))));
        let (has, lacks): (Vec<_>, Vec<_>) = CERTIFICATES.into_iter().partition(given);
        if let ([first, ..], [other, ..]) = (&has[..], &lacks[..]) {
            return Err(Error::new(
                Kind::Usage,
                format!("{first} needs {other}, too: give all of {}", CERTIFICATES.join(", ")),
            ));
        }
        if self.cluster.is_none() && matches!(self.value("copies"), Some(Value::Count(1..))) {
            return Err(Error::new(
                Kind::Usage,
                "copies needs registry: other members of the store keep them",
            ));
        }
        if self.cluster.is_none()
            && let Some(name) = OF_MEMBERS.into_iter().find(|name| self.is_typed(name))
        {
            let what =
                format!("{name} needs registry: without it this mount is alone, and no member");
            return Err(Error::new(Kind::Usage, what));
        }
        if let Some(cluster) = &self.cluster
            && !cluster.listen.ip().is_loopback()
            && cluster.key.is_none()
        {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "peer-listen {}: whoever reaches it could read and write your files: give \
                     cluster-key, a file with a key that all members share",
                    cluster.listen
                ),
            ));
        }
        Ok(())
    }
}

/// Settings that only a member of a shared store uses.
const OF_MEMBERS: [&str; 6] =
    ["peer-listen", "cluster-key", "peer-cert", "peer-cert-key", "peer-ca", "failure-domain"];

/// Either all of them are given, or none.
const CERTIFICATES: [&str; 3] = ["peer-cert", "peer-cert-key", "peer-ca"];

fn certificates(given: [Option<PathBuf>; 3]) -> Option<Certificates> {
    let [Some(cert), Some(key), Some(ca)] = given else { return None };
    Some(Certificates { cert, key, ca })
}

/// Longer than any wake-up of a thread takes.
const BUSY_POLL_MAX: Duration = Duration::from_millis(10);

/// In a smaller tier the watermarks would be only a handful of units of eviction apart.
const TIER_SIZE_MIN: u64 = 16 << 20;

fn check(tunables: &Tunables) -> Result<()> {
    let small = tunables.tier_size.filter(|size| *size < TIER_SIZE_MIN);
    let fine = match small {
        Some(size) => {
            let size = crate::units::exact_size(size);
            Err(format!("tier-size {size} is too small: give at least 16MiB"))
        }
        None => tunables.validate(),
    };
    fine.map_err(|reason: String| Error::new(Kind::Usage, reason))
}

pub fn live_keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.change == Change::Live)
}

/// Applies one change to a running daemon's tunables; nothing is changed on error.
pub fn change_tunable(tunables: &Tunables, name: &str, text: &str) -> Result<Tunables> {
    let usage = |reason: String| Error::new(Kind::Usage, format!("{name}: {reason}"));
    let key = keys::find(name).map_err(usage)?;
    if key.change == Change::Fixed {
        let fix = format!("cannot change while mounted: unmount, then mount with --{name}");
        return Err(usage(fix));
    }
    let value = key
        .parse(text)
        .map_err(|reason| Error::new(Kind::Usage, format!("{name} = {}: {reason}", text.trim())))?;
    let mut changed = tunables.clone();
    set_tunable(&mut changed, name, &value);
    check(&changed)?;
    Ok(changed)
}

/// The value of a live key; `None` for any other.
pub fn tunable(tunables: &Tunables, name: &str) -> Option<Value> {
    Some(match name {
        "policy" => Value::Word(word_for(&words::POLICY, tunables.policy)),
        "tier-size" => tunables.tier_size.map_or(Value::Auto, Value::Bytes),
        "eviction" => Value::Word(word_for(&words::EVICTION, tunables.eviction)),
        "bypass-reads" => size_or_off(tunables.bypass_reads),
        "bypass-writes" => size_or_off(tunables.bypass_writes),
        "preset" => Value::Word(word_for(&words::PRESET, tunables.preset)),
        "max-age" => Value::Time(tunables.max_age),
        "settle" => Value::Time(tunables.settle),
        "dirty-low" => Value::Level(tunables.dirty_low),
        "dirty-high" => Value::Level(tunables.dirty_high),
        "dirty-hard" => Value::Level(tunables.dirty_hard),
        "used-high" => Value::Percent(tunables.used_high),
        "rate-max" => Value::Rate(tunables.rate_max),
        "ops-max" => Value::Count(tunables.ops_max),
        "latency-target" => tunables.latency_target.map_or(Value::Auto, Value::Time),
        "schedule" => Value::Windows(tunables.schedule.clone()),
        "flush-depth" => Value::Count(tunables.flush_depth.into()),
        "fill-depth" => Value::Count(tunables.fill_depth.into()),
        "readahead" => Value::Bytes(tunables.readahead),
        "revalidate" => Value::Time(tunables.revalidate),
        "backing-timeout" => Value::Time(tunables.backing_timeout),
        _ => return None,
    })
}

/// # Panics
///
/// On a key that is not live or a value of another type; [`Key::parse`] gave the value its type.
fn set_tunable(tunables: &mut Tunables, name: &str, value: &Value) {
    let depth = |value| u32::try_from(count(value)).expect("the table bounds depths by 64");
    match name {
        "policy" => tunables.policy = meaning(&words::POLICY, word(value)),
        "tier-size" => tunables.tier_size = bytes(value),
        "eviction" => tunables.eviction = meaning(&words::EVICTION, word(value)),
        "bypass-reads" => tunables.bypass_reads = bytes(value).unwrap_or(0),
        "bypass-writes" => tunables.bypass_writes = bytes(value).unwrap_or(0),
        "preset" => tunables.preset = meaning(&words::PRESET, word(value)),
        "max-age" => tunables.max_age = time(value),
        "settle" => tunables.settle = time(value),
        "dirty-low" => tunables.dirty_low = level(value),
        "dirty-high" => tunables.dirty_high = level(value),
        "dirty-hard" => tunables.dirty_hard = level(value),
        "used-high" => tunables.used_high = percent(value),
        "rate-max" => tunables.rate_max = bytes(value).expect("a rate is a number"),
        "ops-max" => tunables.ops_max = count(value) as u64,
        "latency-target" => {
            tunables.latency_target = (*value != Value::Auto).then(|| time(value));
        }
        "schedule" => tunables.schedule = windows(value),
        "flush-depth" => tunables.flush_depth = depth(value),
        "fill-depth" => tunables.fill_depth = depth(value),
        "readahead" => tunables.readahead = bytes(value).expect("a size without auto"),
        "revalidate" => tunables.revalidate = time(value),
        "backing-timeout" => tunables.backing_timeout = time(value),
        _ => panic!("{name} is not a live key"),
    }
}

fn size_or_off(bytes: u64) -> Value {
    if bytes == 0 { Value::Off } else { Value::Bytes(bytes) }
}

/// These functions panic on a value of another type: the table gives each key one type, and the tests
/// read every key.
fn word(value: &Value) -> &'static str {
    let Value::Word(word) = value else { panic!("{value:?} is no word") };
    word
}

fn flag(value: &Value) -> bool {
    let Value::Flag(on) = value else { panic!("{value:?} is no flag") };
    *on
}

fn time(value: &Value) -> Duration {
    let Value::Time(time) = value else { panic!("{value:?} is no time") };
    *time
}

/// The time, or for `auto` that of the other key.
fn time_or(value: &Value, other: &Value) -> Duration {
    if *value == Value::Auto { time(other) } else { time(value) }
}

fn percent(value: &Value) -> u8 {
    let Value::Percent(share) = value else { panic!("{value:?} is no share") };
    *share
}

fn windows(value: &Value) -> Schedule {
    let Value::Windows(schedule) = value else { panic!("{value:?} is no schedule") };
    schedule.clone()
}

fn level(value: &Value) -> Watermark {
    let Value::Level(mark) = value else { panic!("{value:?} is no watermark") };
    *mark
}

fn count(value: &Value) -> usize {
    let Value::Count(count) = value else { panic!("{value:?} is no count") };
    usize::try_from(*count).expect("the table bounds counts far below")
}

fn bytes(value: &Value) -> Option<u64> {
    match value {
        Value::Bytes(bytes) | Value::Rate(bytes) => Some(*bytes),
        Value::Auto | Value::Off => None,
        _ => panic!("{value:?} is no size"),
    }
}

fn file(value: &Value) -> Option<PathBuf> {
    let Value::File(path) = value else { panic!("{value:?} is no path") };
    path.clone()
}

fn text(value: &Value) -> Option<String> {
    let Value::Text(text) = value else { panic!("{value:?} is no text") };
    text.clone()
}

fn listen(value: &Value) -> Option<SocketAddr> {
    let Value::Listen(address) = value else { panic!("{value:?} is no address") };
    *address
}

#[cfg(test)]
mod tests {
    use forebay_engine::governor::law::Preset;

    use super::*;

    fn with(pairs: &[(&'static str, &str)]) -> Result<Settings> {
        let flags = pairs.iter().map(|(k, v)| (*k, (*v).to_string())).collect();
        Settings::resolve(&RawConfig::from_flags(&flags))
    }

    #[test]
    fn the_tables_defaults_are_the_engines() {
        let settings = with(&[]).unwrap();
        assert_eq!(settings.tunables, Tunables::default());
        let (ours, theirs) = (settings.engine, Config::default());
        assert_eq!(ours.read_only, theirs.read_only);
        assert_eq!(ours.names_max, theirs.names_max);
        assert_eq!(ours.digests_from, theirs.digests_from);
        let new = with(&[("passthrough", "new")]).unwrap();
        assert_eq!(new.engine.digests_from, u64::MAX, "nothing is found by them");
    }

    #[test]
    fn every_preset_is_the_engines() {
        for preset in Preset::ALL {
            let changed = change_tunable(&Tunables::default(), "preset", preset.name()).unwrap();
            assert_eq!(changed.preset, preset);
        }
    }

    #[test]
    fn every_live_key_can_be_read_and_changed() {
        let before = Tunables::default();
        for key in live_keys() {
            let value = tunable(&before, key.name).expect(key.name);
            assert_eq!(value, key.default_value(), "{}", key.name);
            let after = change_tunable(&before, key.name, &value.to_string()).unwrap();
            assert_eq!(after, before, "{}", key.name);
        }
        assert_eq!(change_tunable(&before, "max-age", "10s\n").unwrap().max_age.as_secs(), 10);
        assert_eq!(
            change_tunable(&before, "dirty-high", "40").unwrap().dirty_high,
            Watermark::Share(40)
        );
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        let before = Tunables::default();
        let wrong = |name, text| change_tunable(&before, name, text).unwrap_err().to_string();
        assert!(wrong("threads", "8").contains("unmount"));
        assert!(wrong("tier-size", "1MiB").contains("16MiB"));
        assert!(wrong("max-aeg", "1s").contains("did you mean max-age?"));
        assert!(wrong("dirty-low", "60%").contains("above dirty-high"));
        assert_eq!(wrong("max-age", "10\n"), "max-age = 10: add a unit, for example 10s");
    }

    #[test]
    fn what_is_believed_goes_by_one_key_unless_told_otherwise() {
        let ttls = |pairs: &[(&'static str, &str)]| {
            let mount = with(pairs).unwrap().mount;
            (mount.entry_ttl.as_secs(), mount.attr_ttl.as_secs())
        };
        assert_eq!(ttls(&[]), (1, 1));
        assert_eq!(ttls(&[("trust", "60s")]), (60, 60));
        assert_eq!(ttls(&[("trust", "60s"), ("attr-ttl", "2s")]), (60, 2));
        assert_eq!(ttls(&[("entry-ttl", "0s")]), (0, 1));
    }

    #[test]
    fn keys_that_exclude_each_other_are_refused() {
        assert!(with(&[("kernel-writeback", "true"), ("passthrough", "always")]).is_err());
        assert!(with(&[("kernel-writeback", "true")]).is_ok());
        assert!(with(&[("tier-size", "1MiB")]).is_err());
        assert!(with(&[("dirty-low", "90%")]).is_err());
    }
}
