//! The drain governor against a simulated tier, backing store and thousands of loads from seeds:
//! its promises are checked, and so are the checks.
//!
//! The simulated world is a fluid one, in ticks of a tenth of a second, and has its own books: it
//! shares no code with the engine but the governor itself.

mod bites;
mod checks;
mod deadline;
mod demands;
mod disk;
mod forecast;
mod head;
mod load;
mod order;
mod presets;
#[path = "../engine/rng.rs"]
mod rng;
mod stability;
mod world;
