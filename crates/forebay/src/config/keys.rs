//! The one table of configuration keys. Flags and their help, environment variables, the file,
//! `config show`, the control door and `.forebay/config/` are all driven by it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_engine::governor::schedule::Schedule;
use forebay_engine::{USED_HIGH_MAX, Watermark};

use super::words::{self, words_of};
use crate::nearest::nearest;
use crate::units;
use Sets::{Asker, Node};

pub struct Key {
    /// The name in the file and, with `--`, of the flag.
    pub name: &'static str,
    pub kind: Type,
    /// The default, as a user would write it.
    pub default: &'static str,
    pub change: Change,
    pub instance: Sets,
    pub doc: &'static str,
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Type {
    Size,
    /// A size, or `auto`.
    SizeOrAuto,
    /// A size, or `off`.
    SizeOrOff,
    /// A size per second, or `none`.
    Rate,
    Duration,
    Percent {
        max: u8,
    },
    /// A share of the tier, or a size.
    Watermark,
    /// A time, or `auto`.
    DurationOrAuto,
    /// Windows of the day.
    Schedule,
    Count {
        min: u64,
        max: u64,
    },
    Bool,
    Choice(&'static [&'static str]),
    /// A path, or nothing.
    File,
    /// An address and port on the loopback interface, or `none`.
    Loopback,
    /// An address and port of this machine; port 0 takes a free one.
    Address,
    /// The address of a registry, or nothing.
    Registry,
    /// A name of a node, or nothing.
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Holds from mount to unmount.
    Fixed,
    /// Can be set on a running daemon.
    Live,
}

/// The party that may set a key for the mount of a cache instance, which root serves for an ordinary user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sets {
    /// The user of the instance: the key shapes how that user's own bytes come and go, and no more.
    Asker,
    /// The node: the key names a file, an address or a member, says how long permissions are cached, or
    /// takes memory and processor time of the node.
    Node,
}

/// A value that passed its type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Bytes(u64),
    Auto,
    Off,
    /// Bytes per second; 0 is no limit.
    Rate(u64),
    Time(Duration),
    Percent(u8),
    Level(Watermark),
    Windows(Schedule),
    Count(u64),
    Flag(bool),
    Word(&'static str),
    File(Option<PathBuf>),
    Listen(Option<SocketAddr>),
    Text(Option<String>),
}

const POLICIES: &[&str] = &words_of(&words::POLICY);
const EVICTIONS: &[&str] = &words_of(&words::EVICTION);
const PASSTHROUGHS: &[&str] = &words_of(&words::PASSTHROUGH);
const TRANSPORTS: &[&str] = &words_of(&words::TRANSPORT);
const PRESETS: &[&str] = &words_of(&words::PRESET);
const COPIES_AT: &[&str] = &words_of(&words::COPIES_AT_WRITE);
const COPIES_SHORT: &[&str] = &words_of(&words::COPIES_OR_FAIL);
const LOCKS: &[&str] = &words_of(&words::LOCKS);
const LOG_FORMATS: &[&str] = &words_of(&words::LOG_IS_JSON);
const LOG_LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

const fn fixed(
    instance: Sets,
    name: &'static str,
    kind: Type,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, change: Change::Fixed, instance, doc }
}

const fn live(
    instance: Sets,
    name: &'static str,
    kind: Type,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, change: Change::Live, instance, doc }
}

