//! Copies of this member's newer bytes at its partners, and copies of others' bytes here.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_backing::FileKey;
use forebay_base::lock::{asks_the_registry, sleep};
use forebay_base::{Error, Result};
use forebay_threads::pool::Pool;

use super::door::soon;
use super::others::LAG_MIN;
use super::{MARGIN, Member};
use crate::core::{Fitness, Input, Keeper as Partner};
use crate::front::{Front, Home, Keeper, Kept, Told};
use crate::peer::limits::BYTES_MAX;
use crate::words::{Answer, Head, Question};

/// How often to look for the claim of a new file, under which its copy is made.
const CLAIM_LOOK: Duration = Duration::from_millis(1);

/// How long one copy may be under way before its partner is struck off: far longer than a disk takes, since a partner
/// that is struck off has to be filled anew.
const COPY_PATIENCE: Duration = Duration::from_secs(4);

/// The bytes per second that a partner takes at least.
const DUE_RATE: u64 = 8 << 20;

/// How often a cut-off member looks whether it may go on.
const FIT_LOOK: Duration = Duration::from_millis(5);

/// The pause before a failed call is repeated.
const PAUSE: Duration = Duration::from_secs(1);

fn home_of(head: &Head, fill: u64) -> Home<'_> {
    Home { name: &head.from, epoch: head.from_epoch, fill }
}

impl Member {
    /// Whether other members are to have copies of this member's bytes.
    pub fn wants_copies(&self) -> bool {
        self.copies > 0
    }

    /// How many other members are to have this member's acknowledged bytes, and how many have them.
    pub fn copies(&self) -> (u8, usize) {
        (self.copies, self.core.lock().keepers().required.len())
    }

    /// Whether copies of a file can be sent at once: its claim is known, and there is a partner.
    pub fn can_copy(&self, file: FileKey) -> bool {
        let core = self.core.lock();
        let keepers = core.keepers();
        let has_any = !keepers.required.is_empty() || !keepers.filling.is_empty();
        has_any && core.claim_number(file).is_some()
    }

    /// Sends newer bytes of a file to all partners, whether they are durable here or not. When this returns, all
    /// partners have them durably: one that does not take them is no longer a partner. Whether that is enough
    /// partners, [`Member::has_enough`] says. `joined` is the result of [`Member::joined`] when the round began to
    /// which the bytes belong: partners that joined later get none of them.
    ///
    /// # Errors
    ///
    /// EIO if this member's place was taken; ETIMEDOUT if a partner fails and the registry does not answer; EFBIG if
    /// it is more than can be sent. Then no program may be told that the bytes are safe.
    pub fn keep(
        self: &Arc<Member>,
        file: FileKey,
        joined: u64,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        self.send_to_all((file, self.claim_number(file)?), joined, words, bytes)
    }

    /// Whether as many partners as are wanted have the bytes kept before: to be called before a program is told that
    /// they are safe. Flushes, take-overs and renames need no more than [`Member::keep`].
    ///
    /// # Errors
    ///
    /// EIO if there are fewer partners, and fewer are not enough.
    pub fn has_enough(&self) -> Result<()> {
        let (wanted, have) = self.copies();
        match self.copies_or_fail && have < usize::from(wanted) {
            false => Ok(()),
            true => Err(Error::os(
                libc::EIO,
                format!("{have} of {wanted} copies: too few members keep them"),
            )),
        }
    }

    /// How many partners have joined so far.
    pub fn joined(&self) -> u64 {
        self.core.lock().joined()
    }

    /// As [`Member::keep`], with words by which partners forget a file. The file's claim may be another member's by now.
    ///
    /// # Errors
    ///
    /// As [`Member::keep`].
    pub fn forget(self: &Arc<Member>, file: FileKey, words: &[u8]) -> Result<()> {
        self.send_to_all((file, 0), u64::MAX, words, &[])
    }

