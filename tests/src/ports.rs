//! Ports for servers that must be told one.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Below those that the kernel gives to whoever does not ask for one: nobody gets it between here
/// and its use, and who waits for the server does not meet himself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 16_000;

/// A port of the loopback that was free a moment ago, and another one each time.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two processes that run these tests at once begin at different places.
    let from = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut candidates = (0..COUNT).map(|_| {
        let at = from + u32::from(NEXT.fetch_add(1, Relaxed));
        FIRST + (at % u32::from(COUNT)) as u16
    });
    candidates.find(is_free).expect("a free port")
}
