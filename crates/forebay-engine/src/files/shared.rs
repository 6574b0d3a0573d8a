//! What of a file concerns other mounts of the same store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{FileKey, Version};

use crate::core::state::Conflict;
use crate::files::Files;
use crate::files::file::File;
use crate::files::live::Live;

impl Files {
    /// Whether another mount may have newer bytes of the file from now on: nothing of it is dirty here or
    /// on its way home, nobody writes it past us, and after a loss of power nothing of it is flushed
    /// again. Who has it open for writing through the daemon is for the front-end to know.
    pub fn is_at_rest(&self, key: FileKey) -> bool {
        // What makes it rest is durable, too: a tier that comes back without that record would take what it
        // has for newer than what others have written since.
        let is_durable = || self.note_tier(self.index.sync()).is_ok();
        let Some(file) = self.find(key) else { return is_durable() };
        let mut inner = file.lock();
        let state = &inner.state;
        let dirty =
            state.is_dirty() || state.is_unseen() || state.flush_is_open() || state.is_held();
        let rests = |live: &Live| {
            let still = live.flight.is_none() && live.copied.is_none();
            still && live.unseen.is_none() && !live.around.is_under_way()
        };
        let rests = inner.live.as_deref().is_none_or(rests);
        if dirty || state.conflict().stands() || !rests || inner.clock.is_under_way() {
            return false;
        }
        self.let_go(&file, &mut inner).is_ok() && is_durable()
    }

    /// Others have written the file: what the store said of it before does not count, and the next open
    /// asks.
    pub(crate) fn doubt(&self, key: FileKey) {
        let Some(file) = self.find(key) else { return };
        let mut inner = file.lock();
        inner.forget_seen();
        if let Some(live) = &mut inner.live {
            live.mine().checked = None;
        }
    }

    /// Whether what is known of a file is based on this version of the store's.
    pub fn is_based_on(&self, key: FileKey, version: &Version) -> bool {
        self.find(key).is_some_and(|file| file.lock().state.base() == *version)
    }

    /// Files that are known at or below a path.
    pub fn known_below(&self, path: &Path) -> Vec<FileKey> {
        self.select(&[path.to_path_buf()]).iter().map(|file| file.key).collect()
    }

    /// Files of which bytes are here that the store has not, or may lose again, with a path of each that has one.
    pub fn unsettled(&self) -> Vec<(FileKey, PathBuf)> {
        let files = self.all_files();
        let unsettled = |file: &Arc<File>| {
            let inner = file.lock();
            let state = &inner.state;
            let newer = state.is_dirty()
                || state.is_unseen()
                || state.flush_is_open()
                || state.is_held()
                || state.keeps_within(0, u64::MAX);
            let newer = newer && state.conflict() != Conflict::Superseded;
            newer.then(|| Some((file.key, state.paths.first()?))).flatten()
        };
        files.iter().filter_map(unsettled).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_backing::New;

    use crate::bed::bed;

    /// What was synced is kept after a flush, and a loss of power would flush it again: over what others
    /// have written meanwhile.
    // S-6
    #[test]
    fn a_file_is_at_rest_once_nothing_of_it_can_come_back() {
        let bed = bed("shared-rest");
        let (engine, file) = (&bed.engine, &bed.file);
        assert!(!engine.files.is_at_rest(file.key), "dirty");
        assert_eq!(engine.files.unsettled().len(), 1);
        engine.io.sync(file).unwrap();
        engine.drain.flush_file(file).unwrap();
        assert!(file.lock().state.keeps_within(0, 100), "kept, as it is open and was synced");
        assert_eq!(engine.files.unsettled().len(), 1);
        assert!(engine.files.is_at_rest(file.key));
        assert!(!file.lock().state.keeps_within(0, 100));
        assert!(engine.files.unsettled().is_empty());
        engine.io.write(file, 10, b"x").unwrap();
        assert!(!engine.files.is_at_rest(file.key));
    }

    /// Who makes a file past us and writes nothing leaves records that wait for the next one, and without
    /// them the file would come back as written.
    // S-25
    #[test]
    fn what_makes_a_file_rest_is_durable() {
        let bed = bed("shared-durable");
        let engine = &bed.engine;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let new = New { mode: 0o644, umask: 0, uid, gid };
        let (file, _) = engine.verbs.create(Path::new("made"), &new).unwrap();
        let past = engine.passed.write(&file, false).unwrap().expect("a new file");
        engine.files.index().sync().unwrap();
        assert!(!engine.files.is_at_rest(file.key), "somebody may write it");
        past.end().unwrap();
        let key = file.key;
        drop(file);
        let index = engine.files.index();
        assert!(!index.is_synced(index.seq()), "it was recorded that nothing was written");
        assert!(engine.files.is_at_rest(key));
        assert!(index.is_synced(index.seq()));
    }

    #[test]
    fn a_doubted_file_is_compared_at_the_next_open() {
        let bed = bed("shared-doubt");
        let (engine, file) = (&bed.engine, &bed.file);
        engine.drain.flush_file(file).unwrap();
        let path = file.path().unwrap();
        drop(engine.io.open(&path, Some(file.key)).unwrap());
        assert!(file.lock().live().checked.is_some());
        engine.files.doubt(file.key);
        assert!(file.lock().live().checked.is_none());
        assert_eq!(engine.files.known_below(std::path::Path::new("")), [file.key]);
    }
}
