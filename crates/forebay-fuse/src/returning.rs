//! The start of a mount as a member: which files of its tier are still its own, since another member may
//! have taken them over.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{FileKey, Result};
use forebay_cluster::core::{SOMEWHERE, Standing};
use forebay_cluster::front::Cluster;
use forebay_cluster::keys::TakenFrom;
use forebay_cluster::member::Member;
use forebay_engine::Engine;
use forebay_engine::taken::Former;

/// A file with bytes that the store does not have: its key, its directory's key, and its path.
pub type Dirty = (FileKey, FileKey, PathBuf);

/// The homes that a file was taken from, for the engine.
pub fn former(from: Vec<TakenFrom>) -> Vec<Former> {
    from.into_iter().map(|TakenFrom { member, epoch }| Former { member, epoch }).collect()
}

/// Sorts the tier's unsettled files, before any of them is flushed or served. Returns the files that are this
/// member's.
///
/// # Errors
///
/// If the tier cannot record that a file is not this member's.
pub fn sort(engine: &Engine, member: &Arc<Member>) -> Result<Vec<Dirty>> {
    for home in engine.copies.homes() {
        if !member.keeps_for(&home) {
            engine.copies.drop_home(&home)?;
        }
    }
    // A home whose name was given up asks for nothing any more.
    engine.ops.forget_as_taken(&|home| member.epoch(&home.member).is_none());
    let mut own = Vec::new();
    for (file, path) in engine.files.unsettled() {
        let dir = dir_of(engine, &path);
        match member.standing(file, dir, engine.ops.adopted_under(file)) {
            Standing::Own => own.push((file, dir, path)),
            Standing::New if is_based_on_the_store(engine, file, &path) => {
                own.push((file, dir, path));
            }
            Standing::Taken => {
                engine.ops.hold_taken(file, &former(member.taken_from(file)))?;
                own.push((file, dir, path));
            }
            Standing::Adopted => member.has_adopted(file),
            // An adopted file that is another member's by now may have a newer copy there.
            Standing::New | Standing::Superseded => {
                engine.ops.supersede(file)?;
            }
        }
    }
    Ok(own)
}

fn is_based_on_the_store(engine: &Engine, file: FileKey, path: &Path) -> bool {
    let stored = engine.names.ask(|store| store.stat(path));
    stored.is_ok_and(|attr| engine.files.is_based_on(file, &attr.version()))
}

fn dir_of(engine: &Engine, path: &Path) -> FileKey {
    let dir = path.parent().unwrap_or(Path::new(""));
    match engine.names.ask(|store| store.stat(dir)) {
        Ok(attr) => attr.key,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "the directory of a file with bytes that are not home is not found");
            SOMEWHERE
        }
    }
}
