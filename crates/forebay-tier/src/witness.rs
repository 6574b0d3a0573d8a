//! The reason why unsynced bytes may be believed: the kernel that held them in its memory still
//! holds them.
//!
//! Two events end that: the machine boots anew, or the tier's file system is unmounted (or shut
//! down first, so that its memory never reached the device) and mounted again. A witness detects
//! both; it is recorded when the tier is used, and compared here and nowhere else.

use crate::core::state::Boot;
use crate::media::Media;

/// The state of the machine when the tier was used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Witness {
    /// The machine's boot id; empty if the tier was never used.
    pub boot: String,
    /// [`Media::mount_mark`], where the medium has one.
    pub mount: Option<String>,
}

/// The events since a witness was recorded, as far as they concern the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// The tier was never used before.
    Unused,
    /// The same kernel holds the same file system: every written byte is there.
    Kept,
    /// The same kernel, but the file system was unmounted in between.
    Remounted,
    /// Another kernel runs.
    Rebooted,
}

impl Witness {
    /// The witness of the present state.
    pub fn here(media: &dyn Media) -> Witness {
        Witness { boot: boot_id(), mount: media.mount_mark() }
    }

    /// The events between the recording of `self` and `now`. If one of the two has no mark of the
    /// mount, the boot alone decides.
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
    /// Which bytes may be trusted. Before a clean shutdown everything was synced.
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

    /// Every pair of a recorded witness and a present one.
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
