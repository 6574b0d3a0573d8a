//! Users and groups as this machine knows them (files, LDAP, sssd: all sources of the C library),
//! and the final change of a process to one of these users.

use std::ffi::{CStr, CString};
use std::io;

/// The buffer for the strings of one entry doubles up to this: a group of many members.
const ENTRY_MAX: usize = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    /// The group of the user's own files.
    pub gid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub gid: u32,
    /// The members without users whose own group this is.
    pub members: Vec<String>,
}

impl User {
    pub fn named(name: &str) -> io::Result<Option<User>> {
        let Ok(name) = CString::new(name) else { return Ok(None) };
        // SAFETY: the name ends in NUL; the rest is as `entry` says.
        entry(
            |pw, buf, len, found| unsafe { libc::getpwnam_r(name.as_ptr(), pw, buf, len, found) },
            user,
        )
    }

    pub fn with_id(uid: u32) -> io::Result<Option<User>> {
        // SAFETY: as `entry` says.
        entry(|pw, buf, len, found| unsafe { libc::getpwuid_r(uid, pw, buf, len, found) }, user)
    }

    /// Changes this process for good to this user: user, group and further groups. There is no way
    /// back, since the saved ids change too.
    ///
    /// To be called while the process has one thread.
    pub fn become_for_good(&self) -> io::Result<()> {
        let name = CString::new(self.name.as_str())?;
        // SAFETY: the name ends in NUL.
        succeeded(unsafe { libc::initgroups(name.as_ptr(), self.gid) })?;
        // SAFETY: integers only.
        succeeded(unsafe { libc::setresgid(self.gid, self.gid, self.gid) })?;
        // SAFETY: integers only.
        succeeded(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })?;
        // SAFETY: integers only.
        match unsafe { libc::setuid(0) } {
            0 if self.uid != 0 => Err(io::Error::other("the way back to root is open")),
            _ => Ok(()),
        }
    }
}

impl Group {
    pub fn named(name: &str) -> io::Result<Option<Group>> {
        let Ok(name) = CString::new(name) else { return Ok(None) };
        // SAFETY: the name ends in NUL; the rest is as `entry` says.
        entry(
            |gr, buf, len, found| unsafe { libc::getgrnam_r(name.as_ptr(), gr, buf, len, found) },
            group,
        )
    }

    pub fn with_id(gid: u32) -> io::Result<Option<Group>> {
        // SAFETY: as `entry` says.
        entry(|gr, buf, len, found| unsafe { libc::getgrgid_r(gid, gr, buf, len, found) }, group)
    }

    /// Whether `user` is the only member, as where each user has a group of their own.
    pub fn is_private_to(&self, user: &User) -> bool {
        let own = self.gid == user.gid && self.name == user.name;
        own && self.members.iter().all(|member| *member == user.name)
    }
}

/// A user for messages: the name, if there is one, and the number.
pub fn show(uid: u32) -> String {
    match User::with_id(uid) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

fn succeeded(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls one of the `get..._r` functions with a buffer that is large enough. `ask` passes its four
/// arguments to one of them, which writes within the buffer and keeps no argument.
fn entry<E: Copy, T>(
    mut ask: impl FnMut(*mut E, *mut libc::c_char, usize, *mut *mut E) -> i32,
    read: impl FnOnce(&E) -> T,
) -> io::Result<Option<T>> {
    let mut buf: Vec<libc::c_char> = vec![0; 1024];
    loop {
        let mut space = std::mem::MaybeUninit::<E>::uninit();
        let mut found = std::ptr::null_mut();
        match ask(space.as_mut_ptr(), buf.as_mut_ptr(), buf.len(), &raw mut found) {
            libc::ERANGE if buf.len() < ENTRY_MAX => buf.resize(buf.len() * 2, 0),
            libc::EINTR => {}
            // Some sources report an unknown name like this; see getpwnam(3).
            0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM if found.is_null() => {
                return Ok(None);
            }
            // SAFETY: the call succeeded, so `found` points to `space`, which is filled in.
            0 => return Ok(Some(read(unsafe { &*found }))),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn user(found: &libc::passwd) -> User {
    User { name: text(found.pw_name), uid: found.pw_uid, gid: found.pw_gid }
}

fn group(found: &libc::group) -> Group {
    let mut members = Vec::new();
    let mut at = found.gr_mem;
    // SAFETY: an array of pointers whose last is null, in the buffer of the call.
    while let member = unsafe { *at }
        && !member.is_null()
    {
        members.push(text(member));
        // SAFETY: this pointer was not the last.
        at = unsafe { at.add(1) };
    }
    Group { name: text(found.gr_name), gid: found.gr_gid, members }
}

fn text(at: *const libc::c_char) -> String {
    // SAFETY: a string that ends in NUL, in the buffer of the call.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        let root = User::named("root").unwrap().expect("every machine has one");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(User::with_id(0).unwrap(), Some(root.clone()));
        let group = Group::with_id(0).unwrap().expect("every machine has one");
        assert_eq!(Group::named(&group.name).unwrap(), Some(group));
        assert_eq!(User::named("nobody has this name").unwrap(), None);
        assert_eq!(Group::named("with\0nul").unwrap(), None);
        assert_eq!(
            (show(0), show(4_000_000_123)),
            ("root (uid 0)".into(), "uid 4000000123".into())
        );
    }

    #[test]
    fn a_private_group_has_its_user_alone() {
        let user = User { name: "bob".into(), uid: 1000, gid: 1000 };
        let group = |name: &str, gid, members: &[&str]| Group {
            name: name.into(),
            gid,
            members: members.iter().map(ToString::to_string).collect(),
        };
        assert!(group("bob", 1000, &[]).is_private_to(&user));
        assert!(group("bob", 1000, &["bob"]).is_private_to(&user));
        assert!(!group("bob", 1000, &["bob", "eve"]).is_private_to(&user));
        assert!(!group("staff", 1000, &[]).is_private_to(&user));
        assert!(!group("bob", 1001, &[]).is_private_to(&user));
    }
}
