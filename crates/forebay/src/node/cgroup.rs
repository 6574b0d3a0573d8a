//! The control group of transfers: where programs of a job want the processors, too, transfers get their
//! share and no more.
//!
//! Without the group transfers only have a low priority (nice). A group that cannot be made stops no transfer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_node::NodeConfig;

/// The daemon's own group, as its unit names it (`DelegateSubgroup=`), and that of transfers beside it.
const DAEMON: &str = "daemon";
const TRANSFERS: &str = "transfers";

const MOUNTED: &str = "/sys/fs/cgroup";

/// The attributes by which systemd marks a group that it has delegated.
const DELEGATED: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// v1 counts shares of 1024 where v2 has weights of 100.
const SHARES: u64 = 1024;
const WEIGHTS: u64 = 100;

/// The group of transfers. Dropping it removes the group, if the daemon has made it. While a transfer that
/// outlives the daemon is in it, it stays.
pub struct Group {
    pub at: PathBuf,
    was_there: bool,
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.was_there {
            let _ = fs::remove_dir(&self.at);
        }
    }
}

/// Makes the group, if there is to be one.
pub fn of_transfers(config: &NodeConfig) -> Option<Group> {
    let own = || fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| delegated(&text));
    let at = config.transfer_cgroup.clone().or_else(own)?;
    let group = Group { was_there: at.exists(), at };
    match made(&group.at, u64::from(config.transfer_weight)) {
        Ok(()) => Some(group),
        Err(error) => {
            let at = group.at.display();
            tracing::warn!("transfers have no cgroup, and are only nice: {at}: {error}");
            None
        }
    }
}

/// The group beside the daemon's own, if the daemon's unit may make groups. Not below a unit whose processes
/// are in the unit's own group: while a transfer runs, systemd could not start a new daemon there.
fn delegated(own: &str) -> Option<PathBuf> {
    let unit = beside(own)?;
    let given = |name: &&str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(&unit, *name, &mut value).is_ok_and(|len| value[..len] == *b"1")
    };
    DELEGATED.iter().any(given).then(|| unit.join(TRANSFERS))
}

fn beside(own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let unit = path.strip_suffix(DAEMON)?.strip_suffix('/')?;
    Some(Path::new(MOUNTED).join(unit))
}

fn made(group: &Path, weight: u64) -> io::Result<()> {
    let parent = group.parent().unwrap_or(Path::new("/"));
    let v2 = parent.join("cgroup.subtree_control");
    if v2.exists() && !fs::read_to_string(&v2)?.split_whitespace().any(|name| name == "cpu") {
        fs::write(&v2, "+cpu").map_err(|error| explained(error, parent))?;
    }
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let (shares, weights) = (group.join("cpu.shares"), group.join("cpu.weight"));
    match (weights.exists(), shares.exists()) {
        (true, _) => fs::write(weights, weight.to_string()),
        (false, true) => fs::write(shares, (weight * SHARES / WEIGHTS).max(2).to_string()),
        (false, false) => Err(io::Error::other("it has no share of processors to give")),
    }
}

/// Adds to an error of cgroup v2 what it means.
fn explained(error: io::Error, parent: &Path) -> io::Error {
    let at = parent.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) => io::Error::other(format!(
            "{at} has no share of processors to give: write +cpu to cgroup.subtree_control above it"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_in_a_group_of_its_own_has_one_beside_it() {
        let unit = "system.slice/forebay-node.service";
        let of = |own: &str| beside(&format!("1:cpu:/x\n0::/{own}\n"));
        assert_eq!(of(&format!("{unit}/daemon")), Some(Path::new(MOUNTED).join(unit)));
        assert_eq!(
            (of(unit), of("user.slice/mydaemon"), beside("4:cpu:/a/daemon\n")),
            (None, None, None)
        );
    }

    /// A directory that is no cgroup is refused with the reason.
    #[test]
    fn what_has_no_shares_is_no_group() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("t");
        assert!(made(&group, 20).unwrap_err().to_string().contains("share of processors"));
        for (name, expected) in [("cpu.shares", "204"), ("cpu.weight", "20")] {
            fs::write(group.join(name), "0").unwrap();
            made(&group, 20).unwrap();
            assert_eq!(fs::read_to_string(group.join(name)).unwrap(), expected);
        }
    }
}
