//! Set-user-id and set-group-id, which a change by a program without the right to keep them takes
//! away. The kernel leaves that to the daemon (FUSE_HANDLE_KILLPRIV_V2). The program's rights are looked
//! up where a file has such a bit.

use std::path::{Path, PathBuf};

use forebay_backing::{Attr, FileKey, FileKind, SetAttr};
use forebay_cluster::words::Asker;
use forebay_engine::Named;
use forebay_engine::rules::Origin;

use super::Vfs;
use super::rights::{FSETID, asker_of, has, is_of_group};

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

fn may_keep_group(asker: &Asker, gid: u32) -> bool {
    has(asker, FSETID) || is_of_group(asker, gid) == Some(true)
}

/// The mode that a write leaves.
fn written(mode: u32, may_keep_group: bool) -> u32 {
    let drops_group = mode & GROUP_EXECUTES != 0 || !may_keep_group;
    mode & !(SET_USER | if drops_group { SET_GROUP } else { 0 })
}

/// The mode to set with a new owner, if the asker may not keep the set-group-id bit: the store's kernel strips the rest
/// for any user.
pub(super) fn mode_with_owner(attr: &Attr, asker: &Asker) -> Option<u32> {
    let has_bit = attr.kind == FileKind::File && attr.mode & SET_GROUP != 0;
    let drops = asker.uid != 0 && has_bit && !may_keep_group(asker, attr.gid);
    drops.then(|| written(attr.mode, false))
}

impl Vfs {
    /// Strips the bits after a write by `who`, or by an unknown program.
    pub fn strip_privilege(&self, id: u64, path: Option<&Path>, who: Option<Origin>) {
        if self.is_far(id) {
            return; // The file's home does that.
        }
        if self.open_file(id).is_some_and(|file| !self.engine.verbs.has_set_id(&file)) {
            return;
        }
        let asker = who.map(asker_of);
        if asker.as_ref().is_some_and(|asker| has(asker, FSETID)) {
            return;
        }
        let path = path.map(Path::to_path_buf).or_else(|| self.nodes.path(id));
        self.take_bits(path, |attr| {
            let may_keep = asker.as_ref().is_none_or(|asker| may_keep_group(asker, attr.gid));
            match attr.kind {
                FileKind::File => written(attr.mode, may_keep),
                _ => attr.mode,
            }
        });
    }

    /// Strips the bits after a write by a program of another node. `path` is the file's, if that is known.
    pub(super) fn strip_for_member(&self, file: FileKey, path: Option<&Path>) {
        let known = || self.nodes.path(self.nodes.id_of(file)?);
        let path = path.map(Path::to_path_buf).or_else(known);
        self.take_bits(path, |attr| match attr.kind {
            FileKind::File => written(attr.mode, true),
            _ => attr.mode,
        });
    }

    /// Strips the bit after `who` has set the access list of a file or directory.
    pub(super) fn strip_after_acl(&self, path: &Path, who: Origin) {
        self.take_bits(Some(path.to_path_buf()), |attr| {
            let keeps = attr.mode & SET_GROUP == 0 || may_keep_group(&asker_of(who), attr.gid);
            if keeps { attr.mode } else { attr.mode & !SET_GROUP }
        });
    }

    fn take_bits(&self, path: Option<PathBuf>, left: impl FnOnce(&Attr) -> u32) {
        let Some(path) = path else { return };
        let Ok(attr) = self.engine.names.ask(|b| b.stat(&path)) else { return };
        let mode = left(&attr);
        if mode != attr.mode {
            let _altering = self.foresight.answers.altering(Some(&path), Some(attr.key));
            let at = Named { path: &path, key: attr.key, is_dir: attr.kind == FileKind::Dir };
            let _ =
                self.engine.verbs.set_attr(at, &SetAttr { mode: Some(mode), ..SetAttr::default() });
            // The answer to a write or an open has no mode.
            self.tell_attributes_of(attr.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_bit_without_execution_is_lost_by_strangers_only() {
        assert_eq!(written(0o6755, true), 0o755);
        assert_eq!(written(0o6745, true), 0o2745);
        assert_eq!(written(0o6745, false), 0o745);
        assert_eq!(written(0o1640, false), 0o1640);
    }
}
