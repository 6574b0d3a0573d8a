//! Copies on their way to this member's partners.

use std::sync::Arc;

use forebay_backing::FileKey;
use forebay_base::{Error, Result};

use super::copies::{COPY_PATIENCE, is_kept};
use super::{Member, is_newer, lock};
use crate::core::Keeper as Partner;
use crate::peer::Asked;
use crate::words::Question;

/// A copy that was sent to all partners, with their answers still to come.
pub struct Keeping {
    member: Arc<Member>,
    words: Vec<u8>,
    bytes: Vec<u8>,
    sent: Result<Sent>,
}

struct Sent {
    to: Vec<Addressed>,
    /// The first so many of them count.
    required: usize,
    leaving: Vec<String>,
}

struct Addressed {
    partner: String,
    question: Question,
    asked: Result<Asked>,
    /// Which process of it was asked.
    epoch: u64,
}

impl Member {
    /// Begins to send newer bytes of a file to all partners, and to those that are being filled. A new file's claim is
    /// waited for.
    pub fn keep(self: &Arc<Member>, file: FileKey, words: Vec<u8>, bytes: Vec<u8>) -> Keeping {
        let sent = self.send_to_partners(file, [&words, &bytes]);
        Keeping { member: self.clone(), words, bytes, sent }
    }

    /// Whether a file's claim is known, so that copies of it can be sent.
    pub fn is_claimed(&self, file: FileKey) -> bool {
        lock(&self.core).claim_number(file).is_some()
    }

    fn send_to_partners(&self, file: FileKey, parts: [&[u8]; 2]) -> Result<Sent> {
        let number = self.claim_number(file)?;
        let keepers = lock(&self.core).keepers();
        let words = parts[0].len() as u32;
        let send = |partner: Partner| {
            let question = Question::Copy { file, number, fill: partner.fill, words };
            self.send_to(partner.member, question, parts)
        };
        let required = keepers.required.len();
        let to = keepers.required.into_iter().chain(keepers.filling).map(send).collect();
        Ok(Sent { to, required, leaving: keepers.leaving })
    }

    fn send_to(&self, partner: String, question: Question, parts: [&[u8]; 2]) -> Addressed {
        let (mut epoch, head) = (0, self.head_for(&partner));
        let asked = head.and_then(|(head, address)| {
            epoch = head.to_epoch;
            self.peers.begin(&address, &head, &question, parts, COPY_PATIENCE)
        });
        Addressed { partner, question, asked, epoch }
    }

    /// Whether a partner has what it was sent.
    fn has_kept(&self, addressed: Addressed, parts: [&[u8]; 2]) -> bool {
        let Addressed { partner, question, asked, epoch } = addressed;
        let answer = asked.and_then(|asked| self.peers.end(asked, parts, &mut Vec::new()));
        if is_newer(&answer, epoch) {
            return self.send_copy(&partner, &question, &parts.concat()).is_ok();
        }
        is_kept(&partner, self.heard(&partner, &question, answer)).is_ok()
    }
}

impl Keeping {
    /// Returns once all partners have it durably, or are partners no more: how many have it. Also the bytes, for
    /// their memory.
    ///
    /// # Errors
    ///
    /// EIO if this member's place was taken, or too few have it and that is not enough; ETIMEDOUT if a
    /// partner fails and the registry does not answer. Then nobody may be told that the bytes are safe.
    pub fn end(self) -> (Vec<u8>, Result<u8>) {
        let Keeping { member, words, bytes, sent } = self;
        let kept = sent.and_then(|sent| sent.end(&member, [&words, &bytes]));
        (bytes, kept)
    }
}

impl Sent {
    fn end(self, member: &Arc<Member>, parts: [&[u8]; 2]) -> Result<u8> {
        let (mut have, mut gone) = (0, self.leaving);
        for (at, addressed) in self.to.into_iter().enumerate() {
            let partner = addressed.partner.clone();
            match member.has_kept(addressed, parts) {
                true => have += u8::from(at < self.required),
                false => gone.push(partner),
            }
        }
        gone.iter().try_for_each(|partner| member.strike(partner))?;
        match have < member.copies && member.copies_or_fail {
            false => Ok(have),
            true => Err(Error::os(
                libc::EIO,
                format!("{have} of {} copies: too few members keep them", member.copies),
            )),
        }
    }
}
