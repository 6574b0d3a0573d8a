//! Root at work on somebody else's tier has no more rights than that somebody: whoever could write
//! to a tier says in it what is to be written where.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_backing::{Error, Kind, Result};
use forebay_base::users::{self, User};
use serde_json::Value;

use crate::ui::note;

/// What a tier holds that no backing store has.
pub struct Dirty {
    pub files: u64,
    pub bytes: u64,
}

/// Becomes the owner of a tier, for good, if this is root and the tier is not root's. Comes before
/// anything of the tier is read, and before the process has a second thread.
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

/// What is dirty in a tier that nobody uses, found with its owner's rights.
pub fn dirty_in(tier: &Path) -> Result<Dirty> {
    if other_owner(tier).is_some() {
        return ask_child(tier);
    }
    let found = forebay_engine::check(tier)?;
    Ok(Dirty { files: found.dirty_files, bytes: found.dirty_bytes })
}

/// If this is root and the tier is not root's.
fn other_owner(tier: &Path) -> Option<u32> {
    // A tier that cannot be looked at is refused by whoever opens it.
    let owner = std::fs::metadata(tier).ok()?.uid();
    (rustix::process::geteuid().is_root() && owner != 0).then_some(owner)
}

/// This process goes on as root: another one gives its rights up.
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
