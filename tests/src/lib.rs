//! The harness of the system tests: test beds, processes, trees, journals.
//!
//! A test lays a [`Bed`] (a backing directory, a fast tier on a chosen file system, a mount point), mounts it
//! through the `forebay` command and nothing else, and checks the results. The `Drop` of a bed removes everything
//! that it has mounted, attached or started, and only that.
//!
//! Environment: `FOREBAY_BIN` names the binary (default: `forebay` of the build the test belongs to).
//! `FOREBAY_TEST_PLAIN=1` bind-mounts the backing directory instead of running forebay: a failure then is a mistake
//! in the test. `FOREBAY_SOAK=SECONDS` runs the long versions, with seeds moved on by `FOREBAY_SEED`. Beds are laid
//! in `FOREBAY_TEST_DIR` (default `/var/tmp`).
pub mod acl;
mod bed;
mod cli;
pub mod cluster;
pub mod disk;
pub mod etcd;
mod faults;
pub mod images;
pub mod journal;
pub mod lives;
pub mod names;
pub mod nbd;
pub mod node;
pub mod ops;
pub mod plain;
mod ports;
pub mod postgres;
mod procs;
mod rng;
pub mod sample;
pub mod slurm;
pub mod squash;
mod switch;
pub mod sys;
pub mod tree;
pub mod uml;
pub mod user;
mod wait;

pub use bed::{Bed, Foreground, Mounted, Tier, drop_caches, text, while_busy};
pub use cli::{Out, binary, binary_mentions, finish, forebay, forebay_env, tool, tool_in};
pub use faults::Faults;
pub use ports::free_port;
pub use procs::{Proc, is_alive, is_root, kill, open_fds, rss_kib, stop, user_ids};
pub use rng::{Rng, fill};
pub use switch::Switch;
pub use wait::{PATIENCE, eventually, seed, soak, within};

use std::io::Write;

/// Prints a line that the test runner must not swallow.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Leaves a test, with the reason why it cannot run.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::say(&format!("SKIPPED: {}: {}", $crate::test_name(), format!($($why)*)));
        return;
    }};
}

/// States what a test did, so that a test that did nothing shows.
#[macro_export]
macro_rules! proof {
    ($($what:tt)*) => {
        $crate::say(&format!("proof: {}: {}", $crate::test_name(), format!($($what)*)))
    };
}

/// The running test, as libtest names its thread.
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("test").to_string()
}

/// Leaves the test unless it runs as root with forebay itself (not in plain mode).
#[macro_export]
macro_rules! needs_forebay {
    () => {
        if !$crate::is_root() {
            $crate::skip!("needs root");
        }
        if $crate::plain::on() {
            $crate::skip!("plain mode has no forebay");
        }
    };
}

/// Leaves the test unless it runs as root and the commands are installed.
#[macro_export]
macro_rules! needs_tools {
    ($($tool:expr),*) => {
        if !$crate::is_root() {
            $crate::skip!("needs root");
        }
        $(if !$crate::sys::on_path($tool) {
            $crate::skip!("{} is not installed (see tests/packages.txt)", $tool);
        })*
    };
}
