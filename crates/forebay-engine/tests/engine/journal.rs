//! The acknowledgements that a program got, sector by sector, and the states that a crash may leave.
//!
//! Every sector written carries the file's stamp, its own position and a generation, so that a
//! sector found later is attributable: to this file, this place and one write, or to none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

pub const SECTOR: usize = 512;

/// The content of one sector at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The file was shorter.
    Beyond,
    Zeros,
    Written(u32),
}

/// All values that a sector ever had, in order; those from `acked` on are possible after the
/// process died, those from `synced` on after a loss of power.
#[derive(Debug, Clone)]
struct Sector {
    values: Vec<Value>,
    acked: usize,
    synced: usize,
    /// Whether a change of it is under way.
    pending: bool,
}

#[derive(Debug, Clone, Default)]
struct Stamped {
    sectors: Vec<Sector>,
    /// The length in sectors, as last asked for.
    len: usize,
    /// Whether the last name is gone, or may be.
    gone: bool,
    /// Whether the file was synced and must be found.
    synced: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Journal {
    files: Vec<Stamped>,
    names: BTreeMap<PathBuf, usize>,
    /// The names after the change that is under way.
    next_names: Option<BTreeMap<PathBuf, usize>>,
    /// Every file that a name ever led to.
    ever: BTreeMap<PathBuf, BTreeSet<usize>>,
    pub syncs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    Process,
    Power,
    /// The backing store lost power too.
    Both,
}

impl Journal {
    pub fn new_file(&mut self) -> usize {
        self.files.push(Stamped::default());
        self.files.len() - 1
    }

    pub fn id(&self, path: &PathBuf) -> Option<usize> {
        self.names.get(path).copied()
    }

    pub fn len(&self, id: usize) -> usize {
        self.files[id].len
    }

    /// Begins a change of names.
    pub fn rename_begins(&mut self, change: impl FnOnce(&mut BTreeMap<PathBuf, usize>)) {
        let mut next = self.names.clone();
        change(&mut next);
        for (path, id) in &next {
            self.ever.entry(path.clone()).or_default().insert(*id);
        }
        for (id, file) in self.files.iter_mut().enumerate() {
            let named = |names: &BTreeMap<PathBuf, usize>| names.values().any(|n| *n == id);
            file.gone |= named(&self.names) && !named(&next);
        }
        self.next_names = Some(next);
    }

    pub fn rename_ends(&mut self) {
        self.names = self.next_names.take().expect("one change at a time");
    }

    /// `[start, end)` in sectors becomes `value`; a gap before it becomes zeros.
    pub fn write_begins(&mut self, id: usize, start: usize, end: usize, value: Value) {
        let file = &mut self.files[id];
        for at in file.len.min(start)..start {
            file.push(at, Value::Zeros);
        }
        (start..end).for_each(|at| file.push(at, value));
        file.len = file.len.max(end);
    }

    pub fn resize_begins(&mut self, id: usize, len: usize) {
        let file = &mut self.files[id];
        (len..file.len).for_each(|at| file.push(at, Value::Beyond));
        (file.len..len).for_each(|at| file.push(at, Value::Zeros));
        file.len = len;
    }

    pub fn change_ends(&mut self, id: usize) {
        for sector in self.files[id].sectors.iter_mut().filter(|sector| sector.pending) {
            sector.acked = sector.values.len() - 1;
            sector.pending = false;
        }
    }

    /// Notes that a change gave an error: it may have happened or not.
    pub fn change_fails(&mut self, id: usize) {
        self.files[id].sectors.iter_mut().for_each(|sector| sector.pending = false);
    }

    /// Returns what a sync that begins now will have made durable.
    pub fn sync_begins(&self, id: usize) -> Vec<usize> {
        self.files[id].sectors.iter().map(|sector| sector.acked).collect()
    }

    pub fn sync_ends(&mut self, id: usize, covered: &[usize]) {
        self.syncs += 1;
        let file = &mut self.files[id];
        file.synced = true;
        for (sector, at) in file.sectors.iter_mut().zip(covered) {
            sector.synced = sector.synced.max(*at);
        }
    }

    /// Compares the files found after a crash with what may be there. A file that had one of the
    /// `excused` names need not be found.
    pub fn check(
        &self,
        crash: Crash,
        found: &BTreeMap<PathBuf, Vec<u8>>,
        excused: &BTreeSet<PathBuf>,
    ) -> Result<(), String> {
        if crash != Crash::Both {
            self.check_names(crash, found)?;
        }
        let mut met = BTreeSet::new();
        for (path, bytes) in found {
            met.extend(self.identify(crash, path, bytes)?);
        }
        let must = |(id, file): &(usize, &Stamped)| {
            (file.synced || crash == Crash::Process)
                && !file.gone
                && self.names.values().any(|named| named == id) // Otherwise its create had not ended.
                && !met.contains(id)
                && !excused
                    .iter()
                    .any(|path| self.ever.get(path).is_some_and(|ids| ids.contains(id)))
        };
        match self.files.iter().enumerate().find(must) {
            Some((id, file)) => Err(format!(
                "file {id} is lost: {:?}; found {:?}",
                file.sectors.first(),
                found.keys()
            )),
            None => Ok(()),
        }
    }

