//! The search: level by level, vertices in memory, rows read from the file as they are needed.
//!
//! Invariants:
//! - B1: a vertex gets a parent once, by compare-and-swap, and is in exactly one level's frontier.
//! - B2: the frontier is sorted, so rows are read in the order of the file and neighbors together.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};

use super::graph::{PAGE, WORD, words};
use crate::clock;
use crate::error::{Error, Result};
use crate::io::{Buffers, How, open};
use crate::team::Task;

/// No parent: not reached.
pub const NONE: u32 = u32::MAX;

/// The place of the rows.
pub enum Rows<'a> {
    File(&'a Path, How),
    /// The whole file's bytes, to measure the search without input.
    Memory(&'a [u8]),
}

/// The shared state of the threads of a search.
pub struct Search<'a> {
    offsets: &'a [u64],
    parents: Vec<AtomicU32>,
    frontier: RwLock<Vec<u32>>,
    found: Mutex<Vec<u32>>,
    cursor: AtomicUsize,
    levels: AtomicU64,
}

/// Vertices a thread takes from the frontier at a time.
const CHUNK: usize = 256;
/// Rows closer than this are read together: the bytes between cost less than a read.
const GAP: u64 = PAGE;

impl<'a> Search<'a> {
    pub fn new(offsets: &'a [u64], root: u32) -> Self {
        let parents: Vec<AtomicU32> = offsets[1..].iter().map(|_| AtomicU32::new(NONE)).collect();
        parents[root as usize].store(root, Relaxed);
        Self {
            offsets,
            parents,
            frontier: RwLock::new(vec![root]),
            found: Mutex::new(Vec::new()),
            cursor: AtomicUsize::new(0),
            levels: AtomicU64::new(0),
        }
    }

    /// One thread's part; returns when no vertex is left to find, or on a stop.
    pub fn work(&self, task: &Task<'_>, rows: &Rows<'_>, read: u64) -> Result<()> {
        let mut reader = Reader::open(rows, read)?;
        task.start()?;
        loop {
            let mut found = Vec::new();
            self.level(task, &mut reader, &mut found)?;
            lock(&self.found).append(&mut found);
            task.barrier()?;
            if task.rank == 0 {
                self.turn(task);
            }
            task.barrier()?;
            if self.frontier.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return Ok(());
            }
        }
    }

    /// Makes the found vertices the next frontier (B2); an empty one after a stop.
    fn turn(&self, task: &Task<'_>) {
        let mut next = std::mem::take(&mut *lock(&self.found));
        next.sort_unstable();
        if task.stopping() {
            next.clear();
        }
        self.levels.fetch_add(1, Relaxed);
        self.cursor.store(0, Relaxed);
        *self.frontier.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn level(&self, task: &Task<'_>, reader: &mut Reader<'_>, found: &mut Vec<u32>) -> Result<()> {
        let frontier = self.frontier.read().unwrap_or_else(PoisonError::into_inner);
        while !task.stopping() {
            let from = self.cursor.fetch_add(CHUNK, Relaxed);
            let Some(rest) = frontier.get(from..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            let mut chunk = &rest[..rest.len().min(CHUNK)];
            while !chunk.is_empty() {
                let count = self.run_length(chunk, reader.capacity);
                self.expand(task, reader, &chunk[..count], found)?;
                chunk = &chunk[count..];
            }
        }
        Ok(())
    }

    /// The number of vertices from the first whose rows are worth reading at once.
    fn run_length(&self, chunk: &[u32], capacity: u64) -> usize {
        let start = self.row(chunk[0]).0 / PAGE * PAGE;
        let mut end = self.row(chunk[0]).1;
        let more = chunk[1..].iter().take_while(|&&vertex| {
            let (from, to) = self.row(vertex);
            let fits = from <= end + GAP && to.next_multiple_of(PAGE) - start <= capacity;
            end = to;
            fits
        });
        1 + more.count()
    }

    /// Begin and end of a row in bytes.
    fn row(&self, vertex: u32) -> (u64, u64) {
        let vertex = vertex as usize;
        (self.offsets[vertex] * WORD, self.offsets[vertex + 1] * WORD)
    }

    /// Reads the rows of a run, in pieces if one alone is too long, and visits their vertices.
    fn expand(
        &self,
        task: &Task<'_>,
        reader: &mut Reader<'_>,
        run: &[u32],
        found: &mut Vec<u32>,
    ) -> Result<()> {
        let end = self.row(run[run.len() - 1]).1;
        let mut at = self.row(run[0]).0 / PAGE * PAGE;
        while at < end {
            let until = end.next_multiple_of(PAGE).min(at + reader.capacity);
            let bytes = reader.read(task, at, (until - at) as usize)?;
            for &vertex in run {
                let (from, to) = self.row(vertex);
                let (from, to) = (from.clamp(at, until), to.clamp(at, until));
                let row = &bytes[(from - at) as usize..(to - at) as usize];
                self.visit(vertex, row, found);
            }
            at = until;
        }
        Ok(())
    }

    /// Visits the vertices of a row (B1).
    fn visit(&self, parent: u32, row: &[u8], found: &mut Vec<u32>) {
        for vertex in words(row) {
            let cell = &self.parents[vertex as usize];
            // Most are taken already: a look is cheaper than an attempt.
            if cell.load(Relaxed) == NONE
                && cell.compare_exchange(NONE, parent, Relaxed, Relaxed).is_ok()
            {
                found.push(vertex);
            }
        }
    }

    /// The tree, and its number of levels.
    pub fn finish(self) -> (Vec<u32>, u64) {
        (self.parents.into_iter().map(AtomicU32::into_inner).collect(), self.levels.into_inner())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's access to the rows.
struct Reader<'a> {
    source: Source<'a>,
    buffers: Buffers,
    capacity: u64,
}

enum Source<'a> {
    File(File, &'a Path),
    Memory(&'a [u8]),
}

impl<'a> Reader<'a> {
    fn open(rows: &Rows<'a>, capacity: u64) -> Result<Self> {
        let source = match rows {
            Rows::File(path, how) => Source::File(open(path, *how)?, path),
            Rows::Memory(bytes) => Source::Memory(bytes),
        };
        Ok(Self { source, buffers: Buffers::new(1, capacity as usize), capacity })
    }

    /// Bytes of the file from a page's begin on, measured. The clock is read twice, unlike in
    /// [`crate::drive`]: between two reads the rows are visited, and that time is not the file's.
    fn read(&mut self, task: &Task<'_>, at: u64, len: usize) -> Result<&[u8]> {
        let start = clock::now();
        let buffer = &mut self.buffers.slice(0)[..len];
        match &self.source {
            Source::File(file, path) => {
                file.read_exact_at(buffer, at).map_err(|error| Error::io("read", path, &error))?
            }
            Source::Memory(bytes) => buffer.copy_from_slice(&bytes[at as usize..at as usize + len]),
        }
        task.meter().record(start, clock::now(), len as u64);
        Ok(buffer)
    }
}
