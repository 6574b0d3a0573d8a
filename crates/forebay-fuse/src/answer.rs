//! Answers that take more than one line.

use forebay_backing::DirEntry;
use fuser::{
    FileHandle, Generation, INodeNo, ReplyCreate, ReplyDirectoryPlus, ReplyOpen, ReplyXattr,
};

use crate::encode::{file_attr, fopen_flags};
use crate::nodes::generation;
use crate::reply::Fail;
use crate::request::Shared;
use crate::vfs::{Entry, How, Opened};

pub fn answer_open(_: &Shared, reply: ReplyOpen, opened: Opened) {
    let handle = FileHandle(opened.handle);
    match opened.how {
        How::Passthrough(id) => {
            // SAFETY: the id belongs to this session and stays registered while the handle that
            // was just made exists; `into_raw` keeps the wrapper from closing it.
            let wrapped = unsafe { reply.wrap_backing(id) };
            reply.opened_passthrough(handle, fopen_flags(&opened), &wrapped);
            let _ = wrapped.into_raw();
        }
        How::Cached { .. } | How::Direct => reply.opened(handle, fopen_flags(&opened)),
    }
}

pub fn answer_create(shared: &Shared, reply: ReplyCreate, (entry, opened): (Entry, Opened)) {
    let attr = file_attr(&entry.attr, entry.id);
    let generation = Generation(generation(entry.attr.key));
    let handle = FileHandle(opened.handle);
    match opened.how {
        How::Passthrough(id) => {
            // SAFETY: as in `answer_open`.
            let wrapped = unsafe { reply.wrap_backing(id) };
            reply.created_passthrough(
                &shared.entry_ttl,
                &attr,
                generation,
                handle,
                fopen_flags(&opened),
                &wrapped,
            );
            let _ = wrapped.into_raw();
        }
        How::Cached { .. } | How::Direct => {
            let flags = fopen_flags(&opened);
            reply.created(&shared.entry_ttl, &attr, generation, handle, flags);
        }
    }
}

pub fn fill_plus(
    shared: &Shared,
    mut reply: ReplyDirectoryPlus,
    dir: u64,
    entries: &[DirEntry],
    offset: u64,
) {
    for (at, entry) in entries.iter().enumerate().skip(offset as usize) {
        let dots = entry.name == "." || entry.name == "..";
        let found = match dots {
            true => shared.vfs.getattr(dir).map(|attr| Entry { id: dir, attr }),
            false => shared.vfs.lookup(dir, &entry.name),
        };
        let Ok(found) = found else { continue }; // Gone since the directory was read.
        let full = reply.add(
            INodeNo(found.id),
            at as u64 + 1,
            &entry.name,
            &shared.entry_ttl,
            &file_attr(&found.attr, found.id),
            Generation(generation(found.attr.key)),
        );
        if full && !dots {
            shared.vfs.forget(found.id, 1);
        }
        if full {
            break;
        }
    }
    reply.ok();
}

pub fn answer_xattr(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        room if room < value.len() => reply.fail(libc::ERANGE),
        _ => reply.data(value),
    }
}
