//! Reads of descriptors that return all the bytes asked for.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

pub fn read_full(fd: &OwnedFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// Appends up to `len` bytes to `out`, without clearing the space first.
pub fn read_behind(fd: &OwnedFd, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
    out.reserve(len);
    let mut done = 0;
    while done < len {
        let at = out.len();
        let room = &mut out.spare_capacity_mut()[..len - done];
        match rustix::io::pread(fd, room, offset + done as u64) {
            Ok(([], _)) => break,
            Ok((got, _)) => {
                let got = got.len();
                // SAFETY: the kernel has written `got` bytes right behind the first `at`.
                unsafe { out.set_len(at + got) };
                done += got;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

pub fn write_full(fd: &OwnedFd, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(fd, &buf[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_put_behind_those_that_are_there() {
        let dir = forebay_backing::suite::TempDir::new();
        let mut how = std::fs::File::options();
        how.read(true).write(true).create_new(true);
        let fd = OwnedFd::from(how.open(dir.path().join("f")).unwrap());
        write_full(&fd, b"0123456789", 0).unwrap();
        let mut out = b"before ".to_vec();
        assert_eq!(read_behind(&fd, &mut out, 3, 2).unwrap(), 3);
        assert_eq!(out, b"before 234");
        assert_eq!(read_behind(&fd, &mut out, 1 << 20, 8).unwrap(), 2, "there it ends");
        assert_eq!(read_behind(&fd, &mut out, 5, 10).unwrap(), 0);
        assert_eq!(out, b"before 23489");
    }
}
