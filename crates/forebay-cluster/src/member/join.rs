//! How a mount becomes a member, and how it leaves.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_base::lock::{Condvar, Mutex, Rank, asks_the_registry};
use forebay_base::{Error, Kind, Result};
use forebay_registry::{BootClock, Clock, Commit, Entry, Lease, Registry};

use super::tend::Lives;
use super::{Member, SyncStore, Waiting, door};
use crate::core::{Core, Input, Peer, Reply, Standing, entering, is_in_its_place, line};
use crate::front::Front;
use crate::keys;
use crate::peer::{Door, Key, Peers, Tls};

/// How long the keys of a process stand that does not renew its lease. Others then call it dead.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long a give-back is remembered at least. An open waits less than that.
pub const GIVEN: Duration = Duration::from_secs(300);

/// The settings with which a mount joins.
pub struct Joining {
    pub registry: Arc<dyn Registry>,
    /// The number of the store itself.
    pub store: String,
    /// How this mount numbers the file of the store's mark.
    pub probe: FileKey,
    /// The node, by which others know the member.
    pub node: String,
    /// The number of the tier itself.
    pub tier: String,
    /// Changes each time that the tier has lost bytes that were never synced: other members tell their programs.
    pub boot: String,
    /// Where other members reach this one.
    pub listen: SocketAddr,
    pub key: Option<Key>,
    pub tls: Option<Arc<Tls>>,
    /// How long a call to the registry or a member may take.
    pub patience: Duration,
    /// The failure domain of the node; its own name if it stands alone.
    pub domain: Option<String>,
    /// How many other members are to have this member's acknowledged bytes, too.
    pub copies: u8,
    /// An fsync that reaches fewer members fails.
    pub copies_or_fail: bool,
    /// The member reads parts of files for others, and others for it.
    pub shares_reads: bool,
    pub sync_store: SyncStore,
    /// Called right before the registry is told of the tier, which owns the name from then on.
    pub enters: Box<dyn Fn()>,
    pub sorting: Sorting,
}

/// A tier's knowledge of its files' standing.
pub struct Sorting {
    /// The line in which all files had their standing last, see [`keys::Member::line`]; `None` if it is not known,
    /// and where the tier has lost bytes since.
    pub before: Option<u64>,
    /// Called once all files have their standing in this line.
    pub done: Box<dyn Fn(u64) + Send + Sync>,
}

/// Whether no other member has taken this member's place since all of its files had their standing, nor has its tier
/// lost bytes: a new file in the tier is the member's, if nobody has claimed it.
pub fn keeps_its_place(member: &Member) -> bool {
    is_in_its_place(&member.core.lock(), member.sorting.before)
}

impl Member {
    /// Joins the members of a store: from now on the registry says where this member is reached. It serves no other
    /// member before [`Member::serve`].
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if another tier is known under this name, or the members speak another version; errors of the
    /// registry.
    pub fn join(joining: Joining) -> Result<Arc<Member>> {
        let Joining { registry, store, probe, node, tier, boot, listen, key, patience, .. } =
            joining;
        let Joining { tls, domain, copies, copies_or_fail, shares_reads, .. } = joining;
        let Joining { sync_store, enters, sorting, .. } = joining;
        if node.is_empty() || node.contains('/') || node.len() > 255 {
            let what = format!("node name '{node}': it must have 1 to 255 characters and no '/'");
            return Err(Error::new(Kind::Usage, what));
        }
        let prefix = format!("stores/{store}/");
        found_store(&*registry, &store, probe)?;
        speak_alike(&*registry, &store, &node, tls.is_some())?;
        let sealed = tls.is_some();
        let peers = Peers::new(key.clone()).over(tls.clone());
        let waiting = door::Waiting::default();
        let door = Door::open(listen, (key, tls), Arc::new(waiting.clone()))?;
        let me = keys::Member {
            node: node.clone(),
            address: door.address().to_string(),
            tier,
            epoch: 0,
            boot,
            protocol: keys::PROTOCOL,
            domain: domain.unwrap_or_default(),
            copies,
            shares: shares_reads,
            sealed,
            taken: None,
            line: 0,
        };
        let (lease, given_lease) = (registry.lease(LEASE)?, registry.lease(GIVEN)?);
        let (epoch, taken_life) = enter(&*registry, &store, me, &*lease, (&sync_store, &*enters))?;
        let (entries, revision) = registry.range(&prefix)?;
        let watch = registry.watch(&prefix, revision)?;
        let lives = Lives::of(&prefix, &entries);
        let core = Core::new(node.clone(), epoch, copies, (revision, entries), patience);
        let member = Arc::new(Member {
            name: node,
            store,
            epoch,
            taken_life,
            began: BootClock.now(),
            patience,
            registry,
            core: Mutex::new(Rank::Core, core),
            next: AtomicU64::new(1),
            asked: Waiting::default(),
            replies: Waiting::default(),
            struck: Waiting::default(),
            hands: super::hands::Hands::default(),
            front: OnceLock::new(),
            desk: OnceLock::new(),
            peers,
            door: OnceLock::new(),
            lease: Mutex::new(Rank::MemberLease, Some(lease)),
            given_lease: Mutex::new(Rank::MemberLease, Some(given_lease)),
            reached: (Mutex::new(Rank::MemberNotes, revision), Condvar::new()),
            stale: Mutex::new(Rank::MemberNotes, HashMap::new()),
            taken: Mutex::new(Rank::MemberNotes, HashMap::new()),
            others: super::others::Others::default(),
            copies,
            copies_or_fail,
            shares_reads,
            places: door::Places::default(),
            trouble: Mutex::new(Rank::MemberNotes, None),
            reach: super::reach::Reach::default(),
            sync_store,
            sorting,
            is_suspended: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            left: AtomicBool::new(false),
        });
        waiting.begin(&member);
        let _ = member.door.set(door);
        member.follow(watch, lives)?;
        member.tend()?;
        Ok(member)
    }

