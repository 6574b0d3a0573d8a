//! Copies that members of one store keep of each other's dirty files, so that the death of one member
//! loses nothing that was synced: [`Copies`] holds the copies kept here, [`Outbox`] sends to partners.

mod ahead;
mod fill;
mod of_home;
mod outbox;
mod round;
mod store;
mod telling;

pub use of_home::Told;
pub(crate) use outbox::Lasting;
pub use outbox::{Behind, BehindFile, Outbox};
pub use store::{Copies, CopyInfo, Teller};
pub(crate) use telling::Telling;
