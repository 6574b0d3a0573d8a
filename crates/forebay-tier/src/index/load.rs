//! The loading of an index at start: the store is read, and the logs are replayed over it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use forebay_backing::FileKind;
use redb::{Database, ReadableDatabase, ReadableTable};

use super::store::Overlay;
use super::{BOOT, DIRS, FILES, META, STORE_CACHE_BYTES, STORE_NAME, other};
use crate::core::id::FileId;
use crate::core::journal::{Journal, NameRecord};
use crate::core::paths::{Dir, Grown, Placed, Places, Tree};
use crate::core::seal::Seal;
use crate::core::state::{Boot, Change, Record};
use crate::dir::shadow_name;
use crate::log;
use crate::log::Entry;
use crate::media::{Media, Open};
use crate::witness::{Since, Witness};

/// The index as it is found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    pub files: BTreeMap<FileId, Record>,
    pub names: Journal,
    pub next_id: u64,
    /// The witness of the last use of the tier.
    pub witness: Witness,
    pub clean_shutdown: bool,
    /// The number of times that unsynced data were lost, before the last use of the tier.
    losses: u64,
    /// The number of uses of the tier; `None` if it is not known.
    pub(super) start: Option<u64>,
    /// The parts that could not be read, in words.
    pub problems: Vec<String>,
    /// The places where records of the log are missing, in words: their contents are unknown.
    pub damage: Vec<String>,
    /// Files whose whole state was recorded after the last damage.
    pub(super) sure: HashSet<FileId>,
    /// The tier was used before: there must be a log.
    pub(super) used: bool,
    pub(super) next_seq: u64,
    pub(super) applied_seq: u64,
    pub(super) logs: Vec<String>,
    /// The number of the last record of each file in the log.
    pub(super) touched: HashMap<FileId, u64>,
    pub(super) places: Places,
    /// Directories that have changed their places since the last compaction.
    pub(super) moved: Vec<Arc<Dir>>,
    /// The directories that names of the files are in.
    pub tree: Arc<Tree>,
}

impl Loaded {
    /// The events between the last use of the tier and `now`.
    pub fn since(&self, now: &Witness) -> Since {
        self.witness.since(now)
    }

    /// Whether records of this file may be missing.
    pub fn is_in_doubt(&self, id: FileId) -> bool {
        !self.damage.is_empty() && !self.sure.contains(&id)
    }

    /// Which bytes may be trusted after that.
    pub fn boot(&self, now: &Witness) -> Boot {
        self.since(now).boot(self.clean_shutdown)
    }

    /// The number of times that unsynced data were lost, this start included.
    pub fn losses(&self, now: &Witness) -> u64 {
        self.losses + u64::from(self.boot(now) == Boot::Lost)
    }
}

