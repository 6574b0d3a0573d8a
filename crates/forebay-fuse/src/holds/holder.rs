//! The program that makes the requests which hold writers. It has no descriptor but its orders and its reports, and
//! ends with its orders. Requests that are under way then end with the daemon, or with the mount.

use std::ffi::{CString, OsString};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// `FILEID_INO64_GEN` (include/linux/exportfs.h): the upper and the lower half of the node's number, and its
/// generation.
const INO64_GEN: libc::c_int = 0x81;

const STACK: usize = 64 << 10;

/// A request to make.
struct Order {
    number: u64,
    node: u64,
    generation: u32,
    name: String,
}

/// The mount that requests are made in.
struct At {
    path: PathBuf,
    device: String,
}

/// `struct file_handle` with a handle of FUSE.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    words: [u32; 3],
}

/// Runs the program: makes the requests that come by standard input, and reports the end of each.
///
/// # Errors
///
/// If its arguments are not those that the daemon gives.
pub fn main(args: &[OsString]) -> io::Result<()> {
    let [path, device] = args else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: nothing here has a descriptor besides the three standard ones.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let at = At { path: path.into(), device: device.to_string_lossy().into_owned() };
    let at = Arc::new(at);
    for line in io::stdin().lock().lines() {
        let Some(order) = Order::read(&line?) else { continue };
        let (at, number) = (at.clone(), order.number);
        let make = move || report(order.number, at.make(&order));
        if let Err(error) = Builder::new().stack_size(STACK).spawn(make) {
            report(number, Err(error));
        }
    }
    Ok(())
}

/// A report that nobody hears is not needed.
fn report(number: u64, made: io::Result<()>) {
    let errno = made.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
    let _ = writeln!(io::stdout(), "{number} {errno}");
}

impl Order {
    fn read(line: &str) -> Option<Order> {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (number, node, generation) = (number()?, number()?, number()? as u32);
        Some(Order { number, node, generation, name: words.next()?.into() })
    }
}

impl At {
    /// Makes a request; returns when it is answered.
    fn make(&self, order: &Order) -> io::Result<()> {
        let file = self.open(order)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let name = CString::new(order.name.as_str())?;
        // SAFETY: both strings live through the call.
        match unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Opens a file by its node.
    fn open(&self, order: &Order) -> io::Result<OwnedFd> {
        // Open for a moment only: it keeps the mount in use. The kernel takes no O_PATH descriptor here.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let ask_nobody = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&root, "", ask_nobody, StatxFlags::empty())?;
        if format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor) != self.device {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        let words = [(order.node >> 32) as u32, order.node as u32, order.generation];
        let mut handle = Handle { bytes: size_of_val(&words) as u32, kind: INO64_GEN, words };
        let (root, flags) = (root.as_raw_fd(), libc::O_PATH | libc::O_CLOEXEC);
        // SAFETY: the handle has the layout of `struct file_handle`, and lives through the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, root, &raw mut handle, flags) as i32
        };
        match fd {
            // SAFETY: the kernel has just given this descriptor.
            0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
