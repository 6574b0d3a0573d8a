//! The members of the cluster: whose turn it is, and the idle connections to each.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use forebay_base::lock::{Mutex, Rank};
use rustls::ClientConfig;

use super::connection::Connection;
use super::name::Name;
use crate::Host;

/// Idle connections to one member beyond this many are closed.
const IDLE_MAX: usize = 32;

pub struct Members {
    hosts: Vec<Host>,
    names: Vec<Name>,
    tls: Option<Arc<ClientConfig>>,
    /// The number of the member that is asked next.
    turn: AtomicUsize,
    /// Of each member.
    idle: Mutex<Vec<Vec<Connection>>>,
}

impl Members {
    pub fn new(hosts: &[Host], tls: Option<Arc<ClientConfig>>) -> Members {
        let names = hosts.iter().map(|host| Name::new(host.bare_name(), host.port)).collect();
        let idle = hosts.iter().map(|_| Vec::new()).collect();
        let idle = Mutex::new(Rank::Etcd, idle);
        Members { hosts: hosts.to_vec(), names, tls, turn: AtomicUsize::new(0), idle }
    }

    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    pub fn host(&self, member: usize) -> &Host {
        &self.hosts[member]
    }

    pub fn tls(&self) -> Option<&Arc<ClientConfig>> {
        self.tls.as_ref()
    }

    /// The member whose turn it is.
    pub fn turn(&self) -> usize {
        self.turn.load(Relaxed)
    }

    /// Leaves a member that failed for the next one. The only one keeps its other connections: one slow
    /// answer says nothing about them.
    pub fn leave(&self, member: usize) {
        if self.hosts.len() == 1 {
            return;
        }
        // Another thread may have left the member already.
        let next = (member + 1) % self.hosts.len();
        let _ = self.turn.compare_exchange(member, next, Relaxed, Relaxed);
        let gone = std::mem::take(&mut self.idle.lock()[member]);
        drop(gone);
    }

    pub fn open(&self, member: usize, deadline: Instant) -> io::Result<Connection> {
        let addresses = self.addresses(member, deadline)?;
        Connection::open(&self.hosts[member], &addresses, self.tls.as_ref(), deadline)
    }

    pub fn addresses(&self, member: usize, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        self.names[member].addresses(deadline)
    }

    /// Takes an idle connection to a member.
    pub fn idle(&self, member: usize) -> Option<Connection> {
        self.idle.lock()[member].pop()
    }

    /// Keeps a connection for the next call.
    pub fn keep(&self, member: usize, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle[member].len() < IDLE_MAX && connection.is_free() {
            idle[member].push(connection);
        }
    }
}
