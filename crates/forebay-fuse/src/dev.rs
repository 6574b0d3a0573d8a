//! The transport over /dev/fuse: threads that each read requests from a descriptor of their own, and
//! write the answers there. A session over io_uring begins here, too: with the handshake, and with the
//! requests that never come over io_uring (FORGET, INTERRUPT).

mod device;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use self::device::Device;
use crate::codec::{self, Agreed, BATCH_FORGET, Carrier, FORGET, Granted, INTERRUPT, Request};
use crate::codec::{Wishes, agree};
use crate::request::Shared;
use crate::spare::{give_back, take_spare};
use crate::verbs::MAX_WRITE;

/// The longest request: a write, with its headers. The kernel refuses to read a request into a buffer
/// that is shorter than that.
const MESSAGE_MAX: usize = MAX_WRITE as usize + (4 << 10);

/// A session after its handshake, and its descriptors.
pub struct Session {
    devices: Vec<Arc<Device>>,
}

impl Session {
    /// Shakes hands with the kernel, over the descriptor that was mounted.
    pub fn begin(fd: OwnedFd, wishes: Wishes, threads: usize) -> io::Result<(Session, Granted)> {
        let device = Device::new(fd);
        let granted = shake_hands(&device, wishes)?;
        let others = (1..threads).map(|_| device.another().map(Arc::new));
        let mut devices = others.collect::<io::Result<Vec<_>>>()?;
        devices.push(Arc::new(device));
        Ok((Session { devices }, granted))
    }

    /// The descriptor that was mounted.
    pub fn device(&self) -> &Arc<Device> {
        self.devices.last().expect("a session has a descriptor")
    }

    /// Serves until the kernel has ended the session, whichever way the mount was unmounted.
    pub fn run(mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let own = self.devices.pop().expect("a session has a descriptor");
        let others = self.devices.into_iter().map(|device| start(shared.clone(), device));
        let others = others.collect::<io::Result<Vec<_>>>()?;
        let ended = serve(shared, &own);
        let bug = |_| Err(io::Error::other("a thread of the session ended by a bug"));
        let ends = others.into_iter().map(|other| other.join().unwrap_or_else(bug));
        ends.fold(ended, Result::and)
    }
}

fn shake_hands(device: &Device, wishes: Wishes) -> io::Result<Granted> {
    let mut message = vec![0; MESSAGE_MAX];
    loop {
        let len = device.read(&mut message)?.ok_or(io::ErrorKind::NotConnected)?;
        let request = parse(&message[..len])?;
        match agree(&request, wishes) {
            Agreed::Session(granted, words) => {
                device.answer(request.head.unique, Ok(&[words.bytes()]))?;
                return Ok(granted);
            }
            Agreed::Again(words) => device.answer(request.head.unique, Ok(&[words.bytes()]))?,
            Agreed::Refused(why) => {
                let _ = device.answer(request.head.unique, Err(libc::EPROTO));
                return Err(io::Error::other(why));
            }
        }
    }
}

fn parse(message: &[u8]) -> io::Result<Request<'_>> {
    Request::of_message(message)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a request without a header"))
}

fn start(shared: Arc<Shared>, device: Arc<Device>) -> io::Result<JoinHandle<io::Result<()>>> {
    let thread = std::thread::Builder::new().name("fb-session".into());
    thread.spawn(move || serve(&shared, &device))
}

/// Serves requests on a session thread until the session ends.
fn serve(shared: &Arc<Shared>, device: &Arc<Device>) -> io::Result<()> {
    let mut message = vec![0; MESSAGE_MAX];
    while let Some(len) = device.read(&mut message)? {
        let request = parse(&message[..len])?;
        match request.head.opcode {
            FORGET | BATCH_FORGET => codec::forget(shared, &request),
            // Without locks no request waits long: the answer ENOSYS stops further INTERRUPTs.
            INTERRUPT if shared.vfs.grants_locks() => codec::interrupt(shared, &request),
            _ => codec::serve(shared, &request, OnDevice::new(device, &request)),
        }
    }
    Ok(())
}

