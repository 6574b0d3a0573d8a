//! Set-user-id and set-group-id, which a change by somebody without the right to keep them takes
//! away. The kernel leaves it to us (FUSE_HANDLE_KILLPRIV_V2), and tells neither groups nor
//! capabilities of who asks: they are looked up where a file has such a bit.

use std::path::Path;

use forebay_backing::{Attr, FileKind, Result, SetAttr};
use forebay_engine::Named;
use forebay_engine::rules::Origin;

use super::Vfs;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// The bit of CAP_FSETID, with which a thread may leave both on what it writes.
const FSETID: u64 = 1 << 4;

/// What a thread may do that decides.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    capable: bool,
    groups: Vec<u32>,
}

impl Rights {
    /// Those of a thread that waits for our answer.
    fn of(who: Origin) -> Rights {
        let status = std::fs::read_to_string(format!("/proc/{}/status", who.pid));
        Rights::read(who, &status.unwrap_or_default())
    }

    /// From its `/proc/PID/status`. Of a thread that we cannot see, the user alone counts.
    fn read(who: Origin, status: &str) -> Rights {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let others = field("Groups:").unwrap_or_default().split_whitespace();
        let groups = others.filter_map(|id| id.parse().ok()).chain([who.gid]).collect();
        // Capabilities of other users are those of a user namespace.
        let capable = who.uid == 0 && capabilities.is_none_or(|all| all & FSETID != 0);
        Rights { capable, groups }
    }

    fn may_keep_group(&self, gid: u32) -> bool {
        self.capable || self.groups.contains(&gid)
    }
}

/// What a write leaves of a mode.
fn written(mode: u32, may_keep_group: bool) -> u32 {
    let drops_group = mode & GROUP_EXECUTES != 0 || !may_keep_group;
    mode & !(SET_USER | if drops_group { SET_GROUP } else { 0 })
}

impl Vfs {
    /// After a write by `who`, or by somebody unknown.
    pub fn strip_privilege(&self, id: u64, path: Option<&Path>, who: Option<Origin>) {
        if self.is_far(id) {
            return; // Its home does that.
        }
        if self.open_file(id).is_some_and(|file| !self.engine.verbs.has_set_id(&file)) {
            return;
        }
        let rights = who.map(Rights::of);
        if rights.as_ref().is_some_and(|rights| rights.capable) {
            return;
        }
        self.take_bits(id, path, |attr| {
            let may_keep = rights.as_ref().is_none_or(|rights| rights.may_keep_group(attr.gid));
            match attr.kind {
                FileKind::File => written(attr.mode, may_keep),
                _ => attr.mode,
            }
        });
    }

    /// After `who` has set the access list of a file or directory.
    pub(super) fn strip_after_acl(&self, id: u64, path: &Path, who: Origin) {
        self.take_bits(id, Some(path), |attr| {
            let keeps = attr.mode & SET_GROUP == 0 || Rights::of(who).may_keep_group(attr.gid);
            if keeps { attr.mode } else { attr.mode & !SET_GROUP }
        });
    }

    /// What `who` is to set besides a new owner: the store's kernel takes away the rest for anybody.
    pub(super) fn mode_with_owner(&self, path: &Path, who: Origin) -> Result<Option<u32>> {
        if who.uid == 0 {
            return Ok(None);
        }
        let attr = self.engine.names.ask(|b| b.stat(path))?;
        let has_bit = attr.kind == FileKind::File && attr.mode & SET_GROUP != 0;
        let drops = has_bit && !Rights::of(who).may_keep_group(attr.gid);
        Ok(drops.then(|| written(attr.mode, false)))
    }

    fn take_bits(&self, id: u64, path: Option<&Path>, left: impl FnOnce(&Attr) -> u32) {
        let Some(path) = path.map(Path::to_path_buf).or_else(|| self.nodes.path(id)) else {
            return;
        };
        let Ok(attr) = self.engine.names.ask(|b| b.stat(&path)) else { return };
        let mode = left(&attr);
        if mode != attr.mode {
            let _altering = self.foresight.answers.altering(Some(&path), Some(attr.key));
            let at = Named { path: &path, key: attr.key, is_dir: attr.kind == FileKind::Dir };
            let _ =
                self.engine.verbs.set_attr(at, &SetAttr { mode: Some(mode), ..SetAttr::default() });
            // No answer to a write or an open tells of a mode.
            self.tell_attributes(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nGroups:\t4 24 \nCapEff:\t00000000000001ef\n";
        let who = |uid| Origin { uid, gid: 7, pid: 1 };
        let expected = Rights { capable: false, groups: vec![4, 24, 7] };
        assert_eq!(Rights::read(who(0), status), expected, "root without the capability");
        let all = status.replace("1ef", "1ff");
        assert!(Rights::read(who(0), &all).capable);
        assert!(!Rights::read(who(5), &all).capable, "of a namespace");
        assert_eq!(Rights::read(who(0), ""), Rights { capable: true, groups: vec![7] });
        assert_eq!(Rights::read(who(5), ""), Rights { capable: false, groups: vec![7] });
    }

    #[test]
    fn a_group_bit_without_execution_is_lost_by_strangers_only() {
        assert_eq!(written(0o6755, true), 0o755);
        assert_eq!(written(0o6745, true), 0o2745);
        assert_eq!(written(0o6745, false), 0o745);
        assert_eq!(written(0o1640, false), 0o1640);
    }
}
