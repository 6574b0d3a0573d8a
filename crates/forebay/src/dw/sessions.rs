//! Cray's sessions: the instances of one job, or one named instance. They are read from the files that the
//! node daemon writes for hooks, and from the daemon if it answers.

use std::path::PathBuf;

use forebay_base::{Error, Result};
use forebay_node::config::SPOOL;
use forebay_node::job::Phase;
use forebay_node::records::{Instance, Mode, State, Want};
use serde::Deserialize;

use crate::node::client::NodeClient;
use crate::node::wire::{InstanceView, JobView};

/// One instance, on all its nodes.
pub struct Piece {
    pub id: u32,
    pub label: String,
    pub bytes: u64,
    pub nodes: usize,
    /// Seconds since 1970; 0 is never.
    pub expires: u64,
    pub cache: bool,
    pub swap: bool,
    pub ready: bool,
}

pub struct Session {
    pub id: u32,
    pub token: String,
    pub owner: u32,
    pub created: u64,
    pub nodes: Vec<String>,
    /// Whether the session is to stay.
    pub stays: bool,
    pub pieces: Vec<Piece>,
}

pub struct Sessions(pub Vec<Session>);

/// An entry of `persistent.json`.
#[derive(Deserialize)]
struct Persistent {
    name: String,
    mode: String,
    nodes: Vec<String>,
    uid: u32,
    bytes: u64,
    created: u64,
    expires: Option<u64>,
}

impl Sessions {
    /// Named instances are read from the file, so that Slurm, which forgets instances that it does not see,
    /// sees them even while the daemon is replaced.
    pub fn known() -> Result<Sessions> {
        let spool =
            std::env::var_os("FOREBAY_SPOOL").map_or_else(|| PathBuf::from(SPOOL), Into::into);
        let file = spool.join("persistent.json");
        let text = std::fs::read(&file).map_err(|e| {
            Error::io(
                e,
                format!("{}: does forebay-node run here, with [scheduler]?", file.display()),
            )
        })?;
        let named: Vec<Persistent> = serde_json::from_slice(&text)
            .map_err(|e| Error::os(libc::EIO, format!("{}: {e}", file.display())))?;
        let client = NodeClient::of_environment();
        // Without an answer jobs are left out: Slurm has its own list of them.
        let jobs: Vec<JobView> = client.get("/v1/jobs").unwrap_or_default();
        let jobs = jobs.into_iter().filter(|view| view.job.phase != Phase::TornDown);
        let all = named.into_iter().map(Session::named).chain(jobs.map(Session::of_job));
        Ok(Sessions(all.collect()))
    }
}

impl Session {
    fn named(record: Persistent) -> Session {
        let piece = Piece {
            id: number_of(&record.name),
            label: record.name.clone(),
            bytes: record.bytes.saturating_mul(record.nodes.len() as u64),
            nodes: record.nodes.len(),
            expires: record.expires.unwrap_or(0),
            cache: record.mode == Mode::Cache.name(),
            swap: record.mode == Mode::Swap.name(),
            ready: true,
        };
        Session {
            id: piece.id,
            token: record.name,
            owner: record.uid,
            created: record.created,
            nodes: record.nodes,
            stays: true,
            pieces: vec![piece],
        }
    }

    fn of_job(view: JobView) -> Session {
        Session {
            id: number_of(&view.job.key.name()),
            token: view.job.key.id,
            owner: view.job.owner.uid,
            created: view.job.created,
            nodes: view.job.nodes,
            stays: view.instances.iter().all(|view| view.wanted.want == Want::Here),
            pieces: view.instances.iter().map(Piece::of).collect(),
        }
    }
}

impl Piece {
    fn of(view: &InstanceView) -> Piece {
        let Instance { id, capacity, nodes, mode, .. } = &view.wanted;
        let ready = |node| view.actual.get(node).is_some_and(|there| there.state == State::Ready);
        Piece {
            id: number_of(id),
            label: id.clone(),
            bytes: capacity.saturating_mul(nodes.len() as u64),
            nodes: nodes.len(),
            expires: 0,
            cache: *mode == Mode::Cache,
            swap: *mode == Mode::Swap,
            ready: nodes.iter().all(ready),
        }
    }
}

/// The number of a name: Slurm wants numbers, the same in every call. This is FNV-1a, folded into 31 bits
/// and never 0; two names of a cluster with the same number would be shown as one.
fn number_of(name: &str) -> u32 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let folded = (hash ^ (hash >> 31)) & 0x7fff_ffff;
    u32::try_from(folded).expect("31 bits").max(1)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn sessions() -> Sessions {
        let text = r#"[{"name":"set","mode":"private","nodes":["n1","n2"],"uid":7,"bytes":1024,
            "created":3,"expires":null}]"#;
        let named: Vec<Persistent> = serde_json::from_str(text).unwrap();
        Sessions(named.into_iter().map(Session::named).collect())
    }

    #[test]
    fn a_named_instance_is_a_session_of_its_name() {
        let Sessions(all) = sessions();
        assert_eq!((all[0].token.as_str(), all[0].owner, all[0].pieces[0].bytes), ("set", 7, 2048));
        assert_eq!(all[0].id, number_of("set"));
        assert_ne!(number_of("set"), number_of("set2"));
        assert_ne!(number_of(""), 0);
    }
}
