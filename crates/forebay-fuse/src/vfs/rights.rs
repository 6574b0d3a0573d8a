//! The rights of a program that asks for a change or an open. The kernel tells its user and its group alone: its
//! other groups and its capabilities, which also decide, are looked up in `/proc`.
//!
//! The kernel of the program's node decides by its own attributes, which may be as old as `attr-ttl`. The home of a
//! file on another node has newer ones, and decides once more ([`Vfs::allows_open`] and the functions after it). No
//! member knows more of a directory than another, so the kernel alone decides about names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use forebay_backing::{Attr, Error, FileKey, Result};
use forebay_cluster::words::{Asker, NewSize, Opener, Set, Within};
use forebay_engine::rules::Origin;

use super::Vfs;
use super::acl::{self, Entry, Tag};
use super::homes::moved;
use crate::flags::OpenFlags;

/// Capabilities, by their numbers in linux/capability.h.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
pub(super) const FSETID: u32 = 4;

const NONE: u64 = 0;
const ALL: u64 = u64::MAX;

/// The rights of a thread that waits for an answer.
pub(super) fn asker_of(who: Origin) -> Asker {
    let of = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", who.pid));
    let asker = read(who, &of("status").unwrap_or_default());
    // Asked of a process that is seen: capabilities in another user namespace are for files of that namespace.
    let is_elsewhere = asker.capable != NONE
        && asker.groups.is_some()
        && namespace_of(&who.pid.to_string()) != namespace_of("self");
    let map = |name: &str| ranges(&of(name).unwrap_or_default());
    let within = is_elsewhere.then(|| Within { uids: map("uid_map"), gids: map("gid_map") });
    Asker { within, ..asker }
}

/// The ranges of a map of users or groups: the first number outside, and how many.
fn ranges(map: &str) -> Vec<(u32, u32)> {
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().skip(1).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    map.lines().filter_map(range).collect()
}

/// The program that opens a file, and the rights that it wants.
pub(super) fn opener(who: Origin, flags: OpenFlags) -> Opener {
    Opener { asker: asker_of(who), wants: flags.rights() }
}

fn namespace_of(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/user")).ok()
}

/// Reads the rights from `/proc/PID/status`. If a thread works for another user at the moment, as NFS's do, that
/// tells of the thread itself: then the user alone counts, as for a thread that the daemon cannot see.
fn read(who: Origin, status: &str) -> Asker {
    let Origin { uid, gid, .. } = who;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let number = |of: &str| of.parse::<u32>().ok();
    // The users are: real, effective, saved, and for files.
    let of_files = field("Uid:").and_then(|all| all.split_whitespace().nth(3)).and_then(number);
    let within = None;
    if of_files != Some(uid) {
        return Asker {
            uid,
            gid,
            groups: None,
            capable: if uid == 0 { ALL } else { NONE },
            within,
        };
    }
    let groups = field("Groups:").map(|all| all.split_whitespace().filter_map(number).collect());
    let hex = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    Asker { uid, gid, groups, capable: hex.unwrap_or(NONE), within }
}

/// Whether the program has a capability for all files.
pub(super) fn has(asker: &Asker, capability: u32) -> bool {
    asker.within.is_none() && asker.capable & (1 << capability) != 0
}

/// Whether the program has a capability for this file.
fn has_for(asker: &Asker, attr: &Attr, capability: u32) -> bool {
    let counts = asker.within.as_ref().is_none_or(|within| within.holds(attr.uid, attr.gid));
    counts && asker.capable & (1 << capability) != 0
}

/// Whether the program is in a group; `None` if that is not known.
pub(super) fn is_of_group(asker: &Asker, gid: u32) -> Option<bool> {
    match &asker.groups {
        _ if asker.gid == gid => Some(true),
        Some(groups) => Some(groups.contains(&gid)),
        None => None,
    }
}

fn owns(asker: &Asker, attr: &Attr) -> bool {
    asker.uid == attr.uid || has_for(asker, attr, FOWNER)
}

/// Whether the program has the wanted rights by its user alone or by capability; `None`: its list decides.
fn has_alone(asker: &Asker, attr: &Attr, wants: i32) -> Option<bool> {
    let searches = has_for(asker, attr, DAC_READ_SEARCH) && wants & !libc::R_OK == 0;
    if has_for(asker, attr, DAC_OVERRIDE) || searches {
        return Some(true);
    }
    // The kernel's NFS server lets a file's owner go on with it whatever its mode became, as if it were open.
    let may_be_open = asker.groups.is_none();
    (asker.uid == attr.uid).then(|| may_be_open || grants(attr.mode >> 6, wants))
}

