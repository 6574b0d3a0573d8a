//! The token that etcd gave for this process's user.

use std::time::Instant;

use forebay_base::lock::{Condvar, Mutex, Rank};

use super::failed::Failed;

type Token = Option<String>;

pub struct Tokens {
    state: Mutex<State>,
    fetched: Condvar,
}

#[derive(Default)]
struct State {
    token: Token,
    /// Whether a thread asks for a token now.
    fetching: bool,
}

/// The thread that asks for a token; ends that also if the thread fails.
struct Fetching<'t>(&'t Tokens);

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.state.lock_anyway().fetching = false;
        self.0.fetched.notify_all();
    }
}

impl Tokens {
    pub fn new() -> Tokens {
        let state = Mutex::new(Rank::Etcd, State::default());
        Tokens { state, fetched: Condvar::new() }
    }

    /// The token. Without one a thread fetches it, and others wait for that.
    pub fn get(
        &self,
        deadline: Instant,
        fetch: impl FnOnce() -> Result<Token, Failed>,
    ) -> Result<Token, Failed> {
        let left = deadline.saturating_duration_since(Instant::now());
        let state = self.state.lock();
        let (mut state, late) =
            self.fetched.wait_timeout_while(state, left, |s| s.token.is_none() && s.fetching);
        if late {
            return Err(Failed::Passing("no token came in time".into()));
        }
        if state.token.is_some() {
            return Ok(state.token.clone());
        }
        state.fetching = true;
        drop(state);
        let fetching = Fetching(self);
        let token = fetch()?;
        self.state.lock().token.clone_from(&token);
        drop(fetching);
        Ok(token)
    }

    /// Forgets a token that etcd does not take. A newer one stays.
    pub fn forget(&self, token: Option<&str>) {
        let mut state = self.state.lock();
        if state.token.as_deref() == token {
            state.token = None;
        }
    }
}