    /// The standing of a file that is found at a start with bytes newer than the store's; `adopted`: the number of
    /// the claim under which the file was adopted, if it was. To be called before [`Member::serve`].
    pub fn standing(&self, file: FileKey, dir: FileKey, adopted: Option<u64>) -> Standing {
        self.core.lock().standing(file, dir, (adopted, self.sorting.before))
    }

    /// Whether copies of a home that are found at a start may still be needed.
    pub fn keeps_for(&self, home: &str) -> bool {
        self.core.lock().keeps_for(home)
    }

    /// Reports a file that stands as [`Standing::Adopted`]: the process before this one adopted it and did not claim
    /// it yet, and the take-over goes on with it. To be called before [`Member::serve`].
    pub fn has_adopted(self: &Arc<Member>, file: FileKey) {
        self.feed(Input::FoundAdopted { file });
    }

    /// Begins to serve, once all files have their standing. `dirty`: the files with bytes newer than the store's, each
    /// with its directory. Those that are not claimed yet are claimed.
    pub fn serve(
        self: &Arc<Member>,
        front: Weak<dyn Front>,
        dirty: Vec<(FileKey, FileKey, std::path::PathBuf)>,
    ) {
        let _ = self.front.set(front);
        let line = line(&self.core.lock());
        (self.sorting.done)(line);
        for (file, dir, path) in dirty {
            drop(self.created(file, dir, &path));
        }
        self.feed(Input::Began);
    }

    /// Gives back the claims of flushed files, without flushing more, and ends the lease. Dirty files stay claimed:
    /// this tier has their newest bytes, also those that no partner has, and therefore no member may take this one's
    /// place. A member that has served nothing does not know of such bytes, and ends as if it had died.
    pub fn leave(self: &Arc<Member>) {
        self.leaving.store(true, Relaxed);
        if self.front.get().is_some() {
            self.give_back_or_stay();
        }
        self.left.store(true, Relaxed);
        self.hands.close();
        // Programs may still be using the mount, if it was only detached.
        self.feed(Input::LeaseGone);
        let own = self.lease.lock().take();
        let given = self.given_lease.lock().take();
        if let Some(given) = given {
            given.let_run_out();
        }
        if let Some(Err(error)) = own.map(Lease::give_up) {
            tracing::warn!(%error, "the lease runs out by itself");
        }
    }
}

impl Member {
    fn give_back_or_stay(self: &Arc<Member>) {
        let ticket = self.ticket();
        let reply = self.replies.enter(ticket);
        self.feed(Input::Asked(ticket, Peer::RecallBelow { path: "".into() }));
        asks_the_registry();
        if matches!(reply.recv_timeout(self.patience), Ok(Reply::Given(true))) {
            return;
        }
        tracing::warn!(member = self.name, "some claims stay with this member");
        // Until the partners are struck off no more input is taken that would name them again.
        self.left.store(true, Relaxed);
        if let Err(error) = self.dismiss_heirs() {
            tracing::error!(%error, "a partner may take this member's place, without what was not synced");
        }
    }

    /// Removes the partners: no member takes this one's place until it has partners again.
    fn dismiss_heirs(&self) -> Result<()> {
        let key = format!("stores/{}/partners/{}", self.store, self.name);
        loop {
            let (Some(entry), _) = self.registry.get(&key)? else { return Ok(()) };
            let partners: Option<keys::Partners> = parse(&entry);
            let Some(mut partners) = partners.filter(|it| it.epoch == self.epoch) else {
                return Ok(());
            };
            partners.in_sync.clear();
            let commit = Commit::new().if_unchanged(&entry).put(&key, json(&partners));
            if self.registry.commit(&commit)?.committed().is_some() {
                return Ok(());
            }
        }
    }
}