/// Whether a file of the log has no record.
fn is_empty(media: &dyn Media, name: &str, first: u64) -> io::Result<bool> {
    let file = media.open(name, Open::Existing)?;
    let (mut next, mut found) = (first, false);
    let tail = log::read(&*file, &mut next, |_: Entry<'static>| found = true)?;
    Ok(!found && tail.sound.is_empty())
}

impl Loaded {
    pub(super) fn replay_logs(&mut self, media: &dyn Media, now: &Witness) -> io::Result<()> {
        let read = self.replay_each_log(media, now);
        self.find_dirs();
        // Records behind the mark of a clean shutdown come from programs that were still served after it.
        self.clean_shutdown &= self.next_seq == self.applied_seq;
        // A log without one whole record is started afresh under the same name.
        let fresh = log::name(self.next_seq);
        self.logs.retain(|name| *name != fresh);
        read
    }

    fn replay_each_log(&mut self, media: &dyn Media, now: &Witness) -> io::Result<()> {
        let mut names = media.list("log").unwrap_or_default();
        names.sort();
        let mut expected = self.used;
        for name in names {
            let full = format!("log/{name}");
            let first = u64::from_str_radix(&name, 16).unwrap_or(0);
            self.logs.push(full.clone());
            if first < self.applied_seq {
                continue; // Covered by the store; a crash prevented its removal (I2).
            }
            // A file that was begun and not finished: later records went into the old file (I2).
            if first < self.next_seq && is_empty(media, &full, first)? {
                continue;
            }
            if first != self.next_seq {
                self.gap(format!("records {:x}..{first:x} are missing", self.next_seq));
                self.next_seq = first;
            }
            expected = false;
            self.replay(media, &full, now)?;
        }
        if expected {
            self.gap(format!("the file {} is missing", log::name(self.applied_seq)));
        }
        Ok(())
    }

    /// Finds the directories that all names are in.
    fn find_dirs(&mut self) {
        let mut grown = Grown::of(std::mem::take(&mut self.places));
        self.files.values_mut().for_each(|record| record.paths.settle(&mut grown));
        self.tree = grown.tree.clone();
        self.moved = grown.finish();
    }

    /// Replays one file of the log. Readable records behind damage are applied as well: `salvage` recovers more
    /// of a damaged tier with them, and nothing else acts on them.
    fn replay(&mut self, media: &dyn Media, name: &str, now: &Witness) -> io::Result<()> {
        let file = media.open(name, Open::Existing)?;
        let (mut next_seq, mut seq) = (self.next_seq, self.next_seq);
        let each = |entry| {
            self.apply(seq, entry);
            seq += 1;
        };
        let tail = log::read(&*file, &mut next_seq, each)?;
        self.next_seq = next_seq;
        // Records behind the mark of a clean shutdown were never synced.
        if tail.is_damage(self.since(now).boot(false)) {
            self.gap(format!("{name} is damaged at record {next_seq:x}"));
            self.next_seq = tail.next_seq();
            tail.sound.into_iter().for_each(|found| self.apply(found.seq, found.entry));
        }
        Ok(())
    }

    /// After a loss of power: takes from the seals of shadows what the log does not say, of files that programs
    /// wrote past the daemon. Returns the shadows whose seals cannot be read, and the errors.
    pub(super) fn believe_seals(
        &mut self,
        media: &dyn Media,
        now: &Witness,
    ) -> Vec<(String, io::Error)> {
        let mut failed = Vec::new();
        if self.boot(now) == Boot::Kept {
            return failed;
        }
        let unseen =
            self.files.iter().filter(|(id, file)| file.is_unseen() && !self.is_in_doubt(**id));
        let unseen: Vec<FileId> = unseen.map(|(id, _)| *id).collect();
        for id in unseen {
            let len = match self.sealed_to(media, id) {
                Ok(Some(len)) => len,
                Ok(None) => continue,
                Err(error) => {
                    failed.push((shadow_name(id), error));
                    continue;
                }
            };
            let file = self.files.get_mut(&id).expect("listed above");
            let durable = file.durable_size();
            if durable.is_none_or(|durable| durable < len) {
                if self.start.is_none() {
                    self.problems.push(in_doubt(file, durable.unwrap_or(0), len));
                }
                file.apply(&Change::Synced { size: len, ranges: (&[(0, len)]).into() });
                // The change goes to the store, too.
                self.touched.entry(id).or_insert(self.applied_seq);
            }
        }
        failed
    }

    /// Believes the seals for a caller that changes nothing: seals that cannot be read are reported as
    /// problems.
    fn hear_seals(&mut self, media: &dyn Media, now: &Witness) {
        for (name, error) in self.believe_seals(media, now) {
            let text = format!("{name}: up to where it was synced last is not known: {error}");
            self.problems.push(text);
        }
    }

    /// Whether the seal of a file is valid. If the number of the last use of the tier is unknown, the seal may
    /// be of any use.
    pub(super) fn counts(&self, seal: Seal, id: FileId) -> bool {
        let start = self.start.unwrap_or(seal.start);
        seal.counts(start, self.applied_seq, self.touched.get(&id).copied())
    }

    /// The length up to which the shadow's valid seal says that it is durable, if it has one.
    fn sealed_to(&self, media: &dyn Media, id: FileId) -> io::Result<Option<u64>> {
        let name = shadow_name(id);
        let stat = match media.stat(&name) {
            Ok(stat) if stat.kind == FileKind::File => stat,
            // The caller that compares the shadow with its record reports this.
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let seal = media.seal_of(&name)?.and_then(|bytes| Seal::of_bytes(&bytes));
        // A write that was under way when the seal was made may have moved the size in memory alone.
        Ok(seal.filter(|seal| self.counts(*seal, id)).map(|seal| seal.len.min(stat.len)))
    }

    /// Notes that records are missing here: they may have changed everything that is known so far.
    fn gap(&mut self, what: String) {
        self.damage.push(format!("the log: {what}"));
        self.sure.clear();
    }

    fn apply(&mut self, seq: u64, entry: Entry<'_>) {
        self.touched.extend(entry.file().map(|id| (id, seq)));
        match entry {
            Entry::Put(id, record) => {
                self.next_id = self.next_id.max(id.0 + 1);
                self.sure.insert(id);
                self.files.insert(id, *record.into_owned());
            }
            Entry::Drop(id) => drop(self.files.remove(&id)),
            Entry::Change(id, change) => self.change(id, &change),
            Entry::Name(record) => {
                if let NameRecord::Done { places, .. } = &record {
                    places.iter().cloned().for_each(|placed| self.places.log_says(placed));
                }
                self.names.apply(record);
            }
            Entry::Dirs(places) => {
                places.into_iter().for_each(|placed| self.places.log_says(placed));
            }
            old => self.gap(format!("a record of an older format: {old:?}")),
        }
    }

    fn change(&mut self, id: FileId, change: &Change<'_>) {
        match self.files.get_mut(&id) {
            Some(record) => record.apply(change),
            None => self.problems.push(format!("log record for unknown file {:x}", id.0)),
        }
    }
}

/// Reads the index without changing anything, for `check`.
pub fn load_read_only(media: &dyn Media, now: &Witness) -> io::Result<Loaded> {
    let mut loaded = Loaded::default();
    let file = media.open(STORE_NAME, Open::Existing)?;
    let db = Database::builder()
        .set_cache_size(STORE_CACHE_BYTES)
        .create_with_backend(Overlay::over(file)?)
        .map_err(other)?;
    load_store(&db, &mut loaded)?;
    loaded.replay_logs(media, now)?;
    loaded.hear_seals(media, now);
    Ok(loaded)
}

/// The problem of a file whose seal may be of an earlier use of the tier.
fn in_doubt(file: &Record, durable: u64, len: u64) -> String {
    format!(
        "{}: its bytes {durable}..{len} were synced by the word of its shadow file alone, which may be of an earlier use of the tier: they are in doubt",
        file.display_path().display()
    )
}

/// Reads the logs alone, for a tier whose store cannot be read: the files that changed since the last
/// compaction.
pub fn load_logs(media: &dyn Media, now: &Witness) -> Loaded {
    let mut loaded = Loaded::default();
    // The last boot is unknown: data that were never synced are not believed.
    loaded.witness.boot = "unknown".into();
    let first = media.list("log").unwrap_or_default().into_iter().min();
    loaded.next_seq = first.and_then(|name| u64::from_str_radix(&name, 16).ok()).unwrap_or(0);
    // The store may have had records that the logs repeat (I2).
    loaded.applied_seq = loaded.next_seq;
    let read = loaded.replay_logs(media, now);
    // Every change of a file that is older than the first log is a problem here; the caller knows that.
    loaded.problems.clear();
    loaded.problems.extend(read.err().map(|e| format!("the log cannot be read to its end: {e}")));
    loaded.hear_seals(media, now);
    loaded
}

pub(super) fn load_store(db: &Database, loaded: &mut Loaded) -> io::Result<()> {
    let txn = db.begin_read().map_err(other)?;
    loaded.start = Some(0);
    let Ok(meta) = txn.open_table(META) else {
        return Ok(()); // A new tier.
    };
    let number = |key: &str| -> io::Result<u64> {
        Ok(meta.get(key).map_err(other)?.map_or(0, |v| v.value()))
    };
    loaded.used = true;
    loaded.applied_seq = number("applied_seq")?;
    loaded.next_seq = loaded.applied_seq;
    loaded.next_id = number("next_id")?;
    loaded.clean_shutdown = number("clean_shutdown")? == 1;
    loaded.losses = number("losses")?;
    loaded.start = Some(number("starts")?);
    let boot = txn.open_table(BOOT).map_err(other)?;
    let text = |key: &str| -> io::Result<Option<String>> {
        Ok(boot.get(key).map_err(other)?.map(|v| v.value().into()))
    };
    loaded.witness = Witness { boot: text("id")?.unwrap_or_default(), mount: text("mount")? };
    let files = txn.open_table(FILES).map_err(other)?;
    loaded.places.next = number("next_dir")?;
    load_dirs(&txn, loaded)?;
    for row in files.iter().map_err(other)? {
        let (id, bytes) = row.map_err(other)?;
        // `next_id` was read before the files were: a file may be newer.
        loaded.next_id = loaded.next_id.max(id.value() + 1);
        match postcard::from_bytes(bytes.value()) {
            Ok(state) => drop(loaded.files.insert(FileId(id.value()), state)),
            Err(e) => loaded.problems.push(format!("index record {:x}: {e}", id.value())),
        }
    }
    Ok(())
}

/// Reads the directories. A tier of an older format has no table of them.
fn load_dirs(txn: &redb::ReadTransaction, loaded: &mut Loaded) -> io::Result<()> {
    let Ok(dirs) = txn.open_table(DIRS) else { return Ok(()) };
    for row in dirs.iter().map_err(other)? {
        let (id, bytes) = row.map_err(other)?;
        match postcard::from_bytes::<Placed>(bytes.value()) {
            Ok(placed) => loaded.places.store_says(placed),
            Err(e) => loaded.problems.push(format!("record of directory {:x}: {e}", id.value())),
        }
    }
    Ok(())
}