    fn send_to_all(
        self: &Arc<Member>,
        (file, number): (FileKey, u64),
        joined: u64,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let keepers = self.core.lock().keepers_of(joined);
        let (body, len) = ([words, bytes], words.len() + bytes.len());
        if len > BYTES_MAX {
            // No partner is to blame: the message is too long for all.
            let what = format!("{len} bytes about one file: at most {BYTES_MAX} are sent");
            return Err(Error::os(libc::EFBIG, what));
        }
        let words = words.len() as u32;
        let required = keepers.required.len();
        let to: Vec<Partner> = keepers.required.into_iter().chain(keepers.filling).collect();
        let send = |(n, partner): (usize, &Partner)| {
            let beside = n >= required;
            let question = Question::Copy { file, number, fill: partner.fill, beside, words };
            self.send_copy(&partner.member, &question, body).is_ok()
        };
        let sent: Vec<bool> = std::thread::scope(|scope| {
            let send = &send;
            // This thread asks the first partner: most often there is no other.
            let others = to.iter().enumerate().skip(1);
            let others: Vec<_> = others.map(|partner| scope.spawn(move || send(partner))).collect();
            let first = to.first().map(|first| send((0, first)));
            let others = others.into_iter().map(|other| other.join().unwrap_or(false));
            first.into_iter().chain(others).collect()
        });
        let failed = to.iter().zip(&sent).filter(|(_, sent)| !**sent);
        let failed = failed.map(|(partner, _)| partner.member.clone()).chain(keepers.leaving);
        failed.into_iter().try_for_each(|partner| self.strike(&partner))
    }

    /// As [`Member::keep`], to one partner that is being filled.
    ///
    /// # Errors
    ///
    /// The partner's error, or that it does not answer.
    pub fn fill(
        self: &Arc<Member>,
        partner: &str,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let (number, fill) = (self.claim_number(file)?, self.fill_of(partner)?);
        let words_len = words.len() as u32;
        let question = Question::Copy { file, number, fill, beside: false, words: words_len };
        self.send_copy(partner, &question, [words, bytes])
    }

    /// Sends a partner a message about all copies that it keeps of this member's bytes.
    ///
    /// # Errors
    ///
    /// The partner's error, or that it does not answer.
    pub fn mark(self: &Arc<Member>, partner: &str, words: &[u8]) -> Result<()> {
        let fill = self.fill_of(partner)?;
        self.send_copy(partner, &Question::Mark { fill }, [words, b""])?;
        // From here on the partner also gets synced bytes: before, it would have dropped the first pieces of a round.
        self.feed(Input::FillBegun { partner: partner.into(), fill });
        Ok(())
    }

    fn fill_of(&self, partner: &str) -> Result<u64> {
        let fill = self.others.fill_of(partner);
        fill.ok_or_else(|| Error::os(libc::EINTR, format!("{partner} is not filled any more")))
    }

    fn claim_number(self: &Arc<Member>, file: FileKey) -> Result<u64> {
        let since = Instant::now();
        loop {
            if let Some(number) = self.core.lock().claim_number(file) {
                return Ok(number);
            }
            self.feed(Input::Hurry);
            if since.elapsed() >= self.patience {
                let what = format!("{}: the claim of a file is not in the registry", self.name);
                return Err(Error::os(libc::ETIMEDOUT, what));
            }
            sleep(CLAIM_LOOK);
        }
    }

    fn send_copy(&self, partner: &str, question: &Question, bytes: [&[u8]; 2]) -> Result<()> {
        let began = Instant::now();
        let asked = self.ask_within(partner, question, bytes, &mut Vec::new(), COPY_PATIENCE);
        let due =
            Duration::from_secs_f64((bytes[0].len() + bytes[1].len()) as f64 / DUE_RATE as f64);
        self.others.note_copy(partner, began, due);
        match asked {
            Ok(Answer::Done) => Ok(()),
            Ok(other) => Err(Error::os(libc::EPROTO, format!("{partner} answered {other:?}"))),
            Err(error) => {
                tracing::warn!(%error, partner, "a copy was not kept");
                Err(error)
            }
        }
    }

    /// The messages about one file take too long: when this returns, the partner that lags most is no longer a
    /// partner. Partners that keep up stay.
    ///
    /// # Errors
    ///
    /// As [`Member::keep`].
    pub fn leave_slowest(self: &Arc<Member>) -> Result<()> {
        let keepers = self.core.lock().keepers();
        let partners = keepers.required.iter().chain(&keepers.filling);
        let slowest = partners.map(|it| (self.others.lag_of(&it.member), &it.member)).max();
        match slowest.filter(|(lag, _)| *lag >= LAG_MIN) {
            Some((lag, member)) => {
                tracing::warn!(member, ?lag, "a partner is too slow");
                self.strike(member)
            }
            None => Ok(()),
        }
    }