/// Whether the program has the wanted rights by the file's list, as acl(5) has it. The mode is a list of three.
fn has_by_list(asker: &Asker, attr: &Attr, list: &[Entry], wants: i32) -> bool {
    let short = [
        Entry { tag: Tag::GroupOf, id: 0, bits: attr.mode >> 3 },
        Entry { tag: Tag::Others, id: 0, bits: attr.mode },
    ];
    let list = if list.is_empty() { &short } else { list };
    let mask = list.iter().find(|it| it.tag == Tag::Mask).map_or(0o7, |it| it.bits);
    if let Some(user) = list.iter().find(|it| it.tag == Tag::User && it.id == asker.uid) {
        return grants(user.bits & mask, wants);
    }
    let mut is_in_one = false;
    for entry in list {
        let is_in = match entry.tag {
            Tag::GroupOf => is_of_group(asker, attr.gid),
            Tag::Group => is_of_group(asker, entry.id),
            _ => Some(false),
        };
        if is_in != Some(false) && grants(entry.bits & mask, wants) {
            return true;
        }
        is_in_one |= is_in == Some(true);
    }
    let others = list.iter().find(|it| it.tag == Tag::Others).map_or(0, |it| it.bits);
    !is_in_one && grants(others, wants)
}

fn grants(bits: u32, wants: i32) -> bool {
    !bits & wants as u32 & 0o7 == 0
}

/// The part of a change of attributes that the program may not make. Times that become now are not checked here.
fn forbidden(asker: &Asker, attr: &Attr, set: &Set) -> Option<&'static str> {
    let is_in = |gid| gid == attr.gid || is_of_group(asker, gid) != Some(false);
    let gives_to = |gid| asker.uid == attr.uid && is_in(gid);
    let sets = |time: Option<Option<_>>| time.is_some_and(|at| at.is_some());
    if set.uid.is_some_and(|uid| uid != attr.uid || asker.uid != attr.uid)
        && !has_for(asker, attr, CHOWN)
    {
        return Some("another owner");
    }
    if set.gid.is_some_and(|gid| !gives_to(gid)) && !has_for(asker, attr, CHOWN) {
        return Some("another group");
    }
    // With another owner the mode only takes bits away.
    let sets_mode = set.mode.is_some() && set.uid.is_none() && set.gid.is_none();
    let is_owners = sets_mode || sets(set.atime) || sets(set.mtime);
    (is_owners && !owns(asker, attr)).then_some("mode and times")
}

fn denied(path: &Path) -> Error {
    Error::os(libc::EACCES, format!("{}: its home refuses this user", path.display()))
}

fn not_permitted(path: &Path, what: &str) -> Error {
    let path = path.display();
    Error::os(libc::EPERM, format!("{path}: its home refuses this user to set {what}"))
}

/// The rights of another member's program on a file that this one is the home of. No function locks the tree.
impl Vfs {
    fn allows(&self, asker: &Asker, attr: &Attr, path: &Path, wants: i32) -> Result<()> {
        // Without a bit for groups no list grants anything, and the kernel asks for none.
        let has_list = attr.mode & 0o070 != 0;
        let may = match has_alone(asker, attr, wants) {
            Some(may) => may,
            None if has_list => {
                has_by_list(asker, attr, &acl::entries(&self.acl_at(attr.key, path)?)?, wants)
            }
            None => has_by_list(asker, attr, &[], wants),
        };
        if may { Ok(()) } else { Err(denied(path)) }
    }

    /// The newest attributes of a file that this mount is the home of.
    ///
    /// # Errors
    ///
    /// ESTALE if the file is not known here, and another file has that path.
    pub(super) fn newest(&self, key: FileKey, path: &Path) -> Result<Attr> {
        match self.engine.files.find(key) {
            Some(file) => Ok(self.engine.verbs.stat_open(&file)),
            None => {
                let attr = self.engine.names.ask(|store| store.stat(path))?;
                if attr.key == key { Ok(attr) } else { Err(moved()) }
            }
        }
    }

