//! The access list of a node, for when the backing store cannot be asked.

use forebay_backing::FileKey;

use super::Nodes;

/// A moment before the backing store was asked for a list.
#[derive(Debug, Clone, Copy)]
pub struct AclMark(u64);

impl Nodes {
    pub fn acl_mark(&self) -> AclMark {
        AclMark(self.read().acls_forgotten)
    }

    /// The list as last read from the store, empty if there is none; `None` if it was never read.
    pub fn acl(&self, id: u64) -> Option<Vec<u8>> {
        self.read().nodes.get(&id)?.acl.as_deref().map(<[u8]>::to_vec)
    }

    /// Keeps a list that was read after `mark`, unless any list has changed since: it may be this
    /// one.
    pub fn note_acl(&self, id: u64, mark: AclMark, list: &[u8]) {
        let mut table = self.write();
        if table.acls_forgotten == mark.0
            && let Some(node) = table.nodes.get_mut(&id)
        {
            node.acl = Some(list.into());
        }
    }

    /// To be called when the list was changed, or the mode, which shares bits with the list.
    pub fn forget_acl(&self, id: u64) {
        let mut table = self.write();
        table.acls_forgotten += 1;
        if let Some(node) = table.nodes.get_mut(&id) {
            node.acl = None;
        }
    }

    /// As [`Nodes::forget_acl`], for a file that is served here.
    pub fn forget_acl_of(&self, key: FileKey) {
        if let Some(id) = self.id_of(key) {
            self.forget_acl(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ROOT, tests};
    use forebay_backing::FileKind;

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let nodes = tests::nodes(100);
        let file = tests::attr(10, FileKind::File);
        nodes.remember(ROOT, "f".as_ref(), &file, 1);
        let early = nodes.acl_mark();
        nodes.note_acl(10, early, b"old");
        assert_eq!(nodes.acl(10).unwrap(), b"old");
        nodes.forget_acl(10);
        assert_eq!(nodes.acl(10), None);
        nodes.note_acl(10, early, b"old");
        assert_eq!(nodes.acl(10), None, "it may be out of date");
        nodes.note_acl(10, nodes.acl_mark(), b"");
        assert_eq!(nodes.acl(10).unwrap(), b"", "asked, and there is none");
        let other = tests::attr(10, FileKind::Dir);
        let id = nodes.remember(ROOT, "f".as_ref(), &other, 1);
        assert_eq!(nodes.acl(id), None, "that was another file's");
    }
}