/// The keys, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    live(
        Asker,
        "policy",
        Type::Choice(POLICIES),
        "write-back",
        "When a write reaches the backing store: later (write-back), before close and fsync return \
         (write-through), or at once and past the fast tier (write-around)",
    ),
    fixed(Asker, "read-only", Type::Bool, "false", "Refuse every change"),
    fixed(Asker, "noexec", Type::Bool, "false", "Start no program from the mount"),
    live(
        Node,
        "tier-size",
        Type::SizeOrAuto,
        "auto",
        "Space the fast tier may occupy; auto takes what its file system has, less 5 %",
    ),
    live(
        Asker,
        "eviction",
        Type::Choice(EVICTIONS),
        "s3-fifo",
        "Which clean bytes go first when room is needed: those used once before those used again \
         (s3-fifo), or those that came first (fifo)",
    ),
    live(
        Asker,
        "bypass-reads",
        Type::SizeOrOff,
        "off",
        "Do not keep what a sequential reader reads beyond this many bytes; what is in the tier is \
         read from there as ever",
    ),
    live(
        Asker,
        "bypass-writes",
        Type::SizeOrOff,
        "off",
        "Send what a sequential writer writes beyond this many bytes to the backing store at once, \
         after one flush of what the file has in the tier; no file is written past the daemon then",
    ),
    live(
        Asker,
        "preset",
        Type::Choice(PRESETS),
        "governor",
        "How the drain decides: by deadlines, level, idleness and latency (governor); as fast as it \
         can above dirty-high until dirty-low (threshold); by max-age alone (age); only while the \
         backing store and the programs rest (idle); not before dirty-hard (hold)",
    ),
    live(Asker, "max-age", Type::Duration, "30s", "Flush a dirty byte before it is this old"),
    live(
        Asker,
        "settle",
        Type::Duration,
        "5s",
        "Leave what was rewritten less than this ago for the next lap of the drain",
    ),
    live(
        Asker,
        "dirty-low",
        Type::Watermark,
        "20%",
        "Stop flushing by level below this many dirty bytes in the tier",
    ),
    live(
        Asker,
        "dirty-high",
        Type::Watermark,
        "50%",
        "Flush as fast as the backing store can above this; from dirty-low on little at first, then \
         more and more",
    ),
    live(Asker, "dirty-hard", Type::Watermark, "80%", "Slow writers down above this"),
    live(
        Asker,
        "used-high",
        Type::Percent { max: USED_HIGH_MAX },
        "90%",
        "Evict clean bytes once more than this share of the tier is used",
    ),
    live(Asker, "rate-max", Type::Rate, "none", "Cap on the drain per second, such as 100MB/s"),
    live(
        Asker,
        "ops-max",
        Type::Count { min: 0, max: 10_000_000 },
        "0",
        "Cap on the drain's writes to the backing store per second; 0 is none",
    ),
    live(
        Asker,
        "latency-target",
        Type::DurationOrAuto,
        "auto",
        "Make way for programs whose operations on the fast tier or the backing store take longer; \
         auto is 2 ms and 75 ms",
    ),
    live(
        Asker,
        "schedule",
        Type::Schedule,
        "always",
        "When the drain may work, in local time, such as 22:00-06:00 or \
         22:00-06:00,12:00-13:00=20MB/s; above dirty-hard, and for a flush somebody asks for, it \
         always may",
    ),
    live(
        Asker,
        "flush-depth",
        Type::Count { min: 1, max: 64 },
        "16",
        "Copies to the backing store in flight at once",
    ),
    live(
        Asker,
        "fill-depth",
        Type::Count { min: 1, max: 64 },
        "16",
        "Fills from the backing store in flight at once",
    ),
    live(
        Asker,
        "readahead",
        Type::Size,
        "16MiB",
        "Read ahead of a sequential reader at most this far",
    ),
    live(
        Asker,
        "revalidate",
        Type::Duration,
        "0s",
        "Believe a cached file unchanged this long before asking the backing store again; 0s asks \
         at every open",
    ),
    live(
        Asker,
        "backing-timeout",
        Type::Duration,
        "30s",
        "Fail a call to the backing store that takes longer",
    ),
    fixed(
        Node,
        "names-max",
        Type::Count { min: 1000, max: 100_000_000 },
        "1000000",
        "Names remembered after the kernel forgot them",
    ),
    fixed(
        Node,
        "passthrough",
        Type::Choice(PASSTHROUGHS),
        "auto",
        "Let the kernel read and write shadow files itself: all that is complete, and new files, while the \
         tier has room (auto), for writing only new ones (new), for reading only (read), or not at all \
         (off); always is auto whatever the room, and refuses to mount where the kernel cannot",
    ),
    fixed(
        Node,
        "digests-from",
        Type::Size,
        "1MiB",
        "Remember by digests what the backing store holds of files of this size and more, where complete \
         files are written past the daemon (passthrough): only what differs is flushed",
    ),
    fixed(
        Node,
        "transport",
        Type::Choice(TRANSPORTS),
        "auto",
        "How requests come from the kernel: over io_uring where the kernel allows it, else over \
         /dev/fuse (auto), or over /dev/fuse (dev); io-uring refuses to mount where the kernel does \
         not allow it",
    ),
    fixed(
        Node,
        "kernel-writeback",
        Type::Bool,
        "false",
        "Use the kernel's write-back cache; excludes passthrough",
    ),
    fixed(
        Node,
        "trust",
        Type::Duration,
        "1s",
        "Names, attributes, names that are nowhere and extended attributes are believed this long \
         without asking the backing store; what others change there is seen so much later",
    ),
    fixed(
        Node,
        "entry-ttl",
        Type::DurationOrAuto,
        "auto",
        "A name, or that it is nowhere, is believed this long; auto is what trust says",
    ),
    fixed(
        Node,
        "attr-ttl",
        Type::DurationOrAuto,
        "auto",
        "Attributes are believed this long, extended ones too; auto is what trust says",
    ),
    fixed(
        Node,
        "threads",
        Type::Count { min: 2, max: 64 },
        "4",
        "Threads that serve the kernel; at least two, as one may wait for what another answers",
    ),
    fixed(
        Node,
        "busy-poll",
        Type::Duration,
        "100us",
        "A thread that has served a request over /dev/fuse looks out this long for the next one \
         before it sleeps, as long as that pays; less processor time with 0s, more wake-ups",
    ),
    fixed(
        Node,
        "log-format",
        Type::Choice(LOG_FORMATS),
        "text",
        "One line of text or of JSON an event",
    ),
    fixed(
        Node,
        "log-level",
        Type::Choice(LOG_LEVELS),
        "info",
        "The least severe event that is logged",
    ),
    fixed(
        Node,
        "metrics-listen",
        Type::Loopback,
        "none",
        "Serve /metrics for Prometheus on this address of this machine, such as 127.0.0.1:9464; the \
         control socket serves it, too",
    ),
    fixed(
        Node,
        "registry",
        Type::Registry,
        "",
        "The registry through which the mounts of this backing store on several nodes agree, such as \
         etcd://10.0.0.1:2379,10.0.0.2:2379/forebay, or etcds:// for TLS, with ?ca=FILE and more that `forebay registry --help` tells, \
         such as cert, key, user and password-file. It is no directory. Without it this mount is alone, and no other may \
         write to the same files",
    ),
    fixed(
        Node,
        "node",
        Type::Node,
        "",
        "By what name other members of the store know this mount; the host name if there is none",
    ),
    fixed(
        Node,
        "peer-listen",
        Type::Address,
        "127.0.0.1:0",
        "Where other members reach this mount; one that is not of this machine alone needs cluster-key. \
         Without it every user of this machine has the rights of whoever mounts",
    ),
    fixed(
        Node,
        "cluster-key",
        Type::File,
        "",
        "A file with the key that all members of a store share, readable by its owner alone",
    ),
    fixed(
        Node,
        "peer-cert",
        Type::File,
        "",
        "A certificate of this member, in PEM with what it was signed by: what members say to each other goes \
         over TLS then. It names the IP address of peer-listen. All members have one, or none",
    ),
    fixed(
        Node,
        "peer-cert-key",
        Type::File,
        "",
        "The private key of peer-cert, readable by its owner alone",
    ),
    fixed(
        Node,
        "peer-ca",
        Type::File,
        "",
        "The authority that has signed peer-cert of all members, in PEM",
    ),
    fixed(
        Node,
        "copies",
        Type::Count { min: 0, max: 2 },
        "0",
        "On so many other members, each of another failure domain, is what fsync has acknowledged too: one \
         of them takes over when this node dies. Needs registry, and lets no writer past the daemon",
    ),
    fixed(
        Node,
        "copies-at",
        Type::Choice(COPIES_AT),
        "fsync",
        "What waits for the copies: fsync (and close, where bytes are to be home by then), or every write",
    ),
    fixed(
        Node,
        "copies-short",
        Type::Choice(COPIES_SHORT),
        "go-on",
        "What fsync does while fewer members than `copies` have this one's bytes: go-on, and status says \
         so, or fail with EIO",
    ),
    fixed(
        Node,
        "share-reads",
        Type::Bool,
        "false",
        "What members read of unclaimed files is read from the store once, each part by one of them, and \
         the others get it there. For datasets that many nodes read; all members should have it",
    ),
    fixed(
        Node,
        "locks",
        Type::Choice(LOCKS),
        "cluster",
        "Between whose programs fcntl and flock locks hold, on a mount with registry: those of all nodes \
         (cluster), or of this node alone (node), where programs on several nodes lock nothing together. With \
         node the kernel has them, and a close asks the daemon for nothing",
    ),
    fixed(
        Node,
        "failure-domain",
        Type::Node,
        "",
        "What fails together with this node, such as a rack: copies go to members of another one. The \
         node's name if there is none",
    ),
    fixed(
        Node,
        "log-file",
        Type::File,
        "",
        "Where the log goes; run/forebay.log in the tier when in the background, standard error \
         in the foreground. A regular file of whoever mounts, made for that user alone if it is \
         missing, since names are in it",
    ),
];