    /// # Errors
    ///
    /// EACCES.
    pub(super) fn allows_open(&self, program: &Opener, attr: &Attr, path: &Path) -> Result<()> {
        self.allows(&program.asker, attr, path, program.wants)
    }

    /// # Errors
    ///
    /// EPERM for changes that only the owner may make; EACCES for those that a program with write access may make.
    pub(super) fn allows_set(
        &self,
        asker: &Asker,
        attr: &Attr,
        path: &Path,
        (set, size): (&Set, Option<NewSize>),
    ) -> Result<()> {
        if let Some(what) = forbidden(asker, attr, set) {
            return Err(not_permitted(path, what));
        }
        let becomes_now = [set.atime, set.mtime].contains(&Some(None)) && !owns(asker, attr);
        match becomes_now || size.is_some_and(|size| !size.is_open) {
            true => self.allows(asker, attr, path, libc::W_OK),
            false => Ok(()),
        }
    }

    /// # Errors
    ///
    /// EPERM for an access list of another user's file; EACCES for `user.` attributes of a file that the program may
    /// not write. About others the kernel of its node has decided by its capabilities, which no member changes.
    pub(super) fn allows_xattr(
        &self,
        asker: &Asker,
        key: FileKey,
        path: &Path,
        name: &OsStr,
    ) -> Result<()> {
        let attr = self.newest(key, path)?;
        if acl::is_one(name) && !owns(asker, &attr) {
            return Err(not_permitted(path, "its access list"));
        }
        match name.as_encoded_bytes().starts_with(b"user.") {
            true => self.allows(asker, &attr, path, libc::W_OK),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: bool = true;

    fn program(uid: u32, groups: &[u32]) -> Asker {
        Asker { uid, gid: groups[0], groups: Some(groups.to_vec()), capable: NONE, within: None }
    }

    fn file(mode: u32) -> Attr {
        Attr {
            mode,
            uid: 5,
            gid: 50,
            ..crate::nodes::tests::attr(1, forebay_backing::FileKind::File)
        }
    }

    fn may(asker: &Asker, attr: &Attr, list: &[Entry], wants: i32) -> bool {
        has_alone(asker, attr, wants).unwrap_or_else(|| has_by_list(asker, attr, list, wants))
    }

    #[test]
    fn rights_are_read() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nGroups:\t4 24 \nCapEff:\t00000000000001ef\n";
        let who = |uid| Origin { uid, gid: 7, pid: 1 };
        let of = |uid, groups: Option<Vec<u32>>, capable| Asker {
            uid,
            gid: 7,
            groups,
            capable,
            within: None,
        };
        let found = read(who(0), status);
        assert_eq!(found, of(0, Some(vec![4, 24]), 0x1ef), "root without a capability");
        assert!(!has(&found, FSETID));
        assert_eq!(read(who(5), status), of(5, None, NONE), "it works for another");
        assert_eq!(read(who(0), ""), of(0, None, ALL));
        assert_eq!(read(who(5), ""), of(5, None, NONE));
    }

    #[test]
    fn capabilities_of_a_user_namespace_are_for_its_own_files() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        let within = Within { uids: ranges(map), gids: ranges(map) };
        assert_eq!(within.uids, [(1000, 1), (100_000, 65_536)]);
        let all = Asker { capable: ALL, within: Some(within), ..program(1000, &[1000]) };
        let of = |uid, gid| Attr { uid, gid, ..file(0o600) };
        let (wants, chown) = (libc::W_OK, Set { uid: Some(100_005), ..Set::default() });
        for (uid, gid, is_its_own) in [
            (100_003, 100_003, true),
            (165_535, 1000, true),
            (0, 0, false),
            (100_003, 0, false),
            (165_536, 100_000, false),
        ] {
            assert_eq!(may(&all, &of(uid, gid), &[], wants), is_its_own, "{uid}:{gid}");
            assert_eq!(forbidden(&all, &of(uid, gid), &chown).is_none(), is_its_own, "{uid}:{gid}");
        }
        assert!(!has(&all, FSETID), "not for whatever there is");
    }