/// Makes the store's own key if there is none. The first member of a newer release updates it, if no member of the
/// older release is mounted.
///
/// # Errors
///
/// [`Kind::Usage`] if this node numbers files otherwise, or a mounted member is of another release.
fn found_store(registry: &dyn Registry, store: &str, probe: FileKey) -> Result<()> {
    let key = format!("stores/{store}");
    let probe = keys::file(probe);
    let ours = keys::Store { protocol: keys::PROTOCOL, probe: probe.clone() };
    loop {
        let made = registry.commit(&Commit::new().if_absent(&key).put(&key, json(&ours)))?;
        if made.committed().is_some() {
            return Ok(());
        }
        let (Some(entry), _) = registry.get(&key)? else { continue };
        let found: Option<keys::Store> = parse(&entry);
        let theirs = found.as_ref().map_or(u32::MAX, |found| found.protocol);
        if let Some(found) = found.filter(|found| found.probe != probe) {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "this node numbers files of the store otherwise ({probe}) than its first member did ({}): it is mounted differently here, or was copied; mount it alike on all nodes",
                    found.probe
                ),
            ));
        }
        if theirs == keys::PROTOCOL {
            return Ok(());
        }
        if theirs > keys::PROTOCOL {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "the registry {} has store {store} by a newer release of forebay, whose members this one does not understand: install that one here",
                    registry.address()
                ),
            ));
        }
        let alive = format!("stores/{store}/alive/");
        let (living, _) = registry.range(&alive)?;
        let names: Vec<&str> =
            living.iter().filter_map(|entry| entry.key.strip_prefix(&alive)).collect();
        if !names.is_empty() {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "members of store {store} are mounted by an older release of forebay, which does not understand this one: unmount {} first, and mount them by this release",
                    names.join(", ")
                ),
            ));
        }
        let newer = Commit::new().if_unchanged(&entry).put(&key, json(&ours));
        if registry.commit(&newer)?.committed().is_some() {
            tracing::info!(
                store,
                from = theirs,
                to = keys::PROTOCOL,
                "the members' protocol is newer"
            );
            return Ok(());
        }
    }
}

/// Refuses to mix members with certificates and members without: they would not understand each other.
fn speak_alike(registry: &dyn Registry, store: &str, me: &str, sealed: bool) -> Result<()> {
    let (alive, members) = (format!("stores/{store}/alive/"), format!("stores/{store}/members/"));
    let (living, _) = registry.range(&alive)?;
    let (known, _) = registry.range(&members)?;
    let lives = |name: &str| living.iter().any(|it| it.key.strip_prefix(&alive) == Some(name));
    let known = known.iter().filter_map(|it| Some((it.key.strip_prefix(&members)?, it)));
    for (name, entry) in known.filter(|(name, _)| *name != me && lives(name)) {
        let Some(member) = parse::<keys::Member>(entry) else { continue };
        let why = match (member.sealed, sealed) {
            (true, false) => {
                "speaks TLS: give this one --peer-cert, --peer-cert-key and --peer-ca, too"
            }
            (false, true) => {
                "does not speak TLS: leave --peer-cert out here, or unmount all members and mount them with it"
            }
            _ => continue,
        };
        return Err(Error::new(Kind::Usage, format!("member {name} of the store {why}")));
    }
    Ok(())
}

/// Writes the member's key with the next epoch. Also returns the epoch of the process before, if another member has
/// taken its place.
fn enter(
    registry: &dyn Registry,
    store: &str,
    me: keys::Member,
    lease: &dyn Lease,
    (sync_store, enters): (&SyncStore, &dyn Fn()),
) -> Result<(u64, Option<u64>)> {
    let prefix = format!("stores/{store}/");
    let key = format!("{prefix}members/{}", me.node);
    let partners = format!("{prefix}partners/{}", me.node);
    let alive = format!("stores/{store}/alive/{}", me.node);
    let removed = format!("{prefix}removed/{}", me.node);
    loop {
        let (before, _) = registry.get(&key)?;
        let (removed, _) = registry.get(&removed)?;
        let removed: Option<keys::Removed> = removed.as_ref().and_then(parse);
        let me = keys::Member { epoch: removed.map_or(0, |it| it.epoch), ..me.clone() };
        let known: Option<keys::Member> = before.as_ref().and_then(parse);
        if let Some(known) = &known
            && known.tier != me.tier
        {
            let (other, _) = registry.get(&alive)?;
            let now = if other.is_some() { "is mounted now" } else { "is not mounted now" };
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "node '{}' is known to this store with another tier, which {now} ({}): give this mount another name with --node NAME, or take the old member out once its bytes are home",
                    me.node, known.address
                ),
            ));
        }
        // Beginning implies that no call of an earlier process to the store is under way. A taker waits for that.
        let taken = known.and_then(|known| known.taken);
        if taken.is_some() {
            sync_store()?;
        }
        let (partners, _) = registry.get(&partners)?;
        let (commit, epoch) = entering(&prefix, me, before.as_ref(), partners.as_ref());
        let commit = commit.put_leased(&alive, "", lease.id());
        enters();
        if registry.commit(&commit)?.committed().is_some() {
            return Ok((epoch, taken.map(|taken| taken.epoch)));
        }
    }
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain values")
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}
