//! The questions of other members to this one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_base::Result;
use forebay_base::lock::{Mutex, Rank, sleep};
use forebay_registry::Revision;

use super::Member;
use crate::core::{Input, Peer, Reply};
use crate::front::Told;
use crate::keys;
use crate::peer::Service;
use crate::words::{Answer, Head, Question, Refusal};

/// Stands for the member until it exists: the door opens first, since its address is part of the member.
#[derive(Clone)]
pub struct Waiting(Arc<Mutex<Weak<Member>>>);

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting(Arc::new(Mutex::new(Rank::MemberNotes, Weak::new())))
    }
}

impl Waiting {
    pub fn begin(&self, member: &Arc<Member>) {
        *self.0.lock() = Arc::downgrade(member);
    }
}

/// How many questions of bytes are answered at once for one member, and for all. Each has one of the door's
/// connections, and may wait for room or for the store: the questions by which members agree have the rest of the 256
/// connections.
const PLACES_OF_ONE: usize = 64;
const PLACES: usize = 192;

pub struct Places(Arc<Mutex<HashMap<String, usize>>>);

pub struct Place(Arc<Mutex<HashMap<String, usize>>>, String);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Mutex::new(Rank::MemberNotes, HashMap::new())))
    }
}

impl Places {
    fn take(&self, from: &str) -> Option<Place> {
        let mut all = self.0.lock_anyway();
        let taken = all.get(from).copied().unwrap_or(0);
        if taken >= PLACES_OF_ONE || all.values().sum::<usize>() >= PLACES {
            return None;
        }
        all.insert(from.into(), taken + 1);
        Some(Place(self.0.clone(), from.into()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // No panic leaves a count half changed, and a panic may drop this.
        let mut all = self.0.lock_anyway();
        match all.get_mut(&self.1) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => _ = all.remove(&self.1),
        }
    }
}

/// How long an asker waits for a member that just begins.
const BEGINNING: Duration = Duration::from_secs(2);

/// Waits for something that exists in a moment, if the member begins.
pub(super) fn soon<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = look();
        if found.is_some() || began.elapsed() >= BEGINNING {
            return found;
        }
        sleep(Duration::from_millis(5));
    }
}

impl Service for Waiting {
    fn answer(&self, head: &Head, question: Question, bytes: &[u8], out: &mut Vec<u8>) -> Answer {
        match soon(|| self.0.lock().upgrade()) {
            Some(member) => member.answer(head, question, bytes, out),
            None => Answer::Refused(Refusal::NotHere),
        }
    }
}

impl Member {
    fn answer(
        self: &Arc<Member>,
        head: &Head,
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer {
        let refuse = |errno, text: String| Answer::Refused(Refusal::Errno(errno, text));
        let done = |kept: Result<()>| match kept {
            Ok(()) => Answer::Done,
            Err(error) => refuse(error.errno(), error.to_string()),
        };
        if head.protocol != keys::PROTOCOL {
            let text = format!("it speaks version {} of the members' protocol", keys::PROTOCOL);
            return refuse(libc::EPROTO, text);
        }
        if head.store != self.store {
            return refuse(libc::EINVAL, "it is a member of another store".into());
        }
        if head.to_epoch != self.epoch {
            return Answer::Refused(Refusal::Epoch(self.epoch));
        }
        if !self.is_newest(head) {
            let text = format!("member {} has begun anew since it asked", head.from);
            return refuse(libc::ESTALE, text);
        }
        let peer = match question {
            Question::Holds { file, dir } => Peer::Holds { file, dir },
            Question::Recall { file } => Peer::Recall { file },
            Question::RecallBelow { path } => Peer::RecallBelow { path },
            Question::Changed { file } => Peer::Changed { file },
            Question::Reached { revision } => Peer::Reached { revision: Revision(revision) },
            Question::Copy { file, number, fill, beside, words } => {
                let told = if beside { Told::Beside } else { Told::Owes };
                return done(self.keep_for(head, (fill, told), (file, number, words), bytes));
            }
            Question::Mark { fill } => return done(self.mark_for(head, fill, bytes)),
            Question::BeginFill { fill } => return done(self.begin_fill_for(head, fill)),
            Question::Daemon { method, path, body } => {
                return match self.desk.get() {
                    Some(desk) => {
                        let (status, body) = desk.answer(&method, &path, body);
                        Answer::Said { status, body }
                    }
                    None => Answer::Refused(Refusal::NotHere),
                };
            }
            question => {
                let front = soon(|| self.front.get()).and_then(Weak::upgrade);
                let Some(front) = front else { return Answer::Refused(Refusal::NotHere) };
                let _place = match question.is_of_bytes().then(|| self.places.take(&head.from)) {
                    Some(None) => return Answer::Refused(Refusal::Busy),
                    place => place,
                };
                return front.answer((&head.from, head.from_epoch), question, bytes, out);
            }
        };
        let ticket = self.ticket();
        let reply = self.replies.enter(ticket);
        self.feed(Input::Asked(ticket, peer));
        match reply.recv_timeout(self.patience) {
            Ok(Reply::Done) => Answer::Done,
            Ok(Reply::Holds(holds)) => Answer::Holds(holds),
            Ok(Reply::Given(given)) => Answer::Given(given),
            Ok(Reply::Reached(revision)) => Answer::Reached(revision.0),
            Err(_) => {
                self.replies.leave(ticket);
                refuse(libc::ETIMEDOUT, "it did not decide in time".into())
            }
        }
    }

    /// Whether no later life of the asker has been heard of: messages of an earlier life come too late.
    fn is_newest(&self, head: &Head) -> bool {
        // Of an unknown member no later life has been heard of.
        let Some(known) = self.epoch_of(&head.from) else { return true };
        self.others.is_newest_life(&head.from, known, head.from_epoch)
    }
}
