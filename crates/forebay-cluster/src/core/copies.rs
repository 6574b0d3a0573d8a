//! Partners that keep copies of this member's durable bytes, and may take it over.
//!
//! A partner is chosen, filled, and named in the registry. Everything that is acknowledged needs the
//! partner from before the commit that names it is sent, until a commit that no longer names it has
//! returned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome, Revision};
use xxhash_rust::xxh3::xxh3_64;

use super::tasks::PAUSE;
use super::{Core, Doing, Effect, Fitness, Keeper, Keepers, Rule, Ticket};
use crate::keys;

/// A dismissed member is asked to drop its copies once in this many patiences.
const DISMISS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The partner is to drop its copies of an earlier fill, and has not confirmed that: it takes no
    /// copies yet.
    Chosen,
    Filling,
    /// The partner has everything; the commit that names it is under way, or to be repeated.
    Joining,
    InSync,
    /// The partner is no longer to be named.
    Leaving,
}

#[derive(Debug)]
struct Partner {
    fill: u64,
    /// How many fills had begun when this partner's began; 0: the partner had everything when this
    /// process started.
    joined: u64,
    state: State,
    /// Callers that wait until the partner no longer counts, and since when.
    strikes: Vec<(Ticket, Duration)>,
}

/// A member that is no partner, and may have copies from when it was one.
#[derive(Debug)]
struct Dismissal {
    fill: u64,
    /// When the member is asked again; `None`: it has no copies any more.
    again: Option<Duration>,
}

/// The partners of this member.
#[derive(Debug, Default)]
pub struct Copies {
    wanted: u8,
    partners: BTreeMap<String, Partner>,
    /// Members that failed, and when each may be chosen again: after the patience.
    failed: BTreeMap<String, Duration>,
    dismissed: BTreeMap<String, Dismissal>,
    fills: u64,
    joined: u64,
    /// The partners that the registry names, as of the newest known commit or event, and its revision.
    named: BTreeSet<String>,
    revision: Option<Revision>,
    /// Partners named by commits that may still come to pass.
    may_be_named: BTreeSet<String>,
    is_sent: bool,
    not_before: Duration,
}

impl Copies {
    pub fn new(wanted: u8) -> Copies {
        Copies { wanted, ..Copies::default() }
    }

    /// Whether another member may take this one over.
    pub fn has_heirs(&self) -> bool {
        !self.named.is_empty() || !self.may_be_named.is_empty()
    }

    fn count(&self, is: impl Fn(&String, State) -> bool) -> usize {
        self.partners.iter().filter(|(name, partner)| is(name, partner.state)).count()
    }

    fn to_name(&self) -> BTreeSet<String> {
        let counts = |state| matches!(state, State::Joining | State::InSync);
        let partners = self.partners.iter().filter(|(_, partner)| counts(partner.state));
        partners.map(|(name, _)| name.clone()).collect()
    }

    fn next_fill(&mut self) -> u64 {
        self.fills += 1;
        self.fills
    }
}

/// Rendezvous hashing: each pair has a weight that no other member changes.
fn weight(of: &str, partner: &str) -> u64 {
    xxh3_64(&[of.as_bytes(), &[0], partner.as_bytes()].concat())
}

impl Core {
    /// How many partners have joined so far: see [`Core::keepers_of`].
    pub fn joined(&self) -> u64 {
        self.copies.joined
    }

    pub fn keepers(&self) -> Keepers {
        self.keepers_of(u64::MAX)
    }

    /// The keepers for a round that began when `joined` partners had joined: a later one lacks the
    /// round's first pieces.
    pub fn keepers_of(&self, joined: u64) -> Keepers {
        let mut keepers = Keepers { wanted: self.copies.wanted, ..Keepers::default() };
        for (name, partner) in &self.copies.partners {
            let keeper = || Keeper { member: name.clone(), fill: partner.fill };
            match partner.state {
                State::Chosen => {}
                State::Filling | State::Joining | State::InSync if partner.joined > joined => {}
                State::Filling => keepers.filling.push(keeper()),
                State::Joining | State::InSync => keepers.required.push(keeper()),
                State::Leaving => keepers.leaving.push(name.clone()),
            }
        }
        keepers.has_others = self.elsewhere().next().is_some();
        keepers
    }

