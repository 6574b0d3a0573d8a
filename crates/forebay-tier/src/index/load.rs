//! What is found of an index at start: the store, and the logs that are replayed over it.

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

/// The index as it was found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    pub files: BTreeMap<FileId, Record>,
    pub names: Journal,
    pub next_id: u64,
    /// Of the last use of the tier.
    pub witness: Witness,
    pub clean_shutdown: bool,
    /// How often what was never synced was lost, before the last use of the tier.
    losses: u64,
    /// How often the tier was used; `None` if nobody knows.
    pub(super) start: Option<u64>,
    /// What could not be read, in words.
    pub problems: Vec<String>,
    /// Where records of the log are missing that were there, in words: nobody knows what they said.
    pub damage: Vec<String>,
    /// Files whose whole state was recorded after the last damage.
    pub(super) sure: HashSet<FileId>,
    /// Somebody has used the tier: there must be a log.
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
    /// What has happened since the tier was last used, if things are `now` so.
    pub fn since(&self, now: &Witness) -> Since {
        self.witness.since(now)
    }

    /// Whether records of this file may be missing.
    pub fn is_in_doubt(&self, id: FileId) -> bool {
        !self.damage.is_empty() && !self.sure.contains(&id)
    }

    /// What of it may be trusted then.
    pub fn boot(&self, now: &Witness) -> Boot {
        self.since(now).boot(self.clean_shutdown)
    }

    /// How often what was never synced was lost, this time among them.
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
        // Who was still served after the mark was set made records behind it.
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
                continue; // Covered by the store; a crash kept it from being removed (I2).
            }
            // Begun, and not finished: more records went into the one before it (I2).
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

    /// Finds the directories of all names.
    fn find_dirs(&mut self) {
        let mut grown = Grown::of(std::mem::take(&mut self.places));
        self.files.values_mut().for_each(|record| record.paths.settle(&mut grown));
        self.tree = grown.tree.clone();
        self.moved = grown.finish();
    }

    /// Replays one file. Behind damage, what can be read is applied as well: who saves a damaged
    /// tier has more of it, and nobody else acts on it.
    fn replay(&mut self, media: &dyn Media, name: &str, now: &Witness) -> io::Result<()> {
        let file = media.open(name, Open::Existing)?;
        let (mut next_seq, mut seq) = (self.next_seq, self.next_seq);
        let each = |entry| {
            self.apply(seq, entry);
            seq += 1;
        };
        let tail = log::read(&*file, &mut next_seq, each)?;
        self.next_seq = next_seq;
        // What was recorded behind the mark of a clean shutdown nobody has synced.
        if tail.is_damage(self.since(now).boot(false)) {
            self.gap(format!("{name} is damaged at record {next_seq:x}"));
            self.next_seq = tail.next_seq();
            tail.sound.into_iter().for_each(|found| self.apply(found.seq, found.entry));
        }
        Ok(())
    }

    /// After a loss of power: takes what shadows say of themselves and the log does not, of files that were written past
    /// the daemon. Returns the shadows that cannot be asked, and why.
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
                // It changes the store, too.
                self.touched.entry(id).or_insert(self.applied_seq);
            }
        }
        failed
    }

    /// The same for who changes nothing: what cannot be asked is told.
    fn hear_seals(&mut self, media: &dyn Media, now: &Witness) {
        for (name, error) in self.believe_seals(media, now) {
            let text = format!("{name}: up to where it was synced last is not known: {error}");
            self.problems.push(text);
        }
    }

    /// Whether the seal of a file counts. Where nobody knows which use of the tier was the last, it may be of any.
    pub(super) fn counts(&self, seal: Seal, id: FileId) -> bool {
        let start = self.start.unwrap_or(seal.start);
        seal.counts(start, self.applied_seq, self.touched.get(&id).copied())
    }

    /// Up to where the shadow says that it is durable, if that counts.
    fn sealed_to(&self, media: &dyn Media, id: FileId) -> io::Result<Option<u64>> {
        let name = shadow_name(id);
        let stat = match media.stat(&name) {
            Ok(stat) if stat.kind == FileKind::File => stat,
            // Who compares it with its record tells of that.
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let seal = media.seal_of(&name)?.and_then(|bytes| Seal::of_bytes(&bytes));
        // A write that had not ended when the seal was made may have moved the size in memory alone.
        Ok(seal.filter(|seal| self.counts(*seal, id)).map(|seal| seal.len.min(stat.len)))
    }

    /// Records are missing here: what was known so far may have changed.
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
                self.files.insert(id, *record);
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

/// Of a file whose seal may be of an earlier use of the tier.
fn in_doubt(file: &Record, durable: u64, len: u64) -> String {
    format!(
        "{}: its bytes {durable}..{len} were synced by the word of its shadow file alone, which may be of an earlier use of the tier: they are in doubt",
        file.display_path().display()
    )
}

/// What the logs alone say, for when the store cannot be read: the files that changed since the
/// last compaction.
pub fn load_logs(media: &dyn Media, now: &Witness) -> Loaded {
    let mut loaded = Loaded::default();
    // Who used it last nobody knows: what was never synced is not believed.
    loaded.witness.boot = "unknown".into();
    let first = media.list("log").unwrap_or_default().into_iter().min();
    loaded.next_seq = first.and_then(|name| u64::from_str_radix(&name, 16).ok()).unwrap_or(0);
    // What the store had from behind that the logs say again (I2).
    loaded.applied_seq = loaded.next_seq;
    let read = loaded.replay_logs(media, now);
    // Every change of a file from before the first log is told as a problem; the caller knows.
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
        // The number above was read before the files were: one of them may be newer.
        loaded.next_id = loaded.next_id.max(id.value() + 1);
        match postcard::from_bytes(bytes.value()) {
            Ok(state) => drop(loaded.files.insert(FileId(id.value()), state)),
            Err(e) => loaded.problems.push(format!("index record {:x}: {e}", id.value())),
        }
    }
    Ok(())
}

/// A tier of an older format has none.
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
