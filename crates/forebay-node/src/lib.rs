//! What a node does: the room that it grants on its flash, and what is made of it.

pub mod failpoint;
pub mod space;
pub mod swap;
