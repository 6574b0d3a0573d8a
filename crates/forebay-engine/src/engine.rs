//! The engine: its parts, put together and started.

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

/// From so many loaded files on, the memory that loading has freed is given back to the system.
const TRIM_FROM: usize = 1_000;

/// Everything between a front-end and the backing store, for one mount: its parts put together.
/// Each part owns its state, and may call the parts above it in this list.
pub struct Engine {
    pub health: Arc<Health>,
    /// The table of files, with the state of each.
    pub files: Arc<Files>,
    /// The names on the store.
    pub names: Arc<Names>,
    /// Admission to the tier, and eviction.
    pub room: Arc<Room>,
    /// Programs that read and write past the daemon.
    pub passed: Arc<Passed>,
    /// Copies kept here for other members.
    pub copies: Arc<Copies>,
    /// Messages to the partners of this member.
    pub outbox: Arc<Outbox>,
    /// Write-back.
    pub drain: Arc<Drain>,
    /// Requests of programs for bytes.
    pub io: Arc<Io>,
    /// Requests of programs for names and attributes.
    pub verbs: Arc<Verbs>,
    /// Requests of operators.
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
    /// If the index cannot be read, or a rename that a crash interrupted cannot be settled because
    /// the backing store does not answer. No dirty byte is dropped then.
    pub fn start(
        tier: Tier,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
    ) -> Result<Arc<Engine>> {
        let (engine, _) = Engine::start_holding(tier, backing, config, tunables, &[])?;
        Ok(engine)
    }

    /// As [`Engine::start`], with the holds of orders that had not ended when the last engine stopped.
    /// The holds are in force before the drain looks for the first time.
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

    /// As [`Engine::start_holding`], with the drain kept from the backing store until the last
    /// [`Suspension`] is dropped: for a member that does not know yet which files are still its own.
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
            // SAFETY: gives memory that loading has freed back to the system; no memory in use moves.
            unsafe { libc::malloc_trim(0) };
        }
        let holds = held.iter().map(|(scope, last)| engine.drain.hold(scope, last)).collect();
        let suspension = engine.drain.suspend();
        engine.ops.clone().start_threads()?;
        Ok((engine, holds, suspension))
    }
}
