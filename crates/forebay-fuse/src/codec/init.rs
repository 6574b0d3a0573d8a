//! The handshake: the flags that the kernel offers, and those that the daemon takes. The code is pure.

use super::abi::{self, init};
use super::decode::Request;
use super::encode::Words;
use crate::verbs::MAX_WRITE;

/// The first version that enforces ACLs: Linux 4.9.
const MINOR_MIN: u32 = 26;

/// The flags that every session takes if the kernel offers them.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::EXPORT_SUPPORT
    | init::ATOMIC_O_TRUNC
    | init::DONT_MASK
    | init::HANDLE_KILLPRIV_V2
    | init::PARALLEL_DIROPS
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::MAX_PAGES
    | init::POSIX_ACL
    | init::EXT;

/// The features that the mount wants.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    pub passthrough: bool,
    pub kernel_writeback: bool,
    pub io_uring: bool,
    /// The daemon grants the locks: on a mount with other members they hold between all members.
    pub locks: bool,
    /// The kernel caches the targets of symbolic links while it knows their inodes. This takes a store that tells a
    /// link from an earlier one with the same inode number.
    pub links: bool,
    /// Files that are opened with FOPEN_DIRECT_IO can be mapped shared: those that other members serve.
    pub maps: bool,
}

/// The features that the kernel granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    pub passthrough: bool,
    pub io_uring: bool,
}

