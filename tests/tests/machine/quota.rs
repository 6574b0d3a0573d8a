//! A file system's project quotas, read as `quota` reads them, not as forebay does.

use std::ffi::CString;
use std::io;
use std::path::Path;

/// linux/quota.h
const PROJECTS: u32 = 2;
const GET: u32 = 0x80_0007;
const GET_NEXT: u32 = 0x80_0009;
const BLOCK: u64 = 1024;

/// `struct if_nextdqblk`
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Next {
    blocks_hard: u64,
    blocks_soft: u64,
    space: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    inodes: u64,
    times: [u64; 2],
    valid: u32,
    id: u32,
}

/// One project: its limits, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project {
    pub id: u32,
    pub bytes_max: u64,
    pub inodes_max: u64,
    pub bytes: u64,
    pub inodes: u64,
}

/// All projects but 0 that have a limit or anything in them.
pub fn projects(device: &Path) -> Vec<Project> {
    let mut found = Vec::new();
    let mut from = 1;
    while let Ok(next) = ask(device, GET_NEXT, from) {
        let project = Project {
            id: next.id,
            bytes_max: next.blocks_hard * BLOCK,
            inodes_max: next.inodes_hard,
            bytes: next.space,
            inodes: next.inodes,
        };
        if project != (Project { id: next.id, bytes_max: 0, inodes_max: 0, bytes: 0, inodes: 0 }) {
            found.push(project);
        }
        from = next.id + 1;
    }
    found
}

/// Whether project quotas are on.
pub fn is_on(device: &Path) -> bool {
    ask(device, GET, 0).is_ok()
}

fn ask(device: &Path, request: u32, id: u32) -> io::Result<Next> {
    let path = CString::new(device.as_os_str().as_encoded_bytes()).expect("no NUL");
    let mut next = Next::default();
    let request = ((request << 8) | PROJECTS).cast_signed();
    // SAFETY: a path that ends in NUL, and the larger of the structures of both requests.
    let done =
        unsafe { libc::quotactl(request, path.as_ptr(), id.cast_signed(), (&raw mut next).cast()) };
    if done == 0 { Ok(next) } else { Err(io::Error::last_os_error()) }
}
