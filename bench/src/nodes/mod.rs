//! `forebay-perf nodes`: several nodes with one store, on this host.
//!
//! Each node is a network namespace with a tier and a mount of its own; three members of etcd, on hosts of
//! their own, are their registry. The judged values are ratios to bare TCP between the same namespaces, to
//! the same mount without a registry, or to the same work on one node.

mod between;
mod cluster;
mod copies;
mod gluster;
mod layouts;
mod many;
mod net;
mod nfs;
mod one;
mod share;
mod tcp;

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use net::Host;

use crate::parts::{Options, Part, Plain};

const PARTS: [Part<Plain>; 13] = [
    Part {
        name: "resident",
        about: "bytes of one node's own tier, with a registry and without",
        work: one::resident,
    },
    Part {
        name: "create",
        about: "files made in a directory after the first, with a registry and without",
        work: one::create,
    },
    Part {
        name: "open",
        about: "open, read, close of a small cached file, with a registry and without",
        work: one::open,
    },
    Part {
        name: "elsewhere",
        about: "a file at another node's home, beside bare TCP between the same hosts",
        work: between::bytes,
    },
    Part {
        name: "stat",
        about: "stat of a file that another node writes, beside a bare round trip",
        work: between::stat,
    },
    Part {
        name: "nfs",
        about: "a file at another node's home, beside an NFS server there",
        work: nfs::run,
    },
    Part {
        name: "gluster",
        about: "bytes and small files between two nodes, beside GlusterFS there",
        work: gluster::run,
    },
    Part {
        name: "files",
        about: "four nodes that write a file each, or one together, beside four writers on one node",
        work: many::run,
    },
    Part {
        name: "ior",
        about: "IOR's layout by `forebay bench`, each byte verified from another node",
        work: layouts::ior,
    },
    Part {
        name: "mdtest",
        about: "mdtest's layout by `forebay bench`, each file verified from another node",
        work: layouts::mdtest,
    },
    Part {
        name: "copies",
        about: "write and fsync with a copy on another node, beside none",
        work: copies::write,
    },
    Part {
        name: "take-over",
        about: "a node dies, and its partner takes its dirty files over",
        work: copies::take_over,
    },
    Part {
        name: "share-reads",
        about: "four nodes read one dataset from the store at once",
        work: share::run,
    },
];

/// The time bound of one part.
const BOUND: Duration = Duration::from_secs(900);

/// Returns whether every target was reached.
pub fn measure(options: &Options) -> Result<bool> {
    crate::parts::measure(options, &PARTS, BOUND, ready)
}

fn ready() -> Result<()> {
    // SAFETY: it takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    ensure!(root, "nodes have networks of their own: run it as root");
    for (tool, version, package) in [("etcd", "--version", "etcd-server"), ("ip", "-V", "iproute2")]
    {
        let found = Command::new(tool).arg(version).stdout(Stdio::null()).status();
        found.with_context(|| format!("{tool} is missing (Debian: {package})"))?;
    }
    Ok(())
}
