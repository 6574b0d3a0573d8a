//! The fill of one partner with all dirty bytes, while the others are told as usual.
//!
//! A large file goes in several rounds, and rounds that callers wait for come in between. Writes to
//! parts that the fill has passed are left for the fill once more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};

use crate::copies::outbox::{CUT, Outbox, ROUNDS_MAX, is_to_be_known};
use crate::copies::round::{Ended, PIECE_BYTES, Round, To, encoded};
use crate::core::copied::Mark;
use crate::files::Files;
use crate::files::file::File;
use crate::files::partners::Partners;

/// Rounds per second at the full rate of a fill.
const ROUNDS_PER_SECOND: u64 = 4;

/// The pause between two rounds of a file, in which waiting callers get their own.
const GAP: Duration = Duration::from_millis(5);

/// The partner that is filled, and the pace.
struct Fill<'a> {
    partners: &'a Arc<dyn Partners>,
    partner: &'a str,
    stop: &'a dyn Fn() -> bool,
    began: Instant,
    sent: u64,
}

impl Outbox {
    /// Sends one partner all that is dirty and durable here, while the others are told as usual. From the
    /// beginning of its fill the partner is told with them: see [`Partners::mark`](crate::Partners::mark). At
    /// most as many bytes per second as [`Config`](crate::Config) allows. `stop` is asked between rounds.
    ///
    /// # Errors
    ///
    /// The partner's errors; Interrupted if `stop` said so.
    pub fn fill_partner(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()> {
        let partners = self.files.copying().partners();
        let partners = partners.ok_or_else(|| {
            Error::new(Kind::Usage, "no copies are kept of what is here: mount with copies")
        })?;
        let session = self.session;
        partners.mark(partner, &encoded(&Mark::Begin { session }))?;
        let began = self.files.time().now();
        let mut fill = Fill { partners: &partners, partner, stop, began, sent: 0 };
        for file in self.files.all_files() {
            let filled = self.fill_file(&mut fill, &file);
            if let Some(copied) = file.lock().in_use_mut().and_then(|live| live.copied_mut()) {
                copied.fill_ends(partner);
            }
            filled?;
        }
        partners.mark(partner, &encoded(&Mark::End { session }))
    }

    fn fill_file(&self, fill: &mut Fill<'_>, file: &Arc<File>) -> Result<()> {
        let part = part(&self.files);
        let (mut cuts, mut rounds, mut most_rounds) = (0, 0, None);
        while cuts < ROUNDS_MAX {
            if (fill.stop)() {
                return Err(Error::new(Kind::Interrupted, "the fill was told to stop"));
            }
            let inner = self.wait_for_round(file);
            let known = inner.is_copied() || inner.state.durable_size().is_some();
            let known = known || inner.state.is_held();
            if !known || !is_to_be_known(&inner) {
                return Ok(());
            }
            // A writer that is as fast as the fill is overtaken by one round with everything: the
            // limit counts from the file's size at first.
            let enough = || u64::from(ROUNDS_MAX) + 2 * (inner.size() / part);
            let is_overtaken = rounds > *most_rounds.get_or_insert_with(enough);
            let most = if is_overtaken { u64::MAX } else { part };
            // The round counts as told to no other partner: bytes owed to all are told to this one again.
            let to = To::One { partner: fill.partner, most };
            let round = Round::begin(self.post(fill.partners, to), file, inner)?;
            match round.map(Round::run).transpose()? {
                None => return Ok(()),
                Some(Ended::Well(bytes)) => {
                    fill.pause(&self.files, bytes, Duration::ZERO);
                    return Ok(());
                }
                Some(Ended::Part(bytes)) => {
                    rounds += 1;
                    fill.pause(&self.files, bytes, GAP);
                }
                Some(Ended::Cut) => cuts += 1,
            }
        }
        Err(Error::os(libc::EBUSY, CUT))
    }
}

/// Returns the bytes of one round.
fn part(files: &Files) -> u64 {
    (files.config().fill_rate / ROUNDS_PER_SECOND).max(PIECE_BYTES)
}

impl Fill<'_> {
    /// Notes that `bytes` were sent: waits until more may be, and at least `least`.
    fn pause(&mut self, files: &Files, bytes: u64, least: Duration) {
        self.sent += bytes;
        let rate = files.config().fill_rate.max(1);
        let due = Duration::from_secs_f64(self.sent as f64 / rate as f64);
        let took = files.time().since(self.began);
        let pause = due.saturating_sub(took).max(least);
        if pause >= GAP {
            files.time().sleep(pause.min(Duration::from_secs(1)));
        }
    }
}
