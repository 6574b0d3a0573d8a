//! The identity of a worker: user, group and further groups, looked up before the worker starts.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::users::User;
use forebay_base::{Error, Result};

use crate::spec::usage;

/// The kernel's limit for the groups of a process.
const GROUPS_MAX: usize = 65536;

/// The buffer that `getspnam_r` needs for the longest entry.
const SHADOW_MAX: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Identity {
    /// The identity of an account of this machine, with all its groups.
    ///
    /// # Errors
    ///
    /// If there is no such account, or it has expired by the shadow file. PAM and directory servers are not
    /// asked for further reasons.
    pub fn of_account(uid: u32) -> Result<Identity> {
        let found = User::with_id(uid).map_err(|e| Error::io(e, format!("uid {uid}")))?;
        let user = found.ok_or_else(|| {
            usage(format!(
                "uid {uid} has no account on this node: add it, or ask its directory server"
            ))
        })?;
        refuse_expired(&user)?;
        Ok(Identity { uid, gid: user.gid, groups: groups_of(&user)? })
    }

    /// A given identity, where accounts are known elsewhere.
    pub fn numeric(uid: u32, gid: u32, groups: Vec<u32>) -> Identity {
        Identity { uid, gid, groups }
    }

    /// The identity of this process.
    pub fn own() -> Identity {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }
}

fn groups_of(user: &User) -> Result<Vec<u32>> {
    let name = CString::new(user.name.as_str()).map_err(|e| usage(e.to_string()))?;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        let gid = user.gid;
        // SAFETY: the name ends in NUL, and `count` is the room there is.
        let found =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let count = count.max(0) as usize;
        if found >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if count <= groups.len() || count > GROUPS_MAX {
            return Err(usage(format!("{} is in more groups than a process may be", user.name)));
        }
        groups.resize(count, 0);
    }
}

/// Refuses an expired account. Only root can read the shadow file; an account without an entry does not expire.
fn refuse_expired(user: &User) -> Result<()> {
    let days = match expiry_days(&user.name) {
        Some(days) if days >= 0 => days.cast_unsigned(),
        _ => return Ok(()),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match days <= now.as_secs() / 86_400 {
        true => Err(usage(format!(
            "the account {} (uid {}) has expired: extend it (chage -E) to stage its data",
            user.name, user.uid
        ))),
        false => Ok(()),
    }
}

fn expiry_days(name: &str) -> Option<i64> {
    let name = CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::spwd>::uninit();
    let mut buf: Vec<libc::c_char> = vec![0; SHADOW_MAX];
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends in NUL, the buffer is as long as is said, and outlives what is read.
    unsafe {
        let (to, room) = (entry.as_mut_ptr(), buf.len());
        libc::getspnam_r(name.as_ptr(), to, buf.as_mut_ptr(), room, &raw mut found);
        found.as_ref().map(|entry| entry.sp_expire)
    }
}