    /// Strikes a partner off: it is no longer a partner when this returns.
    fn strike(self: &Arc<Member>, partner: &str) -> Result<()> {
        let ticket = self.ticket();
        let struck = self.struck.enter(ticket);
        self.feed(Input::CopyFailed { ticket, partner: partner.into() });
        asks_the_registry();
        match struck.recv_timeout(self.patience + MARGIN) {
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

    /// Whether another member may take this home's place if the home is dead.
    pub fn has_heirs(&self, home: &str) -> bool {
        self.core.lock().has_heirs_of(home)
    }

    /// Whether this member may serve at this moment: see [`Member::wait_fit`].
    pub fn is_fit(&self) -> bool {
        (self.copies == 0 && !self.is_suspended.load(Relaxed))
            || self.core.lock().fit(self.now()) == Fitness::Fit
    }

    /// Waits while this member may not serve: its lease has run out, and a partner may take its place. To be called
    /// after a decision and before any program hears of it.
    ///
    /// # Errors
    ///
    /// EIO once another member has taken the place; ETIMEDOUT after the patience.
    pub fn wait_fit(&self) -> Result<()> {
        if self.is_fit() {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            // Not in the `match`, which would hold the core while this sleeps: the core has to hear of a renewed
            // lease.
            let fitness = self.core.lock().fit(self.now());
            match fitness {
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

    /// Fills a partner: it drops its copies of this member's bytes, and gets all that are newer than the store.
    pub(super) fn fill_up(self: &Arc<Member>, partner: String, fill: u64) {
        self.others.begin_fill(&partner, fill);
        self.with_copies(move |member, front| {
            let is_over = || member.others.fill_of(&partner) != Some(fill);
            let begun = member.send_copy(&partner, &Question::BeginFill { fill }, [b"", b""]);
            let filled = begun.and_then(|()| front.fill(&partner, &is_over));
            if let Err(error) = &filled {
                tracing::warn!(%error, partner, "a partner was not filled");
            }
            member.feed(Input::Filled { partner, fill, ok: filled.is_ok() });
        });
    }

    /// Has a former partner drop its copies, which are of no use any more. If it is away it is asked again.
    pub(super) fn leave_partner(self: &Arc<Member>, partner: String, fill: u64) {
        self.others.end_fill(&partner);
        self.with_copies(move |member, _| {
            if member.send_copy(&partner, &Question::BeginFill { fill }, [b"", b""]).is_ok() {
                member.feed(Input::Dismissed { partner, fill });
            }
        });
    }

    /// Runs `work` for a home whose copies are accepted, and reports success only if they still are afterwards: another
    /// member may have taken the home over meanwhile.
    fn for_home(
        &self,
        head: &Head,
        fill: u64,
        work: impl FnOnce(&dyn Front, Home<'_>) -> Result<()>,
    ) -> Result<()> {
        let check = || match self.core.lock().accepts_copies_of(&head.from, head.from_epoch, fill) {
            true => Ok(()),
            false => Err(Error::os(
                libc::ESTALE,
                format!("{} of epoch {} has no copies here", head.from, head.from_epoch),
            )),
        };
        check()?;
        let leaving = || Error::os(libc::ESTALE, "this member is leaving");
        work(&*self.front().ok_or_else(leaving)?, home_of(head, fill))?;
        check()
    }

    pub(super) fn mark_for(&self, head: &Head, fill: u64, words: &[u8]) -> Result<()> {
        self.for_home(head, fill, |front, home| front.mark(home, words))
    }

    pub(super) fn keep_for(
        &self,
        head: &Head,
        (fill, told): (u64, Told),
        (file, number, words): (FileKey, u64, u32),
        bytes: &[u8],
    ) -> Result<()> {
        let words = words as usize;
        let short = || Error::os(libc::EPROTO, format!("{words} bytes of words did not come"));
        let (words, bytes) = bytes.split_at_checked(words).ok_or_else(short)?;
        self.for_home(head, fill, |front, home| front.keep(home, told, number, file, words, bytes))
    }

    pub(super) fn begin_fill_for(&self, head: &Head, fill: u64) -> Result<()> {
        // A member that just begins takes copies in a moment. A refusal would cost the home a patience.
        let begins =
            || self.core.lock().fill_begins(&head.from, head.from_epoch, fill).then_some(());
        match (soon(begins), self.front()) {
            (Some(()), Some(front)) => front.begin_fill(home_of(head, fill)),
            _ => Err(Error::os(libc::ESTALE, "no copies are taken of it now")),
        }
    }

    pub(super) fn list_copies(self: &Arc<Member>, home: String) {
        self.with_copies(move |member, front| {
            let Kept { files, is_whole } = front.copies_of(&home);
            tracing::warn!(home, files = files.len(), is_whole, "taking over from a dead member");
            member.feed(Input::Copies { member: home, files, is_whole });
        });
    }

    pub(super) fn adopt(self: &Arc<Member>, home: String, file: FileKey) {
        self.with_copies(move |member, front| {
            let adopted = front.adopt(&home, file);
            if let Err(error) = &adopted {
                tracing::error!(%error, home, "a copy was not taken over");
            }
            member.feed(Input::Adopted { file, ok: adopted.is_ok() });
        });
    }

    pub(super) fn disown(self: &Arc<Member>, file: FileKey) {
        self.with_copies(move |member, front| {
            while let Err(error) = front.disown(file) {
                tracing::error!(%error, "a file whose home is back was not dropped yet");
                if member.left.load(Relaxed) {
                    return;
                }
                sleep(PAUSE);
            }
        });
    }

    /// Has the engine serve and flush a file that was taken over, whether a program opens it or not.
    pub(super) fn begin_taken(self: &Arc<Member>, file: FileKey) {
        self.with_copies(move |member, _| {
            while let Err(error) = member.freshen(file) {
                tracing::error!(%error, "a file that was taken over is not served");
                if member.left.load(Relaxed) {
                    return;
                }
                sleep(PAUSE);
            }
        });
    }

    pub(super) fn settle_taken(self: &Arc<Member>, file: FileKey) {
        self.with_front(&self.hands.mount, move |member, front| {
            // A file that the engine does not hold yet would be settled at once.
            let settled = member.freshen(file).and_then(|()| front.settle(file));
            if let Err(error) = &settled {
                tracing::warn!(%error, "a file that was taken over is not settled yet");
                sleep(PAUSE);
            }
            member.feed(Input::Settled { file, ok: settled.is_ok() });
        });
    }

    /// Runs work on copies, which may wait.
    pub(super) fn with_copies(
        self: &Arc<Member>,
        work: impl FnOnce(&Arc<Member>, &dyn Keeper) + Send + 'static,
    ) {
        self.with_front(&self.hands.copies, work);
    }

    fn with_front(
        self: &Arc<Member>,
        pool: &Pool,
        work: impl FnOnce(&Arc<Member>, &dyn Keeper) + Send + 'static,
    ) {
        let member = self.clone();
        pool.leave(move || {
            if let Some(front) = member.front() {
                work(&member, &*front);
            }
        });
    }

    /// Suspends or resumes the mount as the flag is when a thread gets to it: of two such calls the later one may run
    /// first.
    pub(super) fn suspend_or_resume(self: &Arc<Member>) {
        self.with_front(&self.hands.fence, |member, front| {
            front.suspend(member.is_suspended.load(Relaxed))
        });
    }

    /// Another member has this member's place: tells the registry once no call to the store is under way here.
    pub(super) fn stop(self: &Arc<Member>) {
        self.with_front(&self.hands.fence, |member, front| {
            front.suspend(true);
            front.superseded();
            while !front.is_idle() {
                tracing::warn!("calls to the store are still under way");
                if member.left.load(Relaxed) {
                    return;
                }
            }
            // The written bytes may be in the kernel's memory, to be written out at any time.
            while let Err(error) = (member.sync_store)() {
                tracing::warn!(%error, "the store was not made durable");
                if member.left.load(Relaxed) {
                    return;
                }
                sleep(PAUSE);
            }
            member.feed(Input::Fenced);
        });
    }
}
