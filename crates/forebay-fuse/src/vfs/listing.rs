//! The place at which a listing goes on.
//!
//! The place of an entry is made of its name alone, so it means the same in every list of the
//! directory. A program that opens the directory anew for each piece, as NFS servers in user space
//! do, misses no entry and gets none twice, whatever came and went in between.

use std::ffi::OsStr;

use forebay_backing::DirEntry;

/// The entries of a directory in the order of their cookies, which grow from one to the next.
pub struct Listing {
    /// In the order of the backing store: to sort these themselves would cost more than to read them.
    entries: Vec<DirEntry>,
    order: Vec<(u64, u32)>,
}

impl Listing {
    pub fn new(entries: Vec<DirEntry>) -> Listing {
        Listing::by(entries, cookie)
    }

    fn by(entries: Vec<DirEntry>, cookie: fn(&OsStr) -> u64) -> Listing {
        let placed = entries.iter().zip(0..).map(|(entry, at)| (cookie(&entry.name), at));
        let mut order: Vec<(u64, u32)> = placed.collect();
        let name = |at: u32| &entries[at as usize].name;
        order.sort_unstable_by(|(a, x), (b, y)| a.cmp(b).then_with(|| name(*x).cmp(name(*y))));
        // Names with one hash, of which a directory of a million has any once in ten million
        // times, are moved apart: while all of them stay, none is missed.
        let mut last = 0;
        for (cookie, _) in &mut order {
            *cookie = (*cookie).max(last + 1);
            last = *cookie;
        }
        Listing { entries, order }
    }

    /// The entries after the one with this cookie, with their cookies; all entries after 0.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &DirEntry)> {
        let from = self.order.partition_point(|(at, _)| *at <= cookie);
        self.order[from..].iter().map(|(cookie, at)| (*cookie, &self.entries[*at as usize]))
    }
}

/// The cookie of a name: beyond 2, since servers keep the first ones for themselves, and positive as
/// a file offset however many are moved.
fn cookie(name: &OsStr) -> u64 {
    match name.as_encoded_bytes() {
        b"." => 1,
        b".." => 2,
        bytes => (hash(bytes) >> 2) + 3,
    }
}

/// Mixes every word of a name into all bits; no name has a zero, so the last word may be filled up
/// with zeros. Not to be changed: a client may go on with a listing that an earlier version began.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |h: u64, factor: u64| {
        let h = (h ^ (h >> 33)).wrapping_mul(factor);
        h ^ (h >> 29)
    };
    let words = bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    });
    let h = words.fold(0xcbf2_9ce4_8422_2325, |h, word| mix(h ^ word, 0xff51_afd7_ed55_8ccd));
    mix(h, 0xc4ce_b9fe_1a85_ec53)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_backing::FileKind;

    fn entries(names: &[&str]) -> Vec<DirEntry> {
        let entry = |name: &&str| DirEntry { name: name.into(), kind: FileKind::File, ino: 7 };
        names.iter().map(entry).collect()
    }

    fn names(list: &Listing, after: u64) -> Vec<&str> {
        list.after(after).map(|(_, entry)| entry.name.to_str().unwrap()).collect()
    }

    #[test]
    fn a_place_means_the_same_in_every_list() {
        let all: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
        let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
        all.extend([".", ".."]);
        let whole = Listing::new(entries(&all));
        assert_eq!(names(&whole, 0)[..2], [".", ".."]);
        let cookies: Vec<u64> = whole.after(0).map(|(cookie, _)| cookie).collect();
        assert!(cookies.is_sorted_by(|a, b| a < b) && cookies[1001] < i64::MAX as u64);
        assert!(cookies[2] > 2);
        // Half of the names, in another order.
        let expected = names(&whole, cookies[500]);
        let rest: Vec<&str> = expected.iter().rev().copied().collect();
        let shorter = Listing::new(entries(&rest));
        assert_eq!(names(&shorter, cookies[500]), expected);
        assert_eq!(names(&shorter, cookies[1001]), [""; 0]);
    }

    /// Another hash would send clients that are in the middle of a listing to another place.
    #[test]
    fn the_hash_stays_as_it_is() {
        assert_eq!(hash(b"entry-00001"), 0xca25_86dc_9d31_1408);
    }

    #[test]
    fn names_with_one_hash_are_told_apart() {
        let same = |_: &OsStr| 40;
        let listing = Listing::by(entries(&["c", "a", "b"]), same);
        assert_eq!(names(&listing, 0), ["a", "b", "c"]);
        assert_eq!(names(&listing, 40), ["b", "c"]);
        assert_eq!(names(&listing, 41), ["c"]);
        let again = Listing::by(entries(&["b", "c", "a"]), same);
        assert_eq!(names(&again, 41), ["c"]);
    }
}
