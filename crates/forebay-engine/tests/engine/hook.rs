//! A backing store that runs a test's code in the middle of its calls.

use std::sync::{Arc, Mutex};

use forebay_backing::wrap::{Call, Done, Layer, Verb, Wrapped};
use forebay_backing::{BackingStore, Result};

type Act = Box<dyn FnMut(&Call<'_>) + Send>;

/// Acts before each call to the store, or after it, except for calls that the act itself makes, or
/// that others make meanwhile. It ignores closes of files, which come at any time on threads of
/// their own.
#[derive(Default)]
pub struct Hook {
    before: Mutex<Option<Act>>,
    after: Mutex<Option<Act>>,
}

impl Hook {
    pub fn on(store: impl BackingStore + 'static) -> (Arc<Wrapped<Hook>>, Arc<Hook>) {
        let hook = Arc::new(Hook::default());
        (Wrapped::new(Arc::new(store), hook.clone()), hook)
    }

    pub fn set(&self, act: impl FnMut(&Call<'_>) + Send + 'static) {
        *self.before.lock().expect("no panic inside") = Some(Box::new(act));
    }

    pub fn set_after(&self, act: impl FnMut(&Call<'_>) + Send + 'static) {
        *self.after.lock().expect("no panic inside") = Some(Box::new(act));
    }
}

fn act_on(call: &Call<'_>, place: &Mutex<Option<Act>>) {
    let act = place.lock().expect("no panic inside").take();
    if let Some(mut act) = act {
        act(call);
        place.lock().expect("no panic inside").get_or_insert(act);
    }
}

impl Layer for Hook {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        if call.verb == Verb::Close {
            return run();
        }
        act_on(call, &self.before);
        let done = run();
        act_on(call, &self.after);
        done
    }
}
