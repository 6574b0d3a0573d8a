//! Tends one instance on this node: makes it if it is wanted, and removes it with all its contents if it
//! is not.
//!
//! Each call does what is still to be done and may be repeated: the next daemon takes up what one that
//! dies between any two steps leaves.
//!
//! - T1: room is used only under a grant, and the grant ends when nothing is left (L3).
//! - T2: dirty bytes of a cache are never dropped: its tier goes when nothing in it is dirty.
//! - T3: before a space goes, its stage-outs are home, revoked, or kept as long as was promised.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::units::{counted, human_size};
use forebay_base::{Error, Kind, Result};

use crate::backing;
use crate::clock::now;
use crate::closed;
use crate::crew::Next;
use crate::desk::place_for;
use crate::failpoint;
use crate::hands::{Cache, Leave, Look, Unflushed};
use crate::leaving::{Before, Needs};
use crate::ledger::{Ledger, UserUse};
use crate::manifest;
use crate::node::Node;
use crate::pools::{PoolHere, make_mount_point};
use crate::records::{Actual, Instance, Mode, State, Want, keys};

/// How often a ready instance is looked at: its mount may have died.
const CHECK: Duration = Duration::from_secs(10);

/// How often the obstacle of an instance that is to go is looked at.
const WAIT: Duration = Duration::from_secs(1);

/// How long programs that swap have to come back to memory.
const SWAP_OFF: Duration = Duration::from_secs(300);

impl Node {
    /// Does what is to be done about an instance now.
    pub(crate) fn tend(&self, instance: &Instance) -> Result<Next> {
        match instance.want {
            Want::Here => self.make(instance),
            Want::Gone | Want::GoneInHurry => self.remove(instance),
        }
    }

    fn make(&self, instance: &Instance) -> Result<Next> {
        self.require_grant(instance)?;
        self.local.keep(instance)?;
        failpoint::pass("tend-kept");
        let told = self.told(instance)?.map(|actual| actual.state);
        if told != Some(State::Ready) {
            self.tell(instance, State::Making, None, None)?;
        }
        let pool = self.pool_of(instance)?;
        let means = match instance.mode {
            Mode::Cache => self.make_cache(instance, &pool)?,
            Mode::Private => Some(pool.make_space(instance)?),
            Mode::Swap => {
                pool.make_swap(instance)?;
                None
            }
        };
        failpoint::pass("tend-made");
        self.tell(instance, State::Ready, means, None)?;
        Ok(Next::After(CHECK))
    }

    /// T1.
    pub(crate) fn require_grant(&self, instance: &Instance) -> Result<()> {
        let key = keys::ledger(&self.config.name, &instance.pool);
        let ledger: Ledger = self.book.read(&key)?.unwrap_or_default();
        match ledger.grants.contains_key(&instance.id) {
            true => Ok(()),
            false => Err(Error::new(
                Kind::Corrupt,
                format!("pool {} has granted it nothing: create it again", instance.pool),
            )),
        }
    }

    pub(crate) fn pool_of(&self, instance: &Instance) -> Result<Arc<PoolHere>> {
        self.pools.get(&instance.pool)
    }

    fn make_cache(&self, instance: &Instance, pool: &PoolHere) -> Result<Option<String>> {
        let cache = self.cache(instance, pool)?;
        match self.hands.look(&cache)? {
            Look::Serving => return Ok(None),
            // Dirty bytes are in the tier; the next mount goes on with them.
            Look::Dead => {
                let why = "its daemon has died, and it is mounted again";
                tracing::warn!("instance {}: {why}", instance.id);
                self.tell(instance, State::Making, None, Some(why.into()))?;
                self.hands.leave(&cache, Leave::Cleared, self.config.busy_patience)?;
            }
            Look::NotMounted => {}
        }
        let asked = instance.backing.as_ref().expect("a cache has one");
        backing::require_mounted(&asked.path, &self.config.backing_mounts)?;
        backing::require_same(&asked.path, &asked.on)?;
        pool.make_tier(&instance.id, instance.bytes)?;
        self.make_place(instance, &cache.mountpoint)?;
        self.hands.serve(&cache)?;
        Ok(None)
    }

    /// Makes the mount point. The mount of a cache admits every user that the modes below admit. Other
    /// directories above the backing store may have kept users out: therefore the directory above the
    /// mount admits only the owner.
    fn make_place(&self, instance: &Instance, at: &Path) -> Result<()> {
        let (root, owner) = (&self.config.mount_root, instance.owner);
        let given = place_for(root, &instance.id, instance.mode, owner);
        if let (Some(above), true) = (at.parent(), owner.uid != 0 && given.as_deref() == Some(at)) {
            closed::make(above, owner)?;
        }
        make_mount_point(at)
    }

