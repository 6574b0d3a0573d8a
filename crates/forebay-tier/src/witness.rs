//! Why bytes that were never synced may be believed: the kernel that held them in its memory holds
//! them still.
//!
//! Two things end that: the machine starts anew, or the tier's file system is unmounted (or shut
//! down first, so that what was in memory never reached the device) and mounted again. A witness
//! is what tells both; it is recorded when the tier is used, and compared here and nowhere else.

use crate::core::state::Boot;
use crate::media::Media;

/// What was there when somebody used the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Witness {
    /// The machine's boot id; empty if nobody used the tier yet.
    pub boot: String,
    /// [`Media::mount_mark`], where one can be had.
    pub mount: Option<String>,
}

/// What has happened to the memory of the kernel since a witness was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Nobody had used the tier before.
    Unused,
    /// The same kernel holds the same file system: what was written is there.
    Kept,
    /// The same kernel, but the file system was unmounted in between.
    Remounted,
    /// Another kernel.
    Rebooted,
}

impl Witness {
    /// As things are now.
    pub fn here(media: &dyn Media) -> Witness {
        Witness { boot: boot_id(), mount: media.mount_mark() }
    }

    /// What has happened since `self` was recorded, if things are `now` so. Where one of the two
    /// has no mark of the mount, the boot alone decides.
    pub fn since(&self, now: &Witness) -> Since {
        let remounted = || self.mount.as_ref().zip(now.mount.as_ref()).is_some_and(|(a, b)| a != b);
        match self {
            _ if self.boot.is_empty() => Since::Unused,
            _ if self.boot != now.boot => Since::Rebooted,
            _ if remounted() => Since::Remounted,
            _ => Since::Kept,
        }
    }
}

impl Since {
    /// What may be trusted. Before a shutdown that was clean everything was synced.
    pub fn boot(self, clean_shutdown: bool) -> Boot {
        match self {
            Since::Unused | Since::Kept => Boot::Kept,
            Since::Remounted | Since::Rebooted if clean_shutdown => Boot::Kept,
            Since::Remounted | Since::Rebooted => Boot::Lost,
        }
    }
}

/// The machine's boot, which tells a restarted process from a restarted machine. Tests set
/// `FOREBAY_BOOT_ID` to pretend.
fn boot_id() -> String {
    std::env::var("FOREBAY_BOOT_ID").unwrap_or_else(|_| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.unwrap_or_default().trim().to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witness(boot: &str, mount: &str) -> Witness {
        Witness {
            boot: boot.into(),
            mount: Some(mount.into()).filter(|mark: &String| !mark.is_empty()),
        }
    }

    /// Every pair of what was recorded and what is there now.
    // S-2 S-4
    #[test]
    fn memory_is_believed_while_the_same_kernel_has_the_file_system_mounted() {
        for (then, now, since) in [
            (("", ""), ("a", "1"), Since::Unused),
            (("a", "1"), ("a", "1"), Since::Kept),
            (("a", "1"), ("a", "2"), Since::Remounted),
            (("a", ""), ("a", "1"), Since::Kept),
            (("a", "1"), ("a", ""), Since::Kept),
            (("a", "1"), ("b", "1"), Since::Rebooted),
        ] {
            let found = witness(then.0, then.1).since(&witness(now.0, now.1));
            assert_eq!(found, since, "{then:?} {now:?}");
            assert_eq!(found.boot(true), Boot::Kept, "all was synced");
        }
        assert_eq!(Since::Remounted.boot(false), Boot::Lost);
        assert_eq!(Since::Rebooted.boot(false), Boot::Lost);
        assert_eq!(Since::Kept.boot(false), Boot::Kept);
    }
}
