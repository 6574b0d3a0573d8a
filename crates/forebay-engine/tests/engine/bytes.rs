//! The bytes of a sparse file, cheap to copy.

use std::sync::Arc;

const PAGE: u64 = 4096;

#[derive(Clone, Default)]
pub struct Bytes {
    /// `None` is a hole.
    pages: Vec<Option<Arc<[u8; PAGE as usize]>>>,
    len: u64,
}

impl Bytes {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn allocated(&self) -> u64 {
        self.pages.iter().flatten().count() as u64 * PAGE
    }

    pub fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (page, at, part) in parts(offset, n) {
            let out = &mut buf[part..part + at.len()];
            match &self.pages[page] {
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
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[at.clone()].copy_from_slice(&data[part..part + at.len()]);
        }
    }

    pub fn set_len(&mut self, len: u64) {
        let old = std::mem::replace(&mut self.len, len);
        self.pages.resize(len.div_ceil(PAGE) as usize, None);
        if len < old && !len.is_multiple_of(PAGE) {
            self.zero(len, PAGE - len % PAGE);
        }
    }

    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.len);
        self.zero(offset, end.saturating_sub(offset));
    }

    fn zero(&mut self, offset: u64, len: u64) {
        for (page, at, _) in parts(offset, len as usize) {
            if at.len() as u64 == PAGE {
                self.pages[page] = None;
            } else if let Some(bytes) = &mut self.pages[page] {
                Arc::make_mut(bytes)[at].fill(0);
            }
        }
    }

    /// The next stretch that is no hole.
    pub fn next_data(&self, offset: u64) -> Option<(u64, u64)> {
        let first = (offset / PAGE) as usize;
        let here = first + self.pages.get(first..)?.iter().position(Option::is_some)?;
        let run = self.pages[here..].iter().take_while(|page| page.is_some()).count();
        let (start, end) = (here as u64 * PAGE, (here + run) as u64 * PAGE);
        let (start, end) = (start.max(offset), end.min(self.len));
        (start < end).then_some((start, end))
    }
}

/// Cuts `[offset, offset + len)` at pages: page, range in it, position in the whole.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let next = ((at / PAGE + 1) * PAGE).min(end);
        let from = (at % PAGE) as usize;
        let part =
            ((at / PAGE) as usize, from..from + (next - at) as usize, (at - offset) as usize);
        at = next;
        Some(part)
    })
}
