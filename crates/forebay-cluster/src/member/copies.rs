//! Copies of this member's newer bytes at its partners, and what it does with those of others.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_backing::FileKey;
use forebay_base::{Error, Result};

use super::{Member, lock};
use crate::core::{Fitness, Input};
use crate::front::{Front, Keeper, Under};
use crate::words::{Answer, Question};

/// A new file's claim is under way, and its copy is made under it.
const CLAIM_LOOK: Duration = Duration::from_millis(1);

/// So long one copy may be on its way before its partner is struck off. Far beyond what a disk takes: a
/// partner that is struck off has to be filled anew.
const COPY_PATIENCE: Duration = Duration::from_secs(4);

/// So long whoever is cut off from the registry waits before he is told.
const FIT_LOOK: Duration = Duration::from_millis(5);

impl Member {
    /// Whether anybody is to have copies of this member's bytes.
    pub fn wants_copies(&self) -> bool {
        self.copies > 0
    }

    /// Sends newer bytes of a file to all partners; says how many have them durably. Who does not take them
    /// is a partner no more before this returns.
    ///
    /// # Errors
    ///
    /// EIO if this member's place was taken, or too few have them and `copies` are a must; ETIMEDOUT if a
    /// partner fails and the registry does not answer: then nobody is to be told that the bytes are safe.
    pub fn keep(self: &Arc<Member>, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<u8> {
        let number = self.claim_number(file)?;
        // Who becomes a partner from here on is filled with what is durable here by now, this among it.
        let keepers = lock(&self.core).keepers();
        let question = Question::Copy { file, number, words: words.len() as u32 };
        let bytes = [words, bytes].concat();
        let to: Vec<&String> = keepers.required.iter().chain(&keepers.filling).collect();
        let sent: Vec<bool> = std::thread::scope(|scope| {
            let send = |to: &str| self.send_copy(to, &question, &bytes).is_ok();
            // The first is asked by this thread: most often there is no other.
            let others = to.iter().skip(1).map(|&to| scope.spawn(move || send(to)));
            let others: Vec<_> = others.collect();
            let first = to.first().map(|to| send(to));
            let others = others.into_iter().map(|other| other.join().unwrap_or(false));
            first.into_iter().chain(others).collect()
        });
        for (partner, sent) in to.into_iter().zip(&sent) {
            if !sent {
                self.strike(partner)?;
            }
        }
        let have = sent.iter().take(keepers.required.len()).filter(|sent| **sent).count() as u8;
        match have < self.copies && self.copies_or_fail {
            false => Ok(have),
            true => Err(Error::os(
                libc::EIO,
                format!("{have} of {} copies: too few members keep them", self.copies),
            )),
        }
    }

    /// The same to one partner that is being filled.
    ///
    /// # Errors
    ///
    /// What it says, or that it does not answer.
    pub fn fill(
        self: &Arc<Member>,
        partner: &str,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let number = self.claim_number(file)?;
        let question = Question::Copy { file, number, words: words.len() as u32 };
        self.send_copy(partner, &question, &[words, bytes].concat())
    }

    /// Tells a partner something of all copies that it keeps of this member's.
    ///
    /// # Errors
    ///
    /// What it says, or that it does not answer.
    pub fn mark(&self, partner: &str, words: &[u8]) -> Result<()> {
        self.send_copy(partner, &Question::Mark, words)
    }

    fn claim_number(&self, file: FileKey) -> Result<u64> {
        let since = Instant::now();
        loop {
            if let Some(number) = lock(&self.core).claim_number(file) {
                return Ok(number);
            }
            if since.elapsed() >= self.patience {
                let what = format!("{}: its claim is not in the registry", self.name);
                return Err(Error::os(libc::ETIMEDOUT, what));
            }
            sleep(CLAIM_LOOK);
        }
    }

    fn send_copy(&self, partner: &str, question: &Question, bytes: &[u8]) -> Result<()> {
        let asked = self.ask_within(partner, question, bytes, &mut Vec::new(), COPY_PATIENCE);
        match asked {
            Ok(Answer::Done) => Ok(()),
            Ok(other) => Err(Error::os(libc::EPROTO, format!("{partner} answered {other:?}"))),
            Err(error) => {
                tracing::warn!(%error, partner, "a copy was not kept");
                Err(error)
            }
        }
    }

    /// It is a partner no more when this returns.
    fn strike(self: &Arc<Member>, partner: &str) -> Result<()> {
        let ticket = self.ticket();
        let struck = self.struck.enter(ticket);
        self.feed(Input::CopyFailed { ticket, partner: partner.into() });
        match struck.recv_timeout(self.patience + super::MARGIN) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::os(
                libc::EIO,
                format!("{partner} has not the newest bytes, and the registry was not told"),
            )),
            Err(_) => {
                self.struck.leave(ticket);
                Err(Error::os(libc::ETIMEDOUT, "the registry does not answer"))
            }
        }
    }

    /// Waits while this member may not serve: its lease has run out, and a partner may take its place.
    ///
    /// # Errors
    ///
    /// EIO once another has taken it; ETIMEDOUT after the patience.
    pub fn wait_fit(&self) -> Result<()> {
        if !self.is_suspended.load(Relaxed) {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            match lock(&self.core).fitness() {
                Fitness::Fit => return Ok(()),
                Fitness::Superseded => {
                    let what = format!("another took over from member {}: mount again", self.name);
                    return Err(Error::os(libc::EIO, what));
                }
                Fitness::CutOff if since.elapsed() < self.patience => sleep(FIT_LOOK),
                Fitness::CutOff => {
                    let what = format!("the registry {} does not answer", self.registry.address());
                    return Err(Error::os(libc::ETIMEDOUT, what));
                }
            }
        }
    }

    /// The mount that keeps copies of a home, if the home is what it says.
    fn keeper_of(&self, home: &str, epoch: u64) -> Result<Arc<dyn Front>> {
        if !lock(&self.core).accepts_copies_of(home, epoch) {
            let what = format!("{home} of epoch {epoch} was taken over, or began anew");
            return Err(Error::os(libc::ESTALE, what));
        }
        self.front().ok_or_else(|| Error::os(libc::ESTALE, "this member is leaving"))
    }

    /// Asked by a home.
    pub(super) fn mark_for(&self, home: &str, epoch: u64, words: &[u8]) -> Result<()> {
        self.keeper_of(home, epoch)?.mark(home, epoch, words)
    }

    /// Asked by a home: keeps a copy.
    pub(super) fn keep_for(
        &self,
        (home, epoch): (&str, u64),
        (file, number, words): (FileKey, u64, u32),
        bytes: &[u8],
    ) -> Result<()> {
        let front = self.keeper_of(home, epoch)?;
        let words = words as usize;
        let short = || Error::os(libc::EPROTO, format!("{words} bytes of words did not come"));
        let (words, bytes) = bytes.split_at_checked(words).ok_or_else(short)?;
        front.keep(file, Under { home, epoch, number }, words, bytes)
    }

    /// Does something with copies that may wait, in a thread of the mount's.
    pub(super) fn with_copies(
        self: &Arc<Member>,
        work: impl FnOnce(&Arc<Member>, &dyn Keeper) + Send + 'static,
    ) {
        let member = self.clone();
        self.hands[super::MOUNT].run(move || {
            if let Some(front) = member.front() {
                work(&member, &*front);
            }
        });
    }

    /// Its place is another's: once nothing of it is under way to the store, the registry is told so.
    pub(super) fn stop(self: &Arc<Member>) {
        self.with_copies(|member, front| {
            front.suspend(true);
            while !front.is_idle() {
                tracing::warn!("calls to the store are still under way");
                if member.left.load(Relaxed) {
                    return;
                }
            }
            // What they have written may be in the kernel's memory, to be written out at any time.
            while let Err(error) = (member.sync_store)() {
                tracing::warn!(%error, "the store was not made durable");
                if member.left.load(Relaxed) {
                    return;
                }
                sleep(Duration::from_secs(1));
            }
            member.feed(Input::Fenced);
        });
    }
}
