//! Hands requests to the verbs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::answer::{Carrier, Listing, Reply};
use super::decode::{Call, Head, Locking, Request};
use super::encode::{Extended, Words};
use crate::reply::{Bytes, Fail};
use crate::request::Shared;
use crate::verbs::rename_mode;

/// Has the verbs answer a request.
pub fn serve(shared: &Arc<Shared>, request: &Request<'_>, carrier: impl Carrier) {
    let of = || (shared.clone(), request.head.from.pid);
    let reply = Reply::new(Noting { carrier, of: shared.vfs.has_members().then(of) });
    survive(request, || match request.call() {
        Ok(call) => run(shared, &request.head, call, reply),
        Err(errno) => reply.fail(errno),
    });
}

/// Forgets the nodes that a FORGET or a BATCH_FORGET names. The kernel wants no answer.
pub fn forget(shared: &Shared, request: &Request<'_>) {
    survive(request, || {
        for (node, times) in request.forgotten() {
            shared.vfs.forget(node, times);
        }
    });
}

/// Ends the wait of the request that an INTERRUPT names. That request gets the answer.
pub fn interrupt(shared: &Arc<Shared>, request: &Request<'_>) {
    survive(request, || {
        if let Some(unique) = request.interrupted() {
            shared.interrupt(unique);
        }
    });
}

/// Notes in the vfs which thread is answered ESTALE. A mount without other members needs no such note.
struct Noting<C> {
    carrier: C,
    of: Option<(Arc<Shared>, u32)>,
}

impl<C: Carrier> Carrier for Noting<C> {
    fn room(&mut self, size: usize) -> &mut [u8] {
        self.carrier.room(size)
    }

    fn send(self, result: Result<usize, i32>) {
        if let (Err(libc::ESTALE), Some((shared, thread))) = (result, &self.of) {
            shared.vfs.told(*thread);
        }
        self.carrier.send(result);
    }

    fn send_parts(self, parts: &[&[u8]]) {
        self.carrier.send_parts(parts);
    }

    fn buffer(&mut self, size: usize) -> Vec<u8> {
        self.carrier.buffer(size)
    }
}

/// A bug in a verb costs its request, not the thread.
fn survive(request: &Request<'_>, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!(opcode = request.head.opcode, "a request was answered EIO by a bug");
    }
}

fn run<C: Carrier>(shared: &Arc<Shared>, head: &Head, call: Call<'_>, reply: Reply<C>) {
    let (node, from) = (head.node, head.from);
    match call {
        Call::Lookup(name) => shared.lookup(from, node, name, reply),
        Call::Getattr => shared.getattr(node, reply),
        Call::Statx => shared.getattr(node, Extended(reply)),
        Call::Setattr(set, size) => shared.setattr(from, node, set, size, reply),
        Call::Readlink => shared.readlink(node, reply),
        Call::Open { flags } => shared.open(from, node, flags, reply),
        Call::Read(at, size, reader) => shared.read(from, at, (size, reader), reply),
        Call::Write { at, data, suid, manner } => {
            shared.write(from, node, at, data, (suid, manner), reply);
        }
        Call::Statfs => shared.statfs(reply),
        Call::Release(handle) => shared.release(handle, reply),
        Call::Fsync(handle) => shared.fsync(handle, reply),
        Call::Flush(handle, owner) => shared.flush(handle, owner, reply),
        Call::Lock { handle, of, what } => match what {
            Locking::Test(lock) => shared.test_lock(handle, of, lock, reply),
            Locking::Set(lock, false) => shared.set_lock(handle, of, lock, reply),
            Locking::Set(lock, true) => shared.wait_lock(head.unique, handle, of, lock, reply),
            Locking::Unset(range) => shared.unset_lock(handle, of, range, reply),
        },
        Call::Fallocate { at, len, mode } => {
            shared.fallocate(from, node, at, (len, mode), reply);
        }
        Call::Lseek(at, whence) => shared.lseek(at, whence, reply),
        Call::Setxattr { name, value, flags } => {
            shared.setxattr(from, node, name, value, flags, reply);
        }
        Call::Getxattr { name, room } => shared.getxattr(node, name, room, reply),
        Call::Listxattr { room } => shared.listxattr(node, room, reply),
        Call::Removexattr(name) => shared.removexattr(from, node, name, reply),
        Call::Nothing => reply.done(),
        in_directory => run_in_directory(shared, head, in_directory, reply),
    }
}

/// Runs a call about a directory.
fn run_in_directory<C: Carrier>(
    shared: &Arc<Shared>,
    head: &Head,
    call: Call<'_>,
    reply: Reply<C>,
) {
    let (node, from) = (head.node, head.from);
    match call {
        Call::Symlink { name, target } => {
            shared.symlink(from, (node, name), target.to_os_string(), reply);
        }
        Call::Mknod { name, mode, device } => {
            shared.mknod(from, (node, name), mode, device, reply);
        }
        Call::Mkdir { name, mode } => shared.mkdir(from, (node, name), mode, reply),
        Call::Create { name, mode, flags } => {
            shared.create(from, (node, name), mode, flags, reply);
        }
        Call::Unlink(name) => shared.unlink(node, name, reply),
        Call::Rmdir(name) => shared.rmdir(node, name, reply),
        Call::Rename { name, to, flags } => {
            shared.rename((node, name), to, rename_mode(flags), reply);
        }
        Call::Link { node: linked, name } => shared.link(linked, (node, name), reply),
        Call::Opendir => match shared.vfs.opendir(node) {
            Ok(handle) => reply.bytes(Words::new().u64(handle).u64(0).bytes()),
            Err(error) => reply.fail(error.errno()),
        },
        Call::Readdir(at, size) => {
            shared.readdir(at.handle, at.offset, Listing::new(reply, size));
        }
        Call::Readdirplus(at, size) => {
            shared.readdirplus(at.handle, at.offset, Listing::new(reply, size));
        }
        Call::Releasedir(handle) => {
            shared.vfs.release(handle);
            reply.done();
        }
        Call::Fsyncdir(handle) => shared.fsyncdir(handle, reply),
        _ => reply.fail(libc::ENOSYS),
    }
}
