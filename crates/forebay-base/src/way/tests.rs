use std::os::unix::fs::{PermissionsExt, chown, symlink};

use tempfile::TempDir;

use super::*;

const EVE: u32 = 4711;

struct Bed(TempDir);

impl Bed {
    /// `None` where files cannot be given to another user.
    fn new() -> Option<Bed> {
        if rustix::process::geteuid().is_root() {
            return Some(Bed(TempDir::new().unwrap()));
        }
        eprintln!("SKIPPED: only root can give files away");
        None
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn dir(&self, name: &str, mode: u32, uid: u32) {
        std::fs::create_dir(self.at(name)).unwrap();
        std::fs::set_permissions(self.at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        chown(self.at(name), Some(uid), Some(uid)).unwrap();
    }

    fn link(&self, name: &str, to: &str, uid: u32) {
        symlink(to, self.at(name)).unwrap();
        std::os::unix::fs::lchown(self.at(name), Some(uid), None).unwrap();
    }

    fn walk(&self, name: &str, demand: Demand) -> Result<End> {
        walk(&self.at(name), demand)
    }

    fn refusal(&self, name: &str) -> String {
        match self.walk(name, Demand::Fixed) {
            Ok(_) => panic!("{name} was let pass"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Usage, "{name}: {error}");
                error.to_string()
            }
        }
    }
}

/// W1, W2.
#[test]
fn a_place_that_others_could_exchange_is_refused_and_one_that_they_cannot_passes() {
    let Some(bed) = Bed::new() else { return };
    bed.dir("ours", 0o755, 0);
    bed.dir("sticky", 0o1777, 0);
    bed.dir("sticky/ours", 0o700, 0);
    bed.dir("sticky/hers", 0o777, EVE);
    bed.dir("open", 0o777, 0);
    bed.dir("open/ours", 0o700, 0);
    bed.dir("hers", 0o755, EVE);
    bed.dir("hers/ours", 0o700, 0);
    bed.dir("group", 0o775, 0);
    chown(bed.at("group"), None, Some(EVE)).unwrap();
    bed.dir("private", 0o775, 0);
    for name in
        ["ours", "ours/new", "sticky/ours", "sticky/new", "private/new", "sticky/ours/../ours"]
    {
        let end = bed.walk(name, Demand::Fixed).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(end.found.is_none(), name.ends_with("new"), "{name}");
    }
    for name in ["open/ours", "open/new", "group/new"] {
        assert!(bed.refusal(name).contains("others may write to"), "{name}");
    }
    for name in ["hers/ours", "hers/new"] {
        assert!(bed.refusal(name).contains("uid 4711 owns"), "{name}");
    }
    assert!(bed.refusal("sticky/hers").contains("has put it there"));
    assert!(bed.refusal("sticky/hers/new").contains("has put it there"));
}

#[test]
fn a_link_is_followed_if_its_maker_may_be_trusted() {
    let Some(bed) = Bed::new() else { return };
    bed.dir("ours", 0o755, 0);
    bed.dir("sticky", 0o1777, 0);
    bed.link("link", "ours", 0);
    bed.link("chain", "sticky/link", 0);
    bed.link("sticky/link", "../ours/x/..", 0);
    bed.link("sticky/hers", "../ours", EVE);
    bed.link("loop", "loop", 0);
    bed.dir("ours/x", 0o755, 0);
    let real = bed.at("ours").canonicalize().unwrap();
    for demand in [Demand::Fixed, Demand::OwnLinks] {
        assert_eq!(bed.walk("link", demand).unwrap().path, real);
        assert_eq!(bed.walk("chain/new", demand).unwrap().path, real.join("new"));
        assert_eq!(bed.walk("sticky/hers/new", demand).err().unwrap().kind(), Kind::Usage);
        assert!(bed.walk("loop", demand).err().unwrap().is(libc::ELOOP));
        assert!(bed.walk("none/new", demand).err().unwrap().is(libc::ENOENT));
    }
    assert!(bed.walk("sticky/x", Demand::OwnLinks).unwrap().found.is_none());
}

/// An access list shows in the group's bits, and then grants access to more than the private group.
#[test]
fn an_access_list_makes_a_private_group_public() {
    let Some(bed) = Bed::new() else { return };
    bed.dir("listed", 0o775, 0);
    // Version 2: owner rwx, user 4711 rwx, group rwx, mask rwx, other r-x.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 7, EVE),
        (4, 7, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(bits.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    if let Err(e) = fs::setxattr(bed.at("listed"), name, &list, fs::XattrFlags::empty()) {
        eprintln!("SKIPPED: no access lists here: {e}");
        return;
    }
    assert!(bed.refusal("listed/new").contains("others may write to"));
}