/// The hint for a value that would stop the drain.
const STOP_HINT: &str = ", or set preset to hold to flush as late as can be";

/// Finds a key by name; the error names the nearest one.
pub fn find(name: &str) -> Result<&'static Key, String> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let hint = match nearest(name, KEYS.iter().map(|key| key.name)) {
            Some(near) => format!("did you mean {near}?"),
            None => "see `forebay config show` for the keys there are".into(),
        };
        format!("unknown key; {hint}")
    })
}

impl Key {
    pub fn env(&self) -> String {
        format!("FOREBAY_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// Reads a value; the message of an error says what to write instead.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match self.kind {
            Type::SizeOrAuto if text == "auto" => Ok(Value::Auto),
            Type::SizeOrOff if matches!(text, "off" | "0") => Ok(Value::Off),
            Type::Size | Type::SizeOrAuto | Type::SizeOrOff => {
                units::parse_size(text).map(Value::Bytes)
            }
            Type::Rate if units::is_rate_of_nothing(text) => {
                Err(units::NO_RATE.to_string() + STOP_HINT)
            }
            Type::Rate => units::parse_rate(text).map(Value::Rate),
            Type::Duration => units::parse_duration(text).map(Value::Time),
            Type::Percent { max } => parse_percent(text, max),
            Type::Watermark => parse_watermark(text).map(Value::Level),
            Type::DurationOrAuto if text == "auto" => Ok(Value::Auto),
            Type::DurationOrAuto => units::parse_duration(text).map(Value::Time),
            Type::Schedule => Schedule::parse(text, units::parse_rate).map(Value::Windows),
            Type::Count { min, max } => parse_count(text, min, max),
            Type::Bool => parse_bool(text),
            Type::Choice(words) => parse_choice(text, words),
            Type::File => Ok(Value::File((!text.is_empty()).then(|| PathBuf::from(text)))),
            Type::Loopback => parse_loopback(text),
            Type::Address => parse_address(text),
            Type::Registry => parse_registry(text),
            Type::Node => parse_node(text),
        }
    }

