//! Random numbers and file contents that are repeatable by a seed.

/// SplitMix64: tiny, and good enough to choose test cases.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `[0, end)`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end.max(1)
    }

    pub fn range(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start)
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(&mut bytes, self.word(), 0);
        bytes
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `buf` with the bytes of `key` at `offset` of a file. No byte is zero, so that a hole or a
/// lost block can never pass for data.
pub fn fill(buf: &mut [u8], key: u64, offset: u64) {
    let mut at = 0;
    while at < buf.len() {
        let position = offset + at as u64;
        let word =
            (mix(key.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (position / 8))) | 0x0101_0101_0101_0101;
        let skip = (position % 8) as usize;
        let len = (8 - skip).min(buf.len() - at);
        buf[at..at + len].copy_from_slice(&word.to_le_bytes()[skip..skip + len]);
        at += len;
    }
}

#[test]
fn contents_do_not_depend_on_how_they_are_cut() {
    let mut whole = vec![0; 1000];
    fill(&mut whole, 7, 13);
    let mut parts = vec![0; 1000];
    for (start, end) in [(0, 1), (1, 10), (10, 999), (999, 1000)] {
        fill(&mut parts[start..end], 7, 13 + start as u64);
    }
    assert_eq!(whole, parts);
    assert!(!whole.contains(&0));
}
