//! The bytes of a sparse file, cheap to copy; holes cost nothing, however large.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PAGE: u64 = 4096;

#[derive(Clone, Default)]
pub struct Bytes {
    /// Pages by number. A missing page is a hole.
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
    len: u64,
}

impl Bytes {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    pub fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (page, at, part) in parts(offset, n) {
            let out = &mut buf[part..part + at.len()];
            match self.pages.get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[at]),
                None => out.fill(0),
            }
        }
        n
    }

    pub fn all(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes, 0);
        bytes
    }

    pub fn write(&mut self, data: &[u8], offset: u64) {
        self.set_len(self.len.max(offset + data.len() as u64));
        for (page, at, part) in parts(offset, data.len()) {
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[at.clone()].copy_from_slice(&data[part..part + at.len()]);
        }
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len.next_multiple_of(PAGE));
        }
        self.len = len;
    }

    pub fn punch(&mut self, offset: u64, len: u64) {
        self.zero(offset, (offset + len).min(self.len));
    }

    fn zero(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, last) = (start / PAGE, (end - 1) / PAGE);
        let inside: Vec<u64> = self.pages.range(first..=last).map(|(page, _)| *page).collect();
        for page in inside {
            let from = start.max(page * PAGE) - page * PAGE;
            let to = end.min((page + 1) * PAGE) - page * PAGE;
            if (from, to) == (0, PAGE) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Returns the next stretch that is no hole.
    pub fn next_data(&self, offset: u64) -> Option<(u64, u64)> {
        let mut pages = self.pages.range(offset / PAGE..).map(|(page, _)| *page);
        let first = pages.next()?;
        let run = pages.zip(first + 1..).take_while(|(page, next)| page == next).count() as u64;
        let (start, end) = (first * PAGE, (first + 1 + run) * PAGE);
        let (start, end) = (start.max(offset), end.min(self.len));
        (start < end).then_some((start, end))
    }
}

/// Whether both read alike.
impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        let zeros = Arc::new([0; PAGE as usize]);
        let pages: BTreeSet<&u64> = self.pages.keys().chain(other.pages.keys()).collect();
        let page = |of: &Bytes, n: &u64| of.pages.get(n).unwrap_or(&zeros).clone();
        self.len == other.len && pages.into_iter().all(|n| page(self, n) == page(other, n))
    }
}

/// Cuts `[offset, offset + len)` at pages: page, range in it, position in the whole.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let next = ((at / PAGE + 1) * PAGE).min(end);
        let from = (at % PAGE) as usize;
        let part = (at / PAGE, from..from + (next - at) as usize, (at - offset) as usize);
        at = next;
        Some(part)
    })
}