/// The carrier of one answer: the descriptor that the request came from, which alone takes it.
struct OnDevice {
    device: Arc<Device>,
    unique: u64,
    room: Vec<u8>,
}

impl OnDevice {
    fn new(device: &Arc<Device>, request: &Request<'_>) -> OnDevice {
        OnDevice { device: device.clone(), unique: request.head.unique, room: Vec::new() }
    }

    fn answer(&self, result: Result<&[&[u8]], i32>) {
        match self.device.answer(self.unique, result) {
            Ok(()) => {}
            // The caller is gone, or the mount is.
            Err(e) if [Some(libc::ENOENT), Some(libc::ENODEV)].contains(&e.raw_os_error()) => {}
            Err(e) => tracing::warn!(error = %e, "the kernel refused an answer"),
        }
    }

    /// Gives the room back: to find memory for the next one anew would cost more than to copy its bytes.
    fn end(self) {
        if !self.room.is_empty() {
            give_back(self.room);
        }
    }
}

impl Carrier for OnDevice {
    fn room(&mut self, size: usize) -> &mut [u8] {
        if self.room.len() < size {
            self.room = take_spare(size);
        }
        &mut self.room
    }

    fn send(self, result: Result<usize, i32>) {
        match result {
            Ok(len) => self.answer(Ok(&[&self.room[..len]])),
            Err(errno) => self.answer(Err(errno)),
        }
        self.end();
    }

    fn send_parts(self, parts: &[&[u8]]) {
        self.answer(Ok(parts));
        self.end();
    }

    fn buffer(&mut self, size: usize) -> Vec<u8> {
        match self.room.len() < size {
            true => take_spare(size),
            false => std::mem::take(&mut self.room),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use rustix::net::{recv, send, socketpair};

    use super::*;

    const WISHES: Wishes = Wishes {
        passthrough: true,
        kernel_writeback: false,
        io_uring: false,
        locks: false,
        links: true,
        maps: true,
    };

    /// A device with the test in place of the kernel: a socket carries whole messages both ways.
    fn device() -> (OwnedFd, Device) {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (kernel, ours) = socketpair(kind.0, kind.1, kind.2, None).unwrap();
        (kernel, Device::new(ours))
    }

    /// The INIT message of a kernel that has every feature.
    fn hello(major: u32) -> Vec<u8> {
        let numbers = [104, 26, 9, 0, 0, 0, 0, 0, 0, 0, major, 44, 1 << 17, u32::MAX, u32::MAX];
        let mut message: Vec<u8> = numbers.into_iter().flat_map(u32::to_ne_bytes).collect();
        message.resize(104, 0);
        message
    }

    /// The answer: its length, its error, and the number of its request.
    fn answer(kernel: &OwnedFd) -> (usize, i32, u64) {
        let mut bytes = [0; 256];
        let (len, _) = recv(kernel, &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!(bytes[..4], (len as u32).to_ne_bytes());
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        (len, error, u64::from_ne_bytes(bytes[8..16].try_into().unwrap()))
    }

    #[test]
    fn a_newer_kernel_is_asked_to_speak_as_we_do() {
        let (kernel, device) = device();
        for major in [8, 7] {
            send(&kernel, &hello(major), SendFlags::empty()).unwrap();
        }
        let granted = shake_hands(&device, WISHES).unwrap();
        assert_eq!(granted, Granted { passthrough: true, io_uring: false });
        assert_eq!((answer(&kernel), answer(&kernel)), ((80, 0, 9), (80, 0, 9)));
    }

    #[test]
    fn a_beginning_that_is_none_is_refused() {
        let getattr = [vec![56, 0, 0, 0, 3, 0, 0, 0], hello(7)[8..56].to_vec()].concat();
        for beginning in [hello(6), getattr, hello(7)[..50].to_vec()] {
            let (kernel, device) = device();
            send(&kernel, &beginning, SendFlags::empty()).unwrap();
            assert!(shake_hands(&device, WISHES).is_err());
            assert_eq!(answer(&kernel), (16, -libc::EPROTO, 9));
        }
        let (kernel, device) = device();
        send(&kernel, b"short", SendFlags::empty()).unwrap();
        assert_eq!(shake_hands(&device, WISHES).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
