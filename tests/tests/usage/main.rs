//! The command in daily use: missing names, and other common mistakes.

mod astray;
mod bench;
mod drainers;
mod missing;
mod over;
mod refused;
mod several;
mod texts;
mod told;
mod undone;