    #[test]
    fn the_first_class_that_a_program_is_of_decides() {
        let cases = [
            (0o400, program(5, &[1]), libc::R_OK, true, "its owner"),
            (0o477, program(5, &[50]), libc::W_OK, false, "its owner, whatever others may"),
            (0o640, program(6, &[1, 50]), libc::R_OK, true, "its group, not the first one"),
            (0o640, program(6, &[1, 50]), libc::R_OK | libc::W_OK, false, "its group"),
            (0o707, program(6, &[50]), libc::R_OK, false, "its group, whatever others may"),
            (0o604, program(6, &[1]), libc::R_OK, true, "others"),
            (0o711, program(6, &[1]), libc::X_OK, true, "who runs it reads nothing"),
            (0o711, program(6, &[1]), libc::R_OK, false, "others"),
        ];
        for (mode, asker, wants, expected, whose) in cases {
            assert_eq!(
                may(&asker, &file(mode), &[], wants),
                expected,
                "{mode:o}, {wants}: {whose}"
            );
        }
        let unseen = Asker { groups: None, ..program(6, &[1]) };
        assert!(may(&unseen, &file(0o640), &[], libc::R_OK), "its kernel knows its groups");
        assert!(!may(&unseen, &file(0o600), &[], libc::R_OK));
        let owner = Asker { groups: None, ..program(5, &[1]) };
        assert!(may(&owner, &file(0o400), &[], libc::W_OK), "NFS has it open for its owner");
        assert!(!may(&program(5, &[1]), &file(0o400), &[], libc::W_OK));
        let able = |capability| Asker { capable: 1u64 << capability, ..program(6, &[1]) };
        assert!(may(&able(DAC_OVERRIDE), &file(0), &[], libc::R_OK | libc::W_OK));
        assert!(may(&able(DAC_READ_SEARCH), &file(0), &[], libc::R_OK));
        assert!(!may(&able(DAC_READ_SEARCH), &file(0), &[], libc::W_OK));
        assert!(!may(&able(CHOWN), &file(0), &[], libc::R_OK));
    }

    #[test]
    fn a_list_decides_in_place_of_the_groups_bits() {
        let entry = |tag, id, bits| Entry { tag, id, bits };
        let list = [
            entry(Tag::Owner, 0, 6),
            entry(Tag::User, 7, 6),
            entry(Tag::User, 8, 0),
            entry(Tag::GroupOf, 0, 0),
            entry(Tag::Group, 60, 4),
            entry(Tag::Mask, 0, 4),
            entry(Tag::Others, 0, 4),
        ];
        // Where there is a list, the group bits of the mode are its mask.
        let attr = file(0o644);
        let cases = [
            (program(7, &[1]), libc::R_OK, ALLOWED),
            (program(7, &[1]), libc::W_OK, !ALLOWED),
            (program(8, &[1]), libc::R_OK, !ALLOWED),
            (program(9, &[50]), libc::R_OK, !ALLOWED),
            (program(9, &[50, 60]), libc::R_OK, ALLOWED),
            (program(9, &[1]), libc::R_OK, ALLOWED),
            (program(5, &[50]), libc::W_OK, ALLOWED),
        ];
        for (asker, wants, expected) in cases {
            assert_eq!(may(&asker, &attr, &list, wants), expected, "{asker:?}, {wants}");
        }
    }

    #[test]
    fn what_is_its_owners_to_change_is_not_others() {
        let (owner, other) = (program(5, &[1, 60]), program(6, &[50]));
        let able = Asker { capable: (1 << FOWNER) | (1 << CHOWN), ..other.clone() };
        let now = Set { mtime: Some(None), ..Set::default() };
        let sets = [
            (Set { mode: Some(0o777), ..Set::default() }, ALLOWED),
            (Set { gid: Some(60), ..Set::default() }, ALLOWED),
            (Set { gid: Some(61), ..Set::default() }, !ALLOWED),
            (Set { uid: Some(6), ..Set::default() }, !ALLOWED),
            (Set { uid: Some(5), gid: Some(50), ..Set::default() }, ALLOWED),
            (Set { mtime: Some(Some(Default::default())), ..Set::default() }, ALLOWED),
        ];
        for (set, is_allowed) in sets {
            let is_forbidden = |asker| forbidden(asker, &file(0o666), &set).is_some();
            assert_eq!(is_forbidden(&owner), !is_allowed, "its owner: {set:?}");
            assert!(is_forbidden(&other), "somebody else: {set:?}");
            assert!(!is_forbidden(&able), "who has the capabilities: {set:?}");
        }
        assert_eq!(forbidden(&other, &file(0o666), &now), None, "who may write it may");
    }
}