/// The result of an INIT.
pub enum Agreed {
    /// This answer begins the session.
    Session(Granted, Words),
    /// The kernel speaks a newer version: this answer names ours, and the kernel sends INIT again.
    Again(Words),
    /// There is no session, for this reason.
    Refused(&'static str),
}

/// Answers the first request of a session.
pub fn agree(request: &Request<'_>, wishes: Wishes) -> Agreed {
    let Some((major, minor, readahead, offered)) = request.offer() else {
        return Agreed::Refused("the kernel began with something else than a handshake");
    };
    if major > abi::MAJOR {
        return Agreed::Again(Words::new().u32(abi::MAJOR).u32(abi::MINOR).zeros(56));
    }
    // Without ACLs a file's mode alone would decide, and grant what the file's access list denies.
    if major < abi::MAJOR || minor < MINOR_MIN || offered & init::POSIX_ACL == 0 {
        return Agreed::Refused("this kernel enforces no ACLs here: Linux 4.9 is needed");
    }
    let wish = |wanted: bool, flag| if wanted { flag } else { 0 };
    let taken = offered
        & (WANTED
            | wish(wishes.kernel_writeback, init::WRITEBACK_CACHE)
            | wish(wishes.locks, init::POSIX_LOCKS | init::FLOCK_LOCKS)
            | wish(wishes.links, init::CACHE_SYMLINKS)
            | wish(wishes.maps, init::DIRECT_IO_ALLOW_MMAP)
            | wish(wishes.passthrough, init::PASSTHROUGH)
            | wish(wishes.io_uring, init::OVER_IO_URING));
    let granted = Granted {
        passthrough: taken & init::PASSTHROUGH != 0,
        io_uring: taken & init::OVER_IO_URING != 0,
    };
    Agreed::Session(granted, init_out(granted, readahead, taken))
}

/// `struct fuse_init_out`.
fn init_out(granted: Granted, readahead: u32, taken: u64) -> Words {
    // Requests beyond this limit are held back, and released several at a time. Of these the entries
    // of a ring would take one: an entry looks for more requests only when it is committed.
    let background: u16 = if granted.io_uring { 512 } else { 64 };
    let pages = MAX_WRITE as usize / rustix::param::page_size();
    // One layer of stacking: shadow files lie on a real file system.
    let stacked = u32::from(granted.passthrough);
    Words::new()
        .u32(abi::MAJOR)
        .u32(abi::MINOR)
        .u32(readahead)
        .u32(taken as u32)
        .u16(background)
        .u16(background / 4 * 3)
        .u32(MAX_WRITE)
        .u32(1) // Times are kept to the nanosecond.
        .u16(pages as u16)
        .u16(0)
        .u32((taken >> 32) as u32)
        .u32(stacked)
        .zeros(24)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wishes = Wishes {
        passthrough: true,
        kernel_writeback: true,
        io_uring: true,
        locks: true,
        links: true,
        maps: true,
    };
    const NONE: Wishes = Wishes {
        passthrough: false,
        kernel_writeback: false,
        io_uring: false,
        locks: false,
        links: false,
        maps: false,
    };

    /// An INIT as the kernel sends it.
    fn message(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let words = Words::new().u32(104).u32(abi::INIT).u64(2).zeros(24);
        let words = words.u32(major).u32(minor).u32(128 << 10).u32(flags as u32);
        words.u32((flags >> 32) as u32).zeros(44).bytes().to_vec()
    }

    fn asked(major: u32, minor: u32, flags: u64, wishes: Wishes) -> Agreed {
        agree(&Request::of_message(&message(major, minor, flags)).unwrap(), wishes)
    }

    fn session(flags: u64, wishes: Wishes) -> (Granted, Vec<u8>) {
        match asked(7, 44, flags, wishes) {
            Agreed::Session(granted, words) => (granted, words.bytes().to_vec()),
            _ => panic!("no session"),
        }
    }

    fn number(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered_or_not_wished_for() {
        let everything = u64::MAX;
        for flags in [everything, everything & !init::PASSTHROUGH, WANTED] {
            for wishes in [ALL, NONE] {
                let (granted, out) = session(flags, wishes);
                assert_eq!(out.len(), 64);
                let taken = u64::from(number(&out, 12)) | u64::from(number(&out, 32)) << 32;
                assert_eq!(taken & !flags, 0);
                let offered = |flag| flags & flag != 0;
                let passthrough = wishes.passthrough && offered(init::PASSTHROUGH);
                let io_uring = wishes.io_uring && offered(init::OVER_IO_URING);
                assert_eq!(granted, Granted { passthrough, io_uring });
                assert_eq!(taken & init::PASSTHROUGH != 0, passthrough);
                assert_eq!(taken & init::OVER_IO_URING != 0, io_uring);
                assert_eq!(number(&out, 36), u32::from(passthrough), "layers");
                assert_eq!(
                    taken & init::WRITEBACK_CACHE != 0,
                    wishes.kernel_writeback && offered(init::WRITEBACK_CACHE)
                );
                for flag in [init::POSIX_LOCKS, init::FLOCK_LOCKS] {
                    assert_eq!(taken & flag != 0, wishes.locks && offered(flag), "locks");
                }
                let keeps = taken & init::CACHE_SYMLINKS != 0;
                assert_eq!(keeps, wishes.links && offered(init::CACHE_SYMLINKS), "links");
                let maps = taken & init::DIRECT_IO_ALLOW_MMAP != 0;
                assert_eq!(maps, wishes.maps && offered(init::DIRECT_IO_ALLOW_MMAP), "mappings");
                assert_eq!(number(&out, 20), MAX_WRITE);
            }
        }
    }

    /// Without the flag EXT the bytes in the place of the second word mean nothing.
    #[test]
    fn a_kernel_without_a_second_word_of_flags_offers_none_of_it() {
        let (granted, _) = session(!init::EXT, ALL);
        assert_eq!(granted, Granted { passthrough: false, io_uring: false });
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        assert!(matches!(asked(8, 0, 0, ALL), Agreed::Again(words) if words.bytes().len() == 64));
        assert!(matches!(asked(7, 25, WANTED, ALL), Agreed::Refused(_)));
        assert!(matches!(asked(6, 44, WANTED, ALL), Agreed::Refused(_)));
        assert!(matches!(asked(7, 44, WANTED & !init::POSIX_ACL, ALL), Agreed::Refused(_)));
        let whole = message(7, 44, WANTED);
        for len in abi::IN_HEADER_LEN..whole.len() {
            let cut = Request::of_message(&whole[..len]).unwrap();
            assert!(matches!(agree(&cut, ALL), Agreed::Refused(_)), "of {len} bytes");
        }
    }
}
