//! The engine: its parts, its table of files, and the life of a file in it.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::wrap::Wrapped;
use forebay_backing::{BackingStore, Error, Kind, Result};
use forebay_base::glob::Pattern;

use crate::copies::{Copies, Outbox};
use crate::core::config::{Config, Tunables};
use crate::drain::copy::ERRANDS_PER_COPY;
use crate::drain::holds::Hold;
use crate::drain::suspend::Suspension;
use crate::drain::{Drain, Ground};
use crate::files::names::Names;
use crate::files::{Files, Inventory};
use crate::home::Home;
use crate::home::health::Health;
use crate::home::reaper::Reaper;
use crate::io::Io;
use crate::ops::Ops;
use crate::pool::Pool;
use crate::recovery::contents::{Contents, Recovered};
use crate::recovery::report::RecoveryReport;
use crate::room::Room;
use crate::room::passed::Passed;
use crate::tier::dir::Tier;
use crate::verbs::Verbs;

/// What the loading of fewer files has freed is not worth the time to give it back.
const TRIM_FROM: usize = 1_000;

/// Everything between a front-end and the backing store, for one mount: its parts put together. Each
/// part owns its state, and may ask those that come before it.
pub struct Engine {
    pub health: Arc<Health>,
    /// What is known.
    pub files: Arc<Files>,
    /// Names as the store tells them.
    pub names: Arc<Names>,
    /// Who may come into the tier, and who has to go.
    pub room: Arc<Room>,
    /// Who reads and writes past us.
    pub passed: Arc<Passed>,
    /// Copies that we keep for others.
    pub copies: Arc<Copies>,
    /// What our partners are told.
    pub outbox: Arc<Outbox>,
    /// What goes home.
    pub drain: Arc<Drain>,
    /// What programs ask of bytes.
    pub io: Arc<Io>,
    /// What programs ask of names and attributes.
    pub verbs: Arc<Verbs>,
    /// What an operator asks.
    pub ops: Arc<Ops>,
    recovery: RecoveryReport,
}

impl Engine {
    pub fn config(&self) -> &Config {
        self.files.config()
    }

    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Opens an engine on a tier: recovers what is in it and starts the background work.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or a rename that was under way when we last died cannot be
    /// settled because the backing store does not answer. Nothing dirty is dropped then.
    pub fn start(
        tier: Tier,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
    ) -> Result<Arc<Engine>> {
        let (engine, _) = Engine::start_holding(tier, backing, config, tunables, &[])?;
        Ok(engine)
    }

    /// The same, with holds of orders that did not end the last time, in force before the drain
    /// looks for the first time.
    pub fn start_holding(
        tier: Tier,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
        held: &[(Vec<PathBuf>, Pattern)],
    ) -> Result<(Arc<Engine>, Vec<Hold>)> {
        let contents = Contents::read(tier)?;
        let started = Engine::start_suspended(contents, backing, config, tunables, held);
        started.map(|(engine, holds, _)| (engine, holds))
    }

    /// The same, with the drain kept from the backing store until the last value is dropped: of who does
    /// not know yet which of the files are still its own.
    pub fn start_suspended(
        contents: Contents,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
        held: &[(Vec<PathBuf>, Pattern)],
    ) -> Result<(Arc<Engine>, Vec<Hold>, Suspension)> {
        tunables.validate().map_err(|why| Error::new(Kind::Usage, why))?;
        let time = config.time.clone();
        let health = Arc::new(Health::new(time.clone()));
        let reaper = Arc::new(Reaper::new(health.clone(), time.clone()));
        let backing: Arc<dyn BackingStore> = Wrapped::new(backing, reaper.clone());
        let recovered = contents.recover(&*backing, &config.owned, time.ms())?;
        let Recovered { tier, index, witness, copies, digests, next_id, nameless, .. } = recovered;
        let (fill_depth, flush_depth) = (tunables.fill_depth, tunables.flush_depth);
        let total = tier.media.space().map_err(|e| Error::io(e, "measuring the tier"))?.total;
        let tier_bytes = tunables.tier_size.unwrap_or(total).min(total);
        let errands = flush_depth as usize * ERRANDS_PER_COPY;
        let errands = Pool::new("fb-errand", errands, time.clone());
        let home = Arc::new(Home::new(backing, reaper, health.clone(), errands));
        let clean_start = recovered.report.clean_shutdown;
        let found = Inventory { next_id, nameless, tier_bytes, digests, clean_start };
        let files =
            Files::new(home.clone(), (tier, index), (config, tunables), found, time.clone());
        let files = Arc::new(files);
        let names = Arc::new(Names::new(home.clone(), files.clone()));
        let room = Arc::new(Room::new(files.clone()));
        let passed = Arc::new(Passed::new(files.clone(), room.clone()));
        let copies = Arc::new(Copies::new(files.clone(), room.clone(), copies)?);
        let outbox = Arc::new(Outbox::new(files.clone()));
        let pool = Pool::new("fb-flush", flush_depth as usize, time.clone());
        let ground =
            Ground { home, files: files.clone(), names: names.clone(), passed: passed.clone() };
        let drain = Arc::new(Drain::new(ground.clone(), outbox.clone(), pool));
        let fills = Pool::new("fb-fill", fill_depth as usize, time);
        let io =
            Arc::new(Io::new(ground.clone(), room.clone(), outbox.clone(), drain.clone(), fills));
        let verbs = Arc::new(Verbs::new(ground.clone(), outbox.clone(), drain.clone(), io.clone()));
        let ops = Arc::new(Ops::new(
            ground,
            room.clone(),
            (copies.clone(), outbox.clone()),
            drain.clone(),
            io.clone(),
            witness,
        ));
        let recovery = recovered.report;
        let engine = Engine {
            health,
            files,
            names,
            room,
            passed,
            copies,
            outbox,
            drain,
            io,
            verbs,
            ops,
            recovery,
        };
        let engine = Arc::new(engine);
        let known = recovered.files.len();
        engine.files.populate(recovered.files);
        recovered.lingering.iter().try_for_each(|id| engine.passed.adopt_writer(*id))?;
        engine.files.measure();
        if known >= TRIM_FROM {
            // SAFETY: gives what the loading has freed back to the system; no memory in use moves.
            unsafe { libc::malloc_trim(0) };
        }
        let holds = held.iter().map(|(scope, last)| engine.drain.hold(scope, last)).collect();
        let suspension = engine.drain.suspend();
        engine.ops.clone().start_threads()?;
        Ok((engine, holds, suspension))
    }
}
