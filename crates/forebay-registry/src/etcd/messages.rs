//! The messages of etcd, as far as they are used here. The numbers are those of its `rpc.proto` and
//! `kv.proto`.

use std::time::Duration;

use super::proto::{Message, Read, Value};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// The answer of etcd to one request.
pub trait Answer: Read {
    /// The answer's header, if etcd's members agreed on it after the request had come: any other
    /// answer shows what the member has, however old that is.
    fn as_of_now(&self) -> Option<&Header> {
        None
    }
}

/// The request for the keys from `first` to before `end`.
pub fn range(first: impl AsRef<[u8]>, end: &str) -> Message {
    Message::default().bytes(1, first).bytes(2, end)
}

/// The request for one key.
pub fn one(key: &str) -> Message {
    Message::default().bytes(1, key)
}

/// At most this many keys of a range.
pub fn limited(range: Message, limit: usize) -> Message {
    range.number(3, limit as u64)
}

/// A range as of a revision; 0 means now.
pub fn as_of(range: Message, revision: u64) -> Message {
    range.number(4, revision)
}

/// The number of keys in place of the keys.
pub fn counted(range: Message) -> Message {
    range.number(9, 1)
}

pub fn grant(id: u64, seconds: u64) -> Message {
    Message::default().number(1, seconds).number(2, id)
}

/// The request to renew, to end or to look at a lease.
pub fn lease(id: u64) -> Message {
    Message::default().number(1, id)
}

/// The request to forget what is older than a revision.
pub fn compact(oldest: u64) -> Message {
    Message::default().number(1, oldest)
}

pub fn authenticate(name: &str, password: &str) -> Message {
    Message::default().bytes(1, name).bytes(2, password)
}

/// The request for the changes of a range since a revision, and for news of revisions without any.
pub fn watch(range: Message, since: u64) -> Message {
    Message::default().bytes(1, range.number(3, since).number(4, 1))
}

pub fn put(key: &str, value: impl AsRef<[u8]>, lease: u64) -> Message {
    Message::default().bytes(1, key).bytes(2, value).number(3, lease)
}

/// An operation of a transaction.
pub enum Operation {
    Range(Message),
    Put(Message),
    Delete(Message),
}

pub fn txn(compares: &[Message], success: &[Operation], failure: &[Operation]) -> Message {
    let mut txn = Message::default();
    for compare in compares {
        txn = txn.bytes(1, compare);
    }
    for (branch, operations) in [(2, success), (3, failure)] {
        for operation in operations {
            let (kind, request) = match operation {
                Operation::Range(request) => (1, request),
                Operation::Put(request) => (2, request),
                Operation::Delete(request) => (3, request),
            };
            txn = txn.bytes(branch, Message::default().bytes(kind, request));
        }
    }
    txn
}

/// What a compare says of a key.
pub enum Condition<'v> {
    Created,
    NotCreated,
    Changed(u64),
    Value(&'v [u8]),
}

pub fn compare(key: &str, condition: &Condition<'_>) -> Message {
    const GREATER: u64 = 1;
    let of = |result, target| Message::default().number(1, result).number(2, target).bytes(3, key);
    match condition {
        Condition::Created => of(GREATER, 1).number(5, 0),
        Condition::NotCreated => of(0, 1).number(5, 0),
        Condition::Changed(revision) => of(0, 2).number(6, *revision),
        Condition::Value(value) => of(0, 3).bytes(7, value),
    }
}

#[derive(Debug, Default)]
pub struct Header {
    pub cluster: u64,
    pub revision: u64,
}

impl Read for Header {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.cluster = value.number()?,
            3 => self.revision = value.number()?,
            _ => {}
        }
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Kv {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub changed: u64,
    pub lease: u64,
}

impl Read for Kv {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.key = value.bytes()?.to_vec(),
            3 => self.changed = value.number()?,
            5 => self.value = value.bytes()?.to_vec(),
            6 => self.lease = value.number()?,
            _ => {}
        }
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Range {
    pub header: Header,
    pub kvs: Vec<Kv>,
    pub more: bool,
}

impl Read for Range {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.header = value.message()?,
            2 => self.kvs.push(value.message()?),
            3 => self.more = value.number()? != 0,
            _ => {}
        }
        Some(())
    }
}

impl Answer for Range {
    fn as_of_now(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

#[derive(Debug, Default)]
pub struct Txn {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Response>,
}

impl Read for Txn {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.header = value.message()?,
            2 => self.succeeded = value.number()? != 0,
            3 => self.responses.push(value.message()?),
            _ => {}
        }
        Some(())
    }
}

impl Answer for Txn {
    fn as_of_now(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

/// The answer of one operation of a transaction.
#[derive(Debug, Default)]
pub struct Response {
    pub range: Option<Range>,
}

impl Read for Response {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        if field == 1 {
            self.range = Some(value.message()?);
        }
        Some(())
    }
}

/// A lease's time: granted, renewed or left.
#[derive(Debug, Default)]
pub struct Granted {
    seconds: i64,
}

impl Granted {
    /// The time; `None` if the lease has ended.
    pub fn left(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.seconds).ok()?;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}

impl Read for Granted {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        if field == 3 {
            self.seconds = value.number()?.cast_signed();
        }
        Some(())
    }
}

impl Answer for Granted {}

/// An answer that says only that it was done.
#[derive(Debug, Default)]
pub struct Done;

impl Read for Done {
    fn field(&mut self, _: u64, _: Value<'_>) -> Option<()> {
        Some(())
    }
}

impl Answer for Done {}

#[derive(Debug, Default)]
pub struct Watched {
    pub header: Header,
    pub created: bool,
    pub canceled: bool,
    pub compacted: u64,
    pub reason: String,
    pub events: Vec<Event>,
}

impl Read for Watched {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.header = value.message()?,
            3 => self.created = value.number()? != 0,
            4 => self.canceled = value.number()? != 0,
            5 => self.compacted = value.number()?,
            6 => self.reason = value.text()?,
            11 => self.events.push(value.message()?),
            _ => {}
        }
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Event {
    pub deleted: bool,
    pub kv: Kv,
}

impl Read for Event {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.deleted = value.number()? == 1,
            2 => self.kv = value.message()?,
            _ => {}
        }
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Status {
    pub header: Header,
    pub version: String,
    pub bytes: u64,
    pub bytes_in_use: u64,
    /// Present since 3.6.
    pub quota: u64,
}

impl Read for Status {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        match field {
            1 => self.header = value.message()?,
            2 => self.version = value.text()?,
            3 => self.bytes = value.number()?,
            9 => self.bytes_in_use = value.number()?,
            12 => self.quota = value.number()?,
            _ => {}
        }
        Some(())
    }
}

impl Answer for Status {}

#[derive(Debug, Default)]
pub struct Alarms {
    pub alarms: Vec<AlarmOf>,
}

impl Read for Alarms {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        if field == 2 {
            self.alarms.push(value.message()?);
        }
        Some(())
    }
}

impl Answer for Alarms {}

/// The alarm of one member.
#[derive(Debug, Default)]
pub struct AlarmOf {
    /// 1 for no space, 2 for corrupt data.
    pub alarm: u64,
}

impl Read for AlarmOf {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        if field == 2 {
            self.alarm = value.number()?;
        }
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Token {
    pub token: String,
}

impl Read for Token {
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
        if field == 2 {
            self.token = value.text()?;
        }
        Some(())
    }
}
