//! The command in a person's hands: names that are not there, and what else a day brings.

mod bench;
mod missing;
mod over;
mod refused;
mod several;
mod texts;
mod told;
mod undone;
