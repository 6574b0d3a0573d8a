//! The transport over /dev/fuse: threads that each read requests from a descriptor of their own, and
//! write the answers there. Also where every session begins, whatever carries its requests: the
//! handshake, and what never comes over io_uring (FORGET, INTERRUPT).

mod device;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use self::device::Device;
use crate::codec::{self, Agreed, BATCH_FORGET, Carrier, FORGET, Granted, Request, Wishes, agree};
use crate::request::Shared;
use crate::verbs::{MAX_WRITE, give_back, take_spare};

/// The longest request: a write, with what stands before its bytes. The kernel reads no request to
/// a buffer that would not do for that.
const MESSAGE_MAX: usize = MAX_WRITE as usize + (4 << 10);

/// A session that was agreed upon, and its descriptors.
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

    /// Returns when the kernel has ended the session, by whomever it was unmounted.
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
                device.answer(request.head.unique, Ok(words.bytes()))?;
                return Ok(granted);
            }
            Agreed::Again(words) => device.answer(request.head.unique, Ok(words.bytes()))?,
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

/// The life of a session's thread.
fn serve(shared: &Arc<Shared>, device: &Arc<Device>) -> io::Result<()> {
    let mut message = vec![0; MESSAGE_MAX];
    while let Some(len) = device.read(&mut message)? {
        let request = parse(&message[..len])?;
        match request.head.opcode {
            FORGET | BATCH_FORGET => codec::forget(shared, &request),
            _ => codec::serve(shared, &request, OnDevice::new(device, &request)),
        }
    }
    Ok(())
}

/// The way of one answer: the descriptor that the request came from, which alone knows it.
struct OnDevice {
    device: Arc<Device>,
    unique: u64,
    room: Vec<u8>,
}

impl OnDevice {
    fn new(device: &Arc<Device>, request: &Request<'_>) -> OnDevice {
        OnDevice { device: device.clone(), unique: request.head.unique, room: Vec::new() }
    }

    fn answer(&self, result: Result<&[u8], i32>) {
        match self.device.answer(self.unique, result) {
            Ok(()) => {}
            // Whoever asked is gone, or the mount is.
            Err(e) if [Some(libc::ENOENT), Some(libc::ENODEV)].contains(&e.raw_os_error()) => {}
            Err(e) => tracing::warn!(error = %e, "the kernel refused an answer"),
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
        self.answer(result.map(|len| &self.room[..len]));
        if !self.room.is_empty() {
            give_back(self.room);
        }
    }

    fn send_bytes(self, bytes: &[u8]) {
        self.answer(Ok(bytes));
    }

    fn buffer(&mut self, size: usize) -> Vec<u8> {
        match self.room.len() < size {
            true => take_spare(size),
            false => std::mem::take(&mut self.room),
        }
    }
}
