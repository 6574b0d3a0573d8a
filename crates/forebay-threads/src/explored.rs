//! Tests under many schedules: shuttle runs a test's threads as tasks, one at a time, and chooses at each lock which
//! task goes on ([`forebay_base::lock::explored`]).

use std::cell::Cell;

use forebay_base::lock::explored::{Explorer, explore_by};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, MaxSteps, Runner, current, thread};

pub use forebay_base::lock::explored::{point, task};

/// The number of schedules of each kind: a few seconds at most.
const SCHEDULES: usize = 500;

/// The limit of steps in a schedule: far more than any of the tests needs.
const STEPS: usize = 20_000;

/// Runs `test` under many schedules.
pub fn explore(test: impl Fn() + Clone + Send + Sync + 'static) {
    explore_by(&Shuttle);
    run(RandomScheduler::new(SCHEDULES), test.clone());
    run(PctScheduler::new(3, SCHEDULES), test);
}

struct Shuttle;

impl Explorer for Shuttle {
    fn task(&self) -> Option<usize> {
        current::try_get_current_task().map(usize::from)
    }

    fn give_way(&self) {
        thread::yield_now();
    }

    fn has_seen(&self) -> bool {
        SEEN.get()
    }
}

thread_local! {
    /// Whether the test has seen what it waits for.
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    Runner::new(scheduler, config).run(move || {
        SEEN.set(false);
        test();
        SEEN.set(true);
    });
}

/// Starts another task; joining it gives its result.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(work)
}

/// Lets the other tasks go on until the condition holds.
pub fn wait_until(it_is_so: impl Fn() -> bool) {
    while !it_is_so() {
        thread::yield_now();
    }
}
