//! The cluster key: a secret in a file, the same for all members.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_base::{Error, Kind, Result};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::limits::KEY_BYTES;

/// The key by which members prove that they belong together. Clones share it.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// Reads the key. A line's end at the end of the file does not count.
    ///
    /// # Errors
    ///
    /// The error of opening the file; [`Kind::Usage`] if it is no plain file, belongs to another user than this
    /// one or root, others may read or write it, or it has less than 32 or more than 4096 bytes.
    pub fn read(path: &Path) -> Result<Key> {
        let shown = path.display();
        let failed = |e| Error::io(e, format!("cluster key {shown}"));
        let wrong = |why: String| Error::new(Kind::Usage, format!("cluster key {shown}: {why}"));
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(wrong("it is no plain file".into()));
        }
        let us = rustix::process::geteuid().as_raw();
        if meta.uid() != us && meta.uid() != 0 {
            let owner = meta.uid();
            return Err(wrong(format!("it belongs to user {owner}: chown {us} {shown}")));
        }
        if meta.mode() & 0o077 != 0 {
            let mode = meta.mode() & 0o777;
            return Err(wrong(format!("its mode {mode:o} lets others in: chmod 600 {shown}")));
        }
        let mut bytes = Vec::new();
        let most = *KEY_BYTES.end() as u64 + 3;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        let end = bytes.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |at| at + 1);
        Key::new(&bytes[..end]).map_err(|e| e.context(format!("cluster key {shown}")))
    }

    /// # Errors
    ///
    /// [`Kind::Usage`] for less than 32 or more than 4096 bytes.
    pub fn new(secret: &[u8]) -> Result<Key> {
        if !KEY_BYTES.contains(&secret.len()) {
            let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
            let why = format!("it has {} bytes; {least} to {most} can be used", secret.len());
            return Err(Error::new(Kind::Usage, why));
        }
        Ok(Key(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Returns the signature of these parts, which only an owner of the key can make.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Whether `said` is the result of [`Key::sign`]. Takes the same time for every wrong value.
    pub fn check(&self, parts: &[&[u8]], said: &[u8]) -> bool {
        hmac::verify(&self.0, &parts.concat(), said).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// # Errors
///
/// EIO if the kernel gives no random bytes.
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::os(libc::EIO, "random bytes of the kernel (getrandom)"))?;
    Ok(bytes)
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    digits.map(char::from).collect()
}

/// Reads `N` bytes in hexadecimal; `None` if the text is anything else.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let mut bytes = [0; N];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
