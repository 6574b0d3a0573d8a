//! The file of an embedded registry: its tables, and how commits change them.
//!
//! - B1: revision, keys, history and leases change in one durable transaction.
//! - B2: a key is in `LEASED` exactly if its entry names a lease.

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::failed;
use super::history::Past;
use crate::{
    Change, Commit, Compare, Entry, Error, Event, Kind, LeaseId, Outcome, Result, Revision,
};

/// Revision of the last change, lease (0: none), value.
const ENTRIES: TableDefinition<&str, (u64, u64, &[u8])> = TableDefinition::new("entries");
/// The events of a commit, as JSON.
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
/// Lease ids, and their times in milliseconds.
const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");
const LEASED: TableDefinition<(u64, &str), ()> = TableDefinition::new("leased");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");

const REVISION: &str = "revision";
const COMPACTED: &str = "compacted";
const FORMAT: &str = "format";
const CLUSTER: &str = "cluster";

const THIS_FORMAT: u64 = 1;

type Entries<'t> = Table<'t, &'static str, (u64, u64, &'static [u8])>;
type Leased<'t> = Table<'t, (u64, &'static str), ()>;

/// The contents of the file when it was opened.
pub struct Loaded {
    pub cluster: String,
    pub revision: Revision,
    pub compacted: Revision,
    pub past: Vec<Past>,
    pub leases: Vec<(LeaseId, u64)>,
}

pub struct Store {
    db: Database,
    address: String,
}

impl Store {
    pub fn open(db: Database, address: String) -> Result<(Store, Loaded)> {
        let store = Store { db, address };
        store.prepare()?;
        let loaded = store.load()?;
        Ok((store, loaded))
    }

    fn prepare(&self) -> Result<()> {
        let txn = self.ok(self.db.begin_write())?;
        self.ok(txn.open_table(ENTRIES).map(drop))?;
        self.ok(txn.open_table(HISTORY).map(drop))?;
        self.ok(txn.open_table(LEASES).map(drop))?;
        self.ok(txn.open_table(LEASED).map(drop))?;
        {
            let mut numbers = self.ok(txn.open_table(NUMBERS))?;
            let format = self.ok(numbers.get(FORMAT))?.map(|format| format.value());
            match format {
                None => drop(self.ok(numbers.insert(FORMAT, THIS_FORMAT))?),
                Some(THIS_FORMAT) => {}
                Some(format) => return Err(self.newer(format)),
            }
            let mut texts = self.ok(txn.open_table(TEXTS))?;
            if self.ok(texts.get(CLUSTER))?.is_none() {
                let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
                    .map_err(|e| Error::io(e, "/proc/sys/kernel/random/uuid"))?;
                self.ok(texts.insert(CLUSTER, uuid.trim()))?;
            }
        }
        self.ok(txn.commit())
    }

    fn newer(&self, format: u64) -> Error {
        let text = format!(
            "{}: it has format {format}, and this forebay knows {THIS_FORMAT}: use the version that \
             wrote it, or a newer one",
            self.address
        );
        Error::new(Kind::Usage, text)
    }

    fn load(&self) -> Result<Loaded> {
        let txn = self.ok(self.db.begin_read())?;
        let number = |name| -> Result<u64> {
            let table = self.ok(txn.open_table(NUMBERS))?;
            Ok(self.ok(table.get(name))?.map_or(0, |number| number.value()))
        };
        let texts = self.ok(txn.open_table(TEXTS))?;
        let cluster = self.ok(texts.get(CLUSTER))?.map(|text| text.value().to_string());
        let mut past = Vec::new();
        for row in self.ok(self.ok(txn.open_table(HISTORY))?.iter())? {
            let (revision, events) = self.ok(row)?;
            let events = serde_json::from_slice(events.value()).map_err(|e| {
                Error::new(Kind::Corrupt, format!("{}: its history", self.address)).with_source(e)
            })?;
            past.push(Past::new(Revision(revision.value()), events));
        }
        let mut leases = Vec::new();
        for row in self.ok(self.ok(txn.open_table(LEASES))?.iter())? {
            let (id, millis) = self.ok(row)?;
            leases.push((LeaseId(id.value()), millis.value()));
        }
        Ok(Loaded {
            cluster: cluster.unwrap_or_default(),
            revision: Revision(number(REVISION)?),
            compacted: Revision(number(COMPACTED)?),
            past,
            leases,
        })
    }

    pub fn get(&self, key: &str) -> Result<(Option<Entry>, Revision)> {
        let txn = self.ok(self.db.begin_read())?;
        let entries = self.ok(txn.open_table(ENTRIES))?;
        let found = self.ok(entries.get(key))?.map(|row| entry(key, row.value()));
        Ok((found, self.revision(&txn)?))
    }

    pub fn range(&self, prefix: &str) -> Result<(Vec<Entry>, Revision)> {
        let txn = self.ok(self.db.begin_read())?;
        let entries = self.ok(txn.open_table(ENTRIES))?;
        let mut found = Vec::new();
        for row in self.ok(entries.range(prefix..))? {
            let (key, row) = self.ok(row)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push(entry(key.value(), row.value()));
        }
        Ok((found, self.revision(&txn)?))
    }

    pub fn barrier(&self) -> Result<Revision> {
        let txn = self.ok(self.db.begin_read())?;
        self.revision(&txn)
    }

    fn revision(&self, txn: &redb::ReadTransaction) -> Result<Revision> {
        let numbers = self.ok(txn.open_table(NUMBERS))?;
        Ok(Revision(self.ok(numbers.get(REVISION))?.map_or(0, |number| number.value())))
    }

    /// Begins a transaction: the requests of several callers cost one sync.
    pub fn begin(&self) -> Result<Writing<'_>> {
        let txn = self.ok(self.db.begin_write())?;
        let revision = {
            let numbers = self.ok(txn.open_table(NUMBERS))?;
            Revision(self.ok(numbers.get(REVISION))?.map_or(0, |number| number.value()))
        };
        Ok(Writing { store: self, txn, revision, past: Vec::new(), unwanted: Revision(0) })
    }

    fn ok<T, E: Into<redb::Error>>(&self, result: std::result::Result<T, E>) -> Result<T> {
        result.map_err(|e| failed(e.into(), &self.address))
    }
}

