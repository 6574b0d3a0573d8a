//! Acknowledged bytes survive: the daemon killed at random, killed between any two steps, and the
//! power cut.
mod block;
mod damage;
mod failpoints;
mod kill;
mod load;
mod logs;
mod names;
mod power;
mod remount;
mod soak;