    pub fn default_value(&self) -> Value {
        self.parse(self.default).expect("a test parses every default")
    }

    /// The placeholder for the value in help texts.
    pub fn placeholder(&self) -> &'static str {
        match self.kind {
            Type::Size | Type::SizeOrAuto | Type::SizeOrOff => "SIZE",
            Type::Rate => "RATE",
            Type::Duration => "TIME",
            Type::Percent { .. } => "PERCENT",
            Type::Watermark => "LEVEL",
            Type::DurationOrAuto => "TIME",
            Type::Schedule => "WINDOWS",
            Type::Count { .. } => "N",
            Type::Bool => "BOOL",
            Type::Choice(_) => "WORD",
            Type::File => "FILE",
            Type::Loopback | Type::Address | Type::Registry => "ADDRESS",
            Type::Node => "NAME",
        }
    }

    /// The allowed values, for the reference.
    pub fn allowed(&self) -> String {
        match self.kind {
            Type::Size => "a size, such as 16MiB".into(),
            Type::SizeOrAuto => "a size, such as 100GiB, or auto".into(),
            Type::SizeOrOff => "a size, such as 64MiB, or off".into(),
            Type::Rate => "a size per second, such as 100MB/s, or none".into(),
            Type::Duration => "a time, such as 30s or 5min".into(),
            Type::Percent { max } => format!("a share, 0% to {max}%"),
            Type::DurationOrAuto => "a time, such as 20ms, or auto".into(),
            Type::Schedule => "windows of the day, such as 22:00-06:00, or always".into(),
            Type::Watermark => "a share, 0% to 100%, or a size, such as 10GiB".into(),
            Type::Count { min, max } => format!("a number, {min} to {max}"),
            Type::Bool => "true or false".into(),
            Type::Choice(words) => words.join(", "),
            Type::File => "a path".into(),
            Type::Loopback => "an address such as 127.0.0.1:9464, or `none`".into(),
            Type::Address => "an address such as 10.0.0.1:7480".into(),
            Type::Registry => "an address such as etcd://10.0.0.1:2379/forebay".into(),
            Type::Node => "a name without `/`".into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bytes(bytes) => f.write_str(&units::exact_size(*bytes)),
            Value::Auto => f.write_str("auto"),
            Value::Off => f.write_str("off"),
            Value::Rate(0) => f.write_str("none"),
            Value::Rate(bytes) => write!(f, "{}/s", units::exact_size(*bytes)),
            Value::Time(time) => f.write_str(&units::exact_duration(*time)),
            Value::Percent(share) | Value::Level(Watermark::Share(share)) => write!(f, "{share}%"),
            Value::Level(Watermark::Bytes(bytes)) => f.write_str(&units::exact_size(*bytes)),
            Value::Windows(schedule) => write_schedule(schedule, f),
            Value::Count(count) => write!(f, "{count}"),
            Value::Flag(on) => write!(f, "{on}"),
            Value::Word(word) => f.write_str(word),
            Value::Listen(None) => f.write_str("none"),
            Value::Listen(Some(address)) => write!(f, "{address}"),
            Value::Text(text) => f.write_str(text.as_deref().unwrap_or_default()),
            Value::File(path) => match path {
                Some(path) => write!(f, "{}", path.display()),
                None => Ok(()),
            },
        }
    }
}

