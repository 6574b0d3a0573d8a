//! Which other members answer: logged when that changes, and not for each question.

use std::collections::HashSet;

use forebay_base::Error;
use forebay_base::lock::{Mutex, Rank};

use crate::words::Question;

/// Members that did not answer when they were last asked.
pub struct Reach(Mutex<HashSet<String>>);

impl Default for Reach {
    fn default() -> Reach {
        Reach(Mutex::new(Rank::MemberNotes, HashSet::new()))
    }
}

impl Reach {
    /// Notes that a member has answered, or why it was not reached.
    pub fn note(&self, member: &str, question: &Question, error: Option<&Error>) {
        let is_news = self.is_news(member, error.is_none());
        match error {
            Some(error) if is_news => {
                let file = question.path().map(|path| path.display().to_string());
                tracing::warn!(%error, member, file, "a member was not reached");
            }
            Some(error) => tracing::debug!(%error, member, "a member was not reached again"),
            None if is_news => tracing::info!(member, "a member is reached again"),
            None => {}
        }
    }

    /// Whether the member's state has changed. A member that was never asked is taken to answer.
    fn is_news(&self, member: &str, answers: bool) -> bool {
        let mut silent = self.0.lock();
        if answers { silent.remove(member) } else { silent.insert(member.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_is_news_once() {
        let reach = Reach::default();
        assert!(!reach.is_news("a", true));
        let told = [false, false, true, true, false].map(|answers| reach.is_news("a", answers));
        assert_eq!(told, [true, false, true, false, true]);
        assert!(reach.is_news("b", false), "each for itself");
    }
}
