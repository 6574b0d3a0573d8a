//! The end of a job on one of its nodes: its processes are gone, and its files are complete.

use std::path::Path;

use forebay_base::{Error, Kind, Result};
use serde_json::Value;

use super::phases::Answer;
use super::record::{Job, Phase, Released};
use crate::Book;
use crate::book::Listed;
use crate::clock::now;
use crate::records::{Instance, Life, check_name, keys};

/// What to do about processes of a job that still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Wait,
    /// The wait is over: the record names the processes.
    Over,
}

/// Records that the job has left this node, once no process uses its instances here. `users` returns the users of a
/// mount.
pub fn release(
    book: &Book,
    node: &str,
    id: &str,
    patience: Patience,
    users: impl Fn(&Path) -> Vec<String>,
) -> Result<Answer> {
    check_name("job", id)?;
    let all: Listed<Job> = book.list_some(keys::JOBS)?;
    let is_newer = all.unread.iter().any(|(at, job)| may_be_of(at, id) && !is_elsewhere(job, node));
    let here = all.read.into_iter().map(|(_, job)| job).filter(|job| {
        job.key.id == id && job.phase < Phase::TornDown && job.nodes.iter().any(|name| name == node)
    });
    let jobs: Vec<Job> = here.collect();
    let instances: Vec<(String, Instance)> = book.list_some(keys::WANTED_INSTANCES)?.read;
    for job in &jobs {
        let of_it = instances
            .iter()
            .map(|(_, instance)| instance)
            .filter(|instance| matches!(&instance.life, Life::Job(key) if *key == job.key));
        let holders: Vec<String> =
            of_it.filter_map(|instance| instance.mountpoint.as_deref()).flat_map(&users).collect();
        if !holders.is_empty() && patience == Patience::Wait {
            return Ok(Answer::Wait(format!("for {}", holders.join(", "))));
        }
        let released = Released { at: now(), holders };
        book.put(&keys::released(&job.key, node), &released)?;
    }
    match jobs.is_empty() {
        _ if is_newer => {
            let why =
                format!("job {id} is of a newer forebay than that of node {node}: upgrade it");
            Err(Error::new(Kind::Unavailable, why))
        }
        true => Err(Error::new(Kind::Usage, format!("job {id} has nothing on node {node}"))),
        false => Ok(Answer::Done("released".into())),
    }
}

/// Whether a record that a newer forebay wrote may be this job's: its key is `CLUSTER/ID/INCARNATION`, whatever the
/// record itself has; which cluster the ended job belongs to is unknown here.
fn may_be_of(at: &str, id: &str) -> bool {
    at.split('/').nth(1).is_none_or(|of| of == id)
}

/// Whether a newer forebay's record is certainly of other nodes: where its nodes can be read, the job is on these
/// alone.
pub fn is_elsewhere(job: &Value, node: &str) -> bool {
    let nodes = job["nodes"].as_array().filter(|nodes| nodes.iter().all(Value::is_string));
    nodes.is_some_and(|nodes| nodes.iter().all(|other| *other != *node))
}