    pub(crate) fn cache(&self, instance: &Instance, pool: &PoolHere) -> Result<Cache> {
        let (Some(asked), Some(at)) = (&instance.backing, &instance.mountpoint) else {
            let why = format!("instance {}: a cache without a backing store", instance.id);
            return Err(Error::new(Kind::Corrupt, why));
        };
        Ok(Cache {
            owner: instance.owner,
            backing: asked.path.clone(),
            mountpoint: at.clone(),
            tier: pool.tier(&instance.id),
            bytes: instance.bytes,
            settings: asked.settings.clone(),
        })
    }

    fn remove(&self, instance: &Instance) -> Result<Next> {
        self.local.keep(instance)?;
        if self.told(instance)?.is_none_or(|actual| actual.state != State::Leaving) {
            self.tell(instance, State::Leaving, None, None)?;
        }
        failpoint::pass("tend-leaving");
        if self.can_be_staged(instance)?
            && let Before::Wait(why, needs) = self.may_go(instance)?
        {
            self.mind_door(instance, needs)?;
            self.tell_held(instance, why, needs)?;
            return Ok(Next::After(WAIT));
        }
        let pool = self.pool_of(instance)?;
        match instance.mode {
            Mode::Cache => {
                if let Some(why) = self.leave_cache(instance, &pool)? {
                    self.tell(instance, State::Leaving, None, Some(why))?;
                    return Ok(Next::After(WAIT));
                }
            }
            Mode::Private => {}
            Mode::Swap => pool.swap_off(instance, SWAP_OFF)?,
        }
        pool.remove(&instance.id)?;
        failpoint::pass("tend-removed");
        // T1: the grant stays until the room is really free.
        if let Some(why) = pool.left_of(&instance.id)? {
            pool.sweep();
            self.tell(instance, State::Leaving, None, Some(why))?;
            return Ok(Next::After(WAIT));
        }
        if let Some(at) = &instance.mountpoint {
            // Only empty directories go, and only those below the mount root are ours.
            let root = &self.config.mount_root;
            for dir in at.ancestors().take_while(|dir| dir.starts_with(root) && dir != root) {
                let _ = std::fs::remove_dir(dir);
            }
        }
        self.release(instance)?;
        failpoint::pass("tend-released");
        self.local.forget(&instance.id)?;
        Ok(Next::After(CHECK))
    }

    /// Whether transfers can be carried out. A cache whose mount is gone carries none out: all dirty bytes
    /// are flushed by T2.
    fn can_be_staged(&self, instance: &Instance) -> Result<bool> {
        if instance.mode != Mode::Cache {
            return Ok(true);
        }
        let cache = self.cache(instance, &*self.pool_of(instance)?)?;
        Ok(self.hands.look(&cache)? == Look::Serving)
    }

    /// T2. Ends a cache; returns the obstacle, if it cannot go yet.
    fn leave_cache(&self, instance: &Instance, pool: &PoolHere) -> Result<Option<String>> {
        let cache = self.cache(instance, pool)?;
        let hurry = instance.want == Want::GoneInHurry;
        let how = if hurry { Leave::KeepDirty } else { Leave::Drain };
        if self.hands.look(&cache)? != Look::NotMounted {
            let holders = self.hands.leave(&cache, how, self.config.busy_patience)?;
            if !holders.is_empty() {
                let holders = holders.join(", ");
                tracing::warn!("instance {}: taken away from {holders}", instance.id);
            }
        }
        if self.hands.look(&cache)? != Look::NotMounted {
            let found = self.hands.unflushed(&cache)?;
            self.tell_unflushed(instance, &found)?;
            return Ok(Some(not_home(&found)));
        }
        let tier = &cache.tier;
        // T2: a tier that cannot be looked at is not gone.
        if !tier.try_exists().map_err(|e| Error::io(e, tier.display().to_string()))? {
            return Ok(None);
        }
        if hurry
            && manifest::of(&self.book, &self.config.name, &instance.id, manifest::DIRTY)?
                .is_empty()
        {
            // This is recorded before a slow store is waited for.
            self.tell_unflushed(instance, &self.hands.unflushed(&cache)?)?;
        }
        let found = self.hands.bring_home(&cache)?;
        self.tell_unflushed(instance, &found)?;
        Ok((!found.is_empty()).then(|| not_home(&found)))
    }