    /// The claim's number, which copies of a file carry. `None`: the file is not claimed yet, and a copy
    /// has to wait.
    pub fn claim_number(&self, file: FileKey) -> Option<u64> {
        let claim = self.mirror.claims.get(&file)?;
        (claim.member == self.me || self.may_still_claim(&claim.member)).then_some(claim.number)
    }

    /// Whether this member may serve, flush and acknowledge at `now`.
    pub fn fit(&self, now: Duration) -> Fitness {
        if self.is_superseded {
            return Fitness::Superseded;
        }
        let lapsed = self.lease_until.is_none_or(|until| now >= until);
        match lapsed && self.copies.has_heirs() && self.rules.obey(Rule::LeaseStands) {
            true => Fitness::CutOff,
            false => Fitness::Fit,
        }
    }

    /// Whether the member's lease has run out: the registry is away.
    pub(super) fn is_cut_off(&self) -> bool {
        self.lease_until.is_some_and(|until| self.now >= until)
    }

    /// Members of other failure domains.
    fn elsewhere(&self) -> impl Iterator<Item = (&String, &keys::Member)> {
        let mine = self.mirror.members.get(&self.me).map(|(me, _)| me.domain());
        self.mirror
            .members
            .iter()
            .filter(move |(name, (member, _))| **name != self.me && Some(member.domain()) != mine)
            .map(|(name, (member, _))| (name, member))
    }

    /// Partners that the registry names at a start have all that was acknowledged before it.
    pub(super) fn begin_copies(&mut self) {
        self.learn_named();
        for name in self.copies.named.clone() {
            let (fill, joined, strikes) = (0, 0, Vec::new());
            let partner = Partner { fill, joined, state: State::InSync, strikes };
            self.copies.partners.insert(name, partner);
        }
    }

    fn learn_named(&mut self) {
        let Some((partners, revision)) = self.mirror.partners.get(&self.me) else { return };
        if Some(*revision) > self.copies.revision {
            self.copies.revision = Some(*revision);
            let is_mine = partners.epoch == self.epoch;
            let named = is_mine.then(|| partners.in_sync.iter().cloned().collect());
            self.named_are(named.unwrap_or_default());
        }
    }

    /// Takes in which partners the registry names now. Commits that were sent before compare an older
    /// revision.
    fn named_are(&mut self, named: BTreeSet<String>) {
        self.copies.may_be_named.clear();
        for (name, partner) in &mut self.copies.partners {
            if partner.state == State::Joining && named.contains(name) {
                partner.state = State::InSync;
            }
        }
        self.copies.named = named;
        self.let_go();
    }

    /// Drops partners that are to leave and are no longer named.
    fn let_go(&mut self) {
        let copies = &mut self.copies;
        let gone = |(name, partner): (&String, &Partner)| {
            let may_count = copies.named.contains(name) || copies.may_be_named.contains(name);
            (partner.state == State::Leaving && !may_count).then(|| name.clone())
        };
        let gone: Vec<String> = copies.partners.iter().filter_map(gone).collect();
        for name in gone {
            let Some(partner) = self.copies.partners.remove(&name) else { continue };
            self.dismiss(name);
            for (ticket, _) in partner.strikes {
                self.out.push(Effect::Struck { ticket, ok: true });
            }
        }
    }

    fn dismiss(&mut self, partner: String) {
        let fill = self.copies.next_fill();
        let again = Some(self.now + self.patience * DISMISS);
        self.copies.dismissed.insert(partner.clone(), Dismissal { fill, again });
        self.out.push(Effect::Unfilled { partner, fill });
    }

