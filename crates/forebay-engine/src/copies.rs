//! Copies that members of one store keep of each other's dirty files, so that the death of one loses
//! nothing that was synced: [`Copies`] are those that we keep for others, [`Outbox`] tells our partners.

mod outbox;
mod store;

pub use outbox::{Behind, BehindFile, Outbox};
pub use store::{Copies, CopyInfo};