fn entry(key: &str, (revision, lease, value): (u64, u64, &[u8])) -> Entry {
    Entry {
        key: key.into(),
        value: value.to_vec(),
        revision: Revision(revision),
        lease: (lease != 0).then_some(LeaseId(lease)),
    }
}

/// A transaction in which commits are made one after the other.
pub struct Writing<'s> {
    store: &'s Store,
    txn: WriteTransaction,
    pub revision: Revision,
    /// The commits made so far.
    pub past: Vec<Past>,
    /// The history up to here is not wanted any more.
    pub unwanted: Revision,
}

impl Writing<'_> {
    /// Makes a commit; its compares see the results of the commits before it.
    pub fn commit(&mut self, commit: &Commit) -> Result<Outcome> {
        if !self.hold(&commit.compares)? {
            return Ok(Outcome::Refused(self.revision));
        }
        self.change(&commit.changes)?;
        Ok(Outcome::Committed(self.revision))
    }

    fn hold(&self, compares: &[Compare]) -> Result<bool> {
        let entries = self.ok(self.txn.open_table(ENTRIES))?;
        for compare in compares {
            let key = compare.key();
            let found = self.ok(entries.get(key))?.map(|row| entry(key, row.value()));
            if !compare.holds(found.as_ref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn change(&mut self, changes: &[Change]) -> Result<()> {
        let revision = Revision(self.revision.0 + 1);
        let mut events = Vec::new();
        {
            let mut entries = self.ok(self.txn.open_table(ENTRIES))?;
            let mut leased = self.ok(self.txn.open_table(LEASED))?;
            for change in changes {
                match change {
                    Change::Put { key, value, lease } => {
                        let put = Entry {
                            key: key.clone(),
                            value: value.clone(),
                            revision,
                            lease: *lease,
                        };
                        self.put(&mut entries, &mut leased, &put)?;
                        events.push(Event::Put(put));
                    }
                    Change::Delete { key } => {
                        events.extend(self.delete(&mut entries, &mut leased, key, revision)?);
                    }
                    Change::DeletePrefix { prefix } => {
                        for key in self.keys_below(&entries, prefix)? {
                            events.extend(self.delete(
                                &mut entries,
                                &mut leased,
                                &key,
                                revision,
                            )?);
                        }
                    }
                }
            }
        }
        self.revision = revision;
        self.past.push(Past::new(revision, events));
        Ok(())
    }

    fn put(&self, entries: &mut Entries<'_>, leased: &mut Leased<'_>, put: &Entry) -> Result<()> {
        let lease = put.lease.map_or(0, |lease| lease.0);
        let row = (put.revision.0, lease, put.value.as_slice());
        let before = self.ok(entries.insert(put.key.as_str(), row))?.map_or(0, |row| row.value().1);
        if before != lease {
            self.ok(leased.remove((before, put.key.as_str())).map(drop))?; // B2
        }
        if lease != 0 {
            self.ok(leased.insert((lease, put.key.as_str()), ()).map(drop))?;
        }
        Ok(())
    }

    /// Deletes a key; returns the event, if there was such a key.
    fn delete(
        &self,
        entries: &mut Entries<'_>,
        leased: &mut Leased<'_>,
        key: &str,
        revision: Revision,
    ) -> Result<Option<Event>> {
        let Some(lease) = self.ok(entries.remove(key))?.map(|row| row.value().1) else {
            return Ok(None);
        };
        self.ok(leased.remove((lease, key)).map(drop))?; // B2
        Ok(Some(Event::Deleted { key: key.into(), revision }))
    }

    fn keys_below(&self, entries: &Entries<'_>, prefix: &str) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        for row in self.ok(entries.range(prefix..))? {
            let (key, _) = self.ok(row)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            keys.push(key.value().to_string());
        }
        Ok(keys)
    }

    pub fn grant(&mut self, id: LeaseId, millis: u64) -> Result<()> {
        let mut leases = self.ok(self.txn.open_table(LEASES))?;
        self.ok(leases.insert(id.0, millis).map(drop))
    }

    /// Ends a lease: its keys vanish in one commit.
    pub fn end_lease(&mut self, id: LeaseId) -> Result<()> {
        let keys = {
            let mut leases = self.ok(self.txn.open_table(LEASES))?;
            self.ok(leases.remove(id.0).map(drop))?;
            let leased = self.ok(self.txn.open_table(LEASED))?;
            let mut keys = Vec::new();
            for row in self.ok(leased.range((id.0, "")..(id.0 + 1, "")))? {
                keys.push(Change::Delete { key: self.ok(row)?.0.value().1.to_string() });
            }
            keys
        };
        if keys.is_empty() { Ok(()) } else { self.change(&keys) }
    }

    /// Marks the history up to `upto` as unwanted; the newest commit stays, as in etcd.
    pub fn compact(&mut self, upto: Revision) {
        let upto = upto.min(Revision(self.revision.0.saturating_sub(1)));
        self.unwanted = self.unwanted.max(upto);
    }

    /// Makes the whole transaction durable (R3), and drops the history up to `compact`.
    pub fn finish(self, compact: Revision) -> Result<Vec<Past>> {
        {
            let mut history = self.ok(self.txn.open_table(HISTORY))?;
            for past in self.past.iter().filter(|past| past.revision > compact) {
                let json = serde_json::to_vec(&past.events).expect("events are plain data");
                self.ok(history.insert(past.revision.0, json.as_slice()).map(drop))?;
            }
            self.ok(history.retain_in(..=compact.0, |_, _| false))?;
            let mut numbers = self.ok(self.txn.open_table(NUMBERS))?;
            self.ok(numbers.insert(REVISION, self.revision.0).map(drop))?;
            self.ok(numbers.insert(COMPACTED, compact.0).map(drop))?;
        }
        let (store, past) = (self.store, self.past);
        store.ok(self.txn.commit())?;
        Ok(past)
    }

    fn ok<T, E: Into<redb::Error>>(&self, result: std::result::Result<T, E>) -> Result<T> {
        self.store.ok(result)
    }
}