    pub(super) fn dismissed(&mut self, partner: &str, fill: u64) {
        let asked = self.copies.dismissed.get_mut(partner).filter(|it| it.fill == fill);
        asked.into_iter().for_each(|it| it.again = None);
    }

    /// Tells other members to drop their copies: one that was struck off while away, or by an earlier
    /// process, does not know.
    fn dismiss_others(&mut self) {
        let copies = &self.copies;
        if copies.wanted == 0 && !self.mirror.partners.contains_key(&self.me) {
            return; // This member never had partners.
        }
        let may_count = |name: &String| {
            copies.partners.contains_key(name)
                || copies.named.contains(name)
                || copies.may_be_named.contains(name)
        };
        let is_due = |name: &String| {
            let asked = copies.dismissed.get(name);
            asked.is_none_or(|it| it.again.is_some_and(|again| self.now >= again))
        };
        let others = self.mirror.alive.iter().filter(|name| **name != self.me);
        let due: Vec<String> =
            others.filter(|name| !may_count(name) && is_due(name)).cloned().collect();
        due.into_iter().for_each(|name| self.dismiss(name));
    }

    pub(super) fn copy_failed(&mut self, ticket: Ticket, partner: String) {
        let until = self.now + self.patience;
        let waits = self.rules.obey(Rule::StruckBeforeAcknowledged);
        match self.copies.partners.get_mut(&partner) {
            _ if self.is_superseded => self.out.push(Effect::Struck { ticket, ok: false }),
            None => self.out.push(Effect::Struck { ticket, ok: true }),
            Some(found) => {
                found.state = State::Leaving;
                match waits {
                    true => found.strikes.push((ticket, self.now)),
                    false => self.out.push(Effect::Struck { ticket, ok: true }),
                }
                self.copies.failed.insert(partner, until);
            }
        }
        self.let_go();
        self.name_partners();
    }

    /// Bytes that were synced before the fill began were not sent to the partner, but are durable here:
    /// the fill brings them.
    pub(super) fn fill_begun(&mut self, partner: &str, fill: u64) {
        if let Some(found) = self.copies.partners.get_mut(partner)
            && (found.state, found.fill) == (State::Chosen, fill)
        {
            self.copies.joined += 1;
            (found.state, found.joined) = (State::Filling, self.copies.joined);
        }
    }

    pub(super) fn filled(&mut self, partner: &str, fill: u64, ok: bool) {
        let Some(found) = self.copies.partners.get_mut(partner) else { return };
        if !matches!(found.state, State::Chosen | State::Filling) || found.fill != fill {
            return;
        }
        found.state = if ok { State::Joining } else { State::Leaving };
        if !ok {
            self.copies.failed.insert(partner.into(), self.now + self.patience);
            self.let_go();
        }
        self.name_partners();
    }

    /// Writes down which partners count, one commit at a time.
    fn name_partners(&mut self) {
        let copies = &self.copies;
        let to_name = copies.to_name();
        let is_leaving = |partner: &Partner| partner.state == State::Leaving;
        let differs = to_name != copies.named || copies.partners.values().any(is_leaving);
        if copies.is_sent || !differs || self.now < copies.not_before || self.is_superseded {
            return;
        }
        let key = self.mirror.key(&format!("partners/{}", self.me));
        let in_sync = to_name.iter().cloned().collect();
        let partners = keys::Partners { epoch: self.epoch, in_sync };
        let mut commit = Commit::new();
        commit = match copies.revision {
            Some(revision) => {
                commit.compares.push(Compare::Revision(key.clone(), revision));
                commit
            }
            None => commit.if_absent(&key),
        };
        self.copies.is_sent = true;
        self.copies.may_be_named.extend(to_name.iter().cloned());
        let commit = commit.put(key, super::json(&partners));
        self.commit(Doing::Name(to_name), commit, false);
    }