fn write_schedule(schedule: &Schedule, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if schedule.0.is_empty() {
        return f.write_str("always");
    }
    for (n, window) in schedule.0.iter().enumerate() {
        write!(f, "{}{window}", if n > 0 { "," } else { "" })?;
        if window.rate_max > 0 {
            write!(f, "={}/s", units::exact_size(window.rate_max))?;
        }
    }
    Ok(())
}

fn parse_watermark(text: &str) -> Result<Watermark, String> {
    match text.ends_with(['B', 'b']) {
        true => units::parse_size(text).map(Watermark::Bytes),
        false => units::parse_percent(text)
            .map(Watermark::Share)
            .map_err(|reason| format!("{reason}, or a size, for example 10GiB")),
    }
}

fn parse_address(text: &str) -> Result<Value, String> {
    let parsed: Result<SocketAddr, _> = text.parse();
    parsed.map(|address| Value::Listen(Some(address))).map_err(|_| {
        "write an address and a port, such as 10.0.0.1:7480 or [fd00::1]:7480; port 0 takes a free one"
            .into()
    })
}

/// The address is kept as text: it may name a file with a password, which is read at each use.
fn parse_registry(text: &str) -> Result<Value, String> {
    if text.is_empty() {
        return Ok(Value::Text(None));
    }
    let parsed: forebay_base::Result<forebay_registry::Address> = text.parse();
    parsed.map(|_| Value::Text(Some(text.into()))).map_err(|error| error.to_string())
}

