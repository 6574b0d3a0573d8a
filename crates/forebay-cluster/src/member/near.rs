//! Reading the store once for all members: each part of a file is read by one member, and the others get it
//! from that member.

use std::path::Path;
use std::time::Duration;

use forebay_backing::Version;

use super::Member;
use crate::words::{Answer, Question};

/// The length of a part, which one member reads in one go.
const PART: u64 = 4 << 20;

/// A member that has not answered by then is not waited for: the store has the bytes, too.
const PATIENCE: Duration = Duration::from_secs(2);

impl Member {
    /// Fills `buf` with bytes of an unclaimed file as the store had it in this version, from the member that
    /// reads this part for all. `false` if that is this member, or the other does not answer.
    pub fn read_near(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool {
        if !self.shares_reads {
            return false;
        }
        let reader = self.core.lock().reader_of(version.key, offset / PART);
        let Some(reader) = reader.filter(|reader| !self.others.is_resting(reader)) else {
            return false;
        };
        let question =
            Question::Fetch { version: *version, path: path.into(), offset, len: buf.len() as u32 };
        let mut out = Vec::with_capacity(buf.len());
        match self.ask_within(&reader, &question, [b"", b""], &mut out, PATIENCE) {
            Ok(Answer::Bytes) if out.len() == buf.len() => {
                buf.copy_from_slice(&out);
                true
            }
            // The member knows another version, or has no room: no reason to stop asking it.
            Ok(_) => false,
            Err(error) => {
                if !error.is(libc::ESTALE) {
                    self.others.let_rest(&reader);
                }
                false
            }
        }
    }
}