    fn tell_unflushed(&self, instance: &Instance, found: &[Unflushed]) -> Result<()> {
        let (missing, dirty) = (manifest::of_cache(instance, found), manifest::DIRTY);
        manifest::write(&self.book, &self.config.name, &instance.id, dirty, &missing)?;
        // Lines of its flushes are among these, and count once.
        manifest::clear_but(&self.book, &self.config.name, &instance.id, &[dirty])
    }

    /// Ends the grant and, on the last node, the record of what is wanted (L3).
    pub(crate) fn release(&self, instance: &Instance) -> Result<()> {
        let (id, me) = (&instance.id, &self.config.name);
        manifest::clear(&self.book, me, id)?;
        self.book.change(&format!("instance {id}"), |draft| {
            let wanted: Option<Instance> = draft.read(&keys::wanted_instance(id))?;
            if let Some(other) = wanted.filter(|wanted| !is_same(wanted, instance)) {
                // The last node's release removed the old record and grants; another instance has the name
                // by now.
                if !other.nodes.contains(me) {
                    draft.delete(&keys::actual_instance(id, me));
                }
                return Ok(());
            }
            let mut others = false;
            for node in &instance.nodes {
                let key = keys::ledger(node, &instance.pool);
                let mut ledger: Ledger = draft.read(&key)?.unwrap_or_default();
                if node == me {
                    ledger.release(id);
                    draft.put(&key, &ledger);
                } else {
                    others |= ledger.grants.contains_key(id);
                }
            }
            draft.delete(&keys::actual_instance(id, me));
            if !others {
                let key = keys::user(instance.owner.uid);
                let mut used: UserUse = draft.read(&key)?.unwrap_or_default();
                used.instances.remove(id);
                match used.instances.is_empty() {
                    true => draft.delete(&key),
                    false => draft.put(&key, &used),
                }
                draft.delete(&keys::wanted_instance(id));
            }
            Ok(())
        })
    }

    pub(crate) fn told(&self, instance: &Instance) -> Result<Option<Actual>> {
        self.book.read(&keys::actual_instance(&instance.id, &self.config.name))
    }

    pub(crate) fn tell_failed(&self, instance: &Instance, why: &str) -> Result<()> {
        let state = match instance.want {
            Want::Here => State::Failed,
            Want::Gone | Want::GoneInHurry => State::Leaving,
        };
        self.tell(instance, state, None, Some(why.into()))
    }

    /// Records that work has not ended in its time.
    pub(crate) fn tell_slow(&self, instance: &Instance, why: &str) -> Result<()> {
        let state = match instance.want {
            Want::Here => State::Making,
            Want::Gone | Want::GoneInHurry => State::Leaving,
        };
        self.tell(instance, state, None, Some(why.into()))
    }

    /// Writes the state of an instance here, if it has changed.
    fn tell(
        &self,
        instance: &Instance,
        state: State,
        means: Option<String>,
        why: Option<String>,
    ) -> Result<()> {
        self.tell_all(instance, Actual { state, means, why, ..Actual::default() })
    }

    /// Records that the instance waits for its transfers.
    fn tell_held(&self, instance: &Instance, why: String, needs: Needs) -> Result<()> {
        let (why, undecided) = (Some(why), needs == Needs::Owner);
        self.tell_all(
            instance,
            Actual { state: State::Leaving, why, undecided, ..Actual::default() },
        )
    }

    /// Keeps the recorded means and gate, and the time of an unchanged state.
    fn tell_all(&self, instance: &Instance, news: Actual) -> Result<()> {
        let key = keys::actual_instance(&instance.id, &self.config.name);
        let told: Option<Actual> = self.book.read(&key)?;
        let is_new = told.is_none();
        let old = told.unwrap_or(Actual { since: now(), ..news.clone() });
        let since = if old.state == news.state { old.since } else { now() };
        let means = news.means.clone().or_else(|| old.means.clone());
        let news = Actual { means, since, going: old.going, ..news };
        if is_new || news != old { self.book.put(&key, &news) } else { Ok(()) }
    }
}

/// Whether two records are of one instance, whatever its `want` and its end.
fn is_same(one: &Instance, other: &Instance) -> bool {
    Instance { want: other.want, life: other.life.clone(), ..one.clone() } == *other
}

fn not_home(found: &[Unflushed]) -> String {
    let bytes = found.iter().map(|unflushed| unflushed.bytes).sum();
    let why = found.first().map_or("", |unflushed| unflushed.why.as_str());
    let files = counted(found.len() as u64, "file");
    format!("{} in {files} are not on the backing store yet: {why}", human_size(bytes))
}
