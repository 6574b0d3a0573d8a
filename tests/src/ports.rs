//! Ports for servers that need a fixed one.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Below the ports that the kernel gives out by itself: no other program gets the port before it is
/// used, and a client that waits for the server does not connect to itself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 16_000;

/// A port of the loopback that was free a moment ago, a different one each time.
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