    /// After a loss of power a file that was removed, but not durably forgotten, may be back.
    fn check_names(&self, crash: Crash, found: &BTreeMap<PathBuf, Vec<u8>>) -> Result<(), String> {
        let kept = |path: &&PathBuf| crash == Crash::Process || !self.was_removed(path);
        let same = |names: &BTreeMap<PathBuf, usize>| {
            names.keys().all(|path| found.contains_key(path))
                && found.keys().filter(kept).all(|path| names.contains_key(path))
        };
        match same(&self.names) || self.next_names.as_ref().is_some_and(same) {
            true => Ok(()),
            false => Err(format!("names {:?} instead of {:?}", found.keys(), self.names)),
        }
    }

    /// Whether a file of that name is gone, or may be.
    pub fn lost_a_file(&self, path: &PathBuf) -> bool {
        self.ever.get(path).is_some_and(|ids| ids.iter().any(|id| self.files[*id].gone))
    }

    /// Whether `path` leads to no file now, or is about to.
    fn was_removed(&self, path: &PathBuf) -> bool {
        let next = self.next_names.as_ref().unwrap_or(&self.names);
        !self.names.contains_key(path) || !next.contains_key(path)
    }

    /// Returns the files that `path` may hold, whole and in a possible state: an empty file may be
    /// one of several.
    fn identify(
        &self,
        crash: Crash,
        path: &PathBuf,
        bytes: &[u8],
    ) -> Result<BTreeSet<usize>, String> {
        let now = self.names.get(path).into_iter();
        let next = self.next_names.as_ref().and_then(|names| names.get(path));
        let candidates: BTreeSet<usize> = match crash {
            Crash::Power if !self.was_removed(path) => now.chain(next).copied().collect(),
            Crash::Both | Crash::Power => self.ever.get(path).cloned().unwrap_or_default(),
            Crash::Process => now.chain(next).copied().collect(),
        };
        let mut why = format!("{} is nobody's", path.display());
        let mut fits = BTreeSet::new();
        for id in candidates {
            match self.files[id].check(id, crash, bytes) {
                Ok(()) => _ = fits.insert(id),
                Err(e) => why = format!("{} (file {id}): {e}", path.display()),
            }
        }
        if fits.is_empty() { Err(why) } else { Ok(fits) }
    }
}

impl Stamped {
    fn push(&mut self, at: usize, value: Value) {
        while self.sectors.len() <= at {
            self.sectors.push(Sector {
                values: vec![Value::Beyond],
                acked: 0,
                synced: 0,
                pending: false,
            });
        }
        self.sectors[at].values.push(value);
        self.sectors[at].pending = true;
    }

    fn check(&self, id: usize, crash: Crash, bytes: &[u8]) -> Result<(), String> {
        if !bytes.len().is_multiple_of(SECTOR) {
            return Err(format!("its size {} was never asked for", bytes.len()));
        }
        let count = bytes.len() / SECTOR;
        for at in 0..count.max(self.sectors.len()) {
            let value = match bytes.get(at * SECTOR..(at + 1) * SECTOR) {
                Some(sector) => read_stamp(id, at, sector)?,
                None => Value::Beyond,
            };
            let Some(sector) = self.sectors.get(at) else {
                return Err(format!("sector {at} is {value:?} and was never written"));
            };
            let from = match crash {
                _ if self.gone => 0,
                Crash::Process => sector.acked,
                Crash::Power | Crash::Both => sector.synced,
            };
            if !sector.values[from..].contains(&value) {
                return Err(format!(
                    "sector {at} of {count} is {value:?}, not from {from} of {:?}",
                    sector.values
                ));
            }
        }
        Ok(())
    }
}

/// Returns the sector of file `id` at position `at`.
pub fn stamp(id: usize, at: usize, generation: u32) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    for (n, chunk) in sector.chunks_mut(16).enumerate() {
        chunk[..4].copy_from_slice(&(id as u32 + 1).to_le_bytes());
        chunk[4..8].copy_from_slice(&(at as u32).to_le_bytes());
        chunk[8..12].copy_from_slice(&generation.to_le_bytes());
        chunk[12..].copy_from_slice(&(n as u32 | 0xf0_0000).to_le_bytes());
    }
    sector
}

fn read_stamp(id: usize, at: usize, sector: &[u8]) -> Result<Value, String> {
    if sector.iter().all(|byte| *byte == 0) {
        return Ok(Value::Zeros);
    }
    let generation = u32::from_le_bytes(sector[8..12].try_into().expect("4 bytes"));
    match sector == stamp(id, at, generation) {
        true => Ok(Value::Written(generation)),
        false => Err(format!("sector {at} is foreign or torn: {:?}", &sector[..16])),
    }
}
