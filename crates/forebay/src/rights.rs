//! Root gives up its rights for those of a tier's owner before it works on the tier: everyone who can
//! write to a tier decides, by its contents, what is written where.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_backing::{Error, Kind, Result};
use forebay_base::users::{self, User};
use serde_json::Value;

use crate::ui::note;

/// The dirty files and bytes of a tier, which the backing store does not have.
pub struct Dirty {
    pub files: u64,
    pub bytes: u64,
}

/// Makes the process run as the owner of a tier, for good, if it is root and the tier is not root's.
/// Must be called before the tier is read, and before the process has a second thread.
pub fn act_as_owner_of(tier: &Path) -> Result<()> {
    let Some(uid) = other_owner(tier) else { return Ok(()) };
    let usage =
        |why: String| Error::new(Kind::Usage, format!("the tier {}: {why}", tier.display()));
    let found = User::with_id(uid).map_err(|e| Error::io(e, format!("user {uid}")))?;
    let user = found.ok_or_else(|| {
        usage(format!(
            "it belongs to uid {uid}, whom this machine does not know: act as that user, with \
             `setpriv --reuid {uid} --regid GROUP --clear-groups forebay ...`"
        ))
    })?;
    user.become_for_good().map_err(|e| usage(format!("acting as {}", user.name)).with_source(e))?;
    note!("the tier {} belongs to {}: acting as that user", tier.display(), users::show(uid));
    Ok(())
}

/// The dirty files and bytes of a tier that no process uses, read with the rights of its owner.
pub fn dirty_in(tier: &Path) -> Result<Dirty> {
    if other_owner(tier).is_some() {
        return ask_child(tier);
    }
    let found = forebay_engine::check(tier)?;
    Ok(Dirty { files: found.dirty_files, bytes: found.dirty_bytes })
}

/// The owner of the tier, if this process is root and the tier is not root's.
fn other_owner(tier: &Path) -> Option<u32> {
    // An error of metadata is left to the code that opens the tier: it refuses the tier.
    let owner = std::fs::metadata(tier).ok()?.uid();
    (rustix::process::geteuid().is_root() && owner != 0).then_some(owner)
}

/// Asks a child process, which gives up its rights; this process stays root.
fn ask_child(tier: &Path) -> Result<Dirty> {
    let mut check = Command::new("/proc/self/exe");
    check.args(["check", "--json"]).arg(tier).stdin(Stdio::null());
    let said = check.output().map_err(|e| Error::io(e, "forebay check"))?;
    let found: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    match (found["dirty_files"].as_u64(), found["dirty_bytes"].as_u64()) {
        (Some(files), Some(bytes)) => Ok(Dirty { files, bytes }),
        _ => {
            let why = String::from_utf8_lossy(&said.stderr);
            let last = why.lines().last().unwrap_or("it says nothing");
            let why = last.strip_prefix("forebay: ").unwrap_or(last);
            Err(Error::new(Kind::WrongTier, why))
        }
    }
}