    pub(super) fn named(&mut self, named: BTreeSet<String>, outcome: Result<Outcome, ()>) {
        self.copies.is_sent = false;
        match outcome {
            Ok(Outcome::Committed(revision)) => {
                if Some(revision) > self.copies.revision {
                    self.copies.revision = Some(revision);
                    self.named_are(named);
                }
            }
            // An earlier commit has come to pass: the mirror will tell.
            Ok(Outcome::Refused(_)) | Err(()) => self.copies.not_before = self.now + PAUSE,
        }
        self.tend_copies();
    }

    /// Chooses partners, replaces them, and gives them up.
    pub(super) fn tend_copies(&mut self) {
        self.learn_named();
        let (now, patience) = (self.now, self.patience);
        self.copies.failed.retain(|_, until| now < *until);
        for partner in self.copies.partners.values_mut() {
            let is_late = |(_, since): &mut (Ticket, Duration)| now >= *since + patience;
            for (ticket, _) in partner.strikes.extract_if(.., is_late) {
                self.out.push(Effect::Struck { ticket, ok: false });
            }
        }
        if !self.has_begun || self.is_suspended || self.is_superseded {
            return;
        }
        self.leave_partners();
        let wanted = usize::from(self.copies.wanted);
        let alive = &self.mirror.alive;
        let goes_on = |name: &String, state| alive.contains(name) && state != State::Leaving;
        for _ in self.copies.count(goes_on)..wanted {
            let Some(partner) = self.choose() else { break };
            let fill = self.copies.next_fill();
            let state = if self.rules.obey(Rule::FilledBeforeCounted) {
                State::Chosen
            } else {
                State::Joining
            };
            let anew = Partner { fill, joined: 0, state, strikes: Vec::new() };
            self.copies.dismissed.remove(&partner);
            self.copies.partners.insert(partner.clone(), anew);
            self.out.push(Effect::Fill { partner, fill });
        }
        self.dismiss_others();
        self.name_partners();
    }

    /// A dead partner keeps its place until another has all that it has: it may come back with its
    /// copies.
    fn leave_partners(&mut self) {
        let wanted = usize::from(self.copies.wanted);
        let alive = &self.mirror.alive;
        let lives = |name: &String, state| state == State::InSync && alive.contains(name);
        let mut spare = self.copies.count(lives) as isize - wanted as isize;
        for (name, partner) in self.copies.partners.iter_mut().rev() {
            let lives = alive.contains(name);
            partner.state = match partner.state {
                State::Chosen | State::Filling if !lives || spare >= 0 => State::Leaving,
                State::InSync if !lives && spare >= 0 => State::Leaving,
                State::InSync if lives && spare > 0 => {
                    spare -= 1;
                    State::Leaving
                }
                state => state,
            };
        }
        self.let_go();
    }

    /// The heaviest candidate, if possible of a failure domain that has no partner yet.
    fn choose(&self) -> Option<String> {
        let taken = |(name, _): &(&String, &keys::Member)| {
            self.copies.partners.contains_key(*name) || self.copies.failed.contains_key(*name)
        };
        let partners = self.copies.partners.keys();
        let domain = |name: &String| self.mirror.members.get(name).map(|(m, _)| m.domain());
        let used: BTreeSet<&str> = partners.filter_map(domain).collect();
        self.elsewhere()
            .filter(|(name, _)| self.mirror.alive.contains(*name))
            .filter(|candidate| !taken(candidate))
            .max_by_key(|(name, member)| (!used.contains(member.domain()), weight(&self.me, name)))
            .map(|(name, _)| name.clone())
    }

    /// From here on nothing is acknowledged.
    pub(super) fn end_copies(&mut self) {
        for partner in self.copies.partners.values_mut() {
            for (ticket, _) in partner.strikes.drain(..) {
                self.out.push(Effect::Struck { ticket, ok: false });
            }
        }
    }
}