fn parse_node(text: &str) -> Result<Value, String> {
    match text {
        "" => Ok(Value::Text(None)),
        text if text.contains('/') || text.len() > 255 => {
            Err("write a name of at most 255 characters, without `/`".into())
        }
        text => Ok(Value::Text(Some(text.into()))),
    }
}

fn parse_loopback(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Listen(None));
    }
    let usage = "write an address and a port of this machine, for example 127.0.0.1:9464";
    let address: SocketAddr = text.parse().map_err(|_| usage.to_string())?;
    match address.ip().is_loopback() {
        true => Ok(Value::Listen(Some(address))),
        // There is neither a password nor a key: every program that can reach the address can read it.
        false => Err(format!("{} can be reached from elsewhere; {usage}", address.ip())),
    }
}

fn parse_count(text: &str, min: u64, max: u64) -> Result<Value, String> {
    match text.replace('_', "").parse() {
        Ok(count) if (min..=max).contains(&count) => Ok(Value::Count(count)),
        _ => Err(format!("write a whole number from {min} to {max}")),
    }
}

fn parse_percent(text: &str, max: u8) -> Result<Value, String> {
    match units::parse_percent(text)? {
        share if share <= max => Ok(Value::Percent(share)),
        _ => Err(format!("write a whole share from 0% to {max}%, for example 80%")),
    }
}

fn parse_bool(text: &str) -> Result<Value, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(Value::Flag(true)),
        "false" | "no" | "off" | "0" => Ok(Value::Flag(false)),
        _ => Err("write true or false".into()),
    }
}

fn parse_choice(text: &str, words: &'static [&'static str]) -> Result<Value, String> {
    let found = words.iter().find(|word| **word == text);
    found.map(|word| Value::Word(word)).ok_or_else(|| match nearest(text, words.iter().copied()) {
        Some(near) => format!("did you mean {near}? Choose from {}", words.join(", ")),
        None => format!("choose from {}", words.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_and_reads_back() {
        for key in KEYS {
            let value = key.default_value();
            assert_eq!(key.parse(&value.to_string()), Ok(value), "{}", key.name);
        }
    }

    #[test]
    fn a_schedule_reads_back() {
        let key = find("schedule").unwrap();
        for text in ["always", "22:00-06:00", "22:00-06:00,12:00-13:30=20MB/s"] {
            assert_eq!(key.parse(text).unwrap().to_string(), text);
        }
        assert!(key.parse("nightly").unwrap_err().contains("22:00-06:00"));
    }

    #[test]
    fn names_are_unique_and_in_kebab_case() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{} twice", key.name);
            assert!(key.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
            assert!(!key.doc.ends_with('.'), "{}: help texts add what follows", key.name);
        }
    }

    #[test]
    fn bad_values_are_told_what_to_write() {
        let wrong = |name, text| find(name).unwrap().parse(text).unwrap_err();
        assert!(wrong("metrics-listen", "0.0.0.0:9464").contains("127.0.0.1:9464"));
        assert!(wrong("metrics-listen", "9464").contains("127.0.0.1:9464"));
        assert!(wrong("policy", "writeback").contains("did you mean write-back?"));
        assert!(wrong("threads", "65").contains("from 2 to 64"));
        assert!(wrong("threads", "1").contains("from 2 to 64"));
        assert!(wrong("used-high", "99%").contains("from 0% to 98%"));
        assert!(wrong("read-only", "maybe").contains("true or false"));
        assert!(wrong("tier-size", "10").contains("for example 10GiB"));
        assert!(wrong("dirty-high", "10G").contains("10GiB"));
        assert!(find("teir-size").err().unwrap().contains("did you mean tier-size?"));
    }
}
