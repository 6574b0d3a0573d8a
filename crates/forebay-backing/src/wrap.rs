//! Stores around stores. Each wrapper is a [`Layer`]: one hook that sees every call; the
//! delegation itself is written once, in [`Wrapped`].
//!
//! Order matters: outermost first, `Meter(Retry(Throttle(Fault(DirStore))))` measures the calls as
//! the engine sees them and retries the injected faults.

mod clock;
pub mod fault;
mod file;
mod layer;
mod meter;
mod retry;
mod store;
mod throttle;

pub use clock::{Clock, Monotonic};
pub use fault::{Fault, FaultHandle, FaultRule, FaultRules};
pub use layer::{Call, Done, Layer, Parting, Verb};
pub use meter::Meter;
pub use retry::{Retry, RetryPolicy};
pub use store::Wrapped;
pub use throttle::{DISK_BYTES, Limits, Seeks, Throttle};

#[cfg(test)]
mod tests;
