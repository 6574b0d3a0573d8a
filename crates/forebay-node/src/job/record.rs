//! The registry's records of a job.

use std::path::{Path, PathBuf};

use forebay_base::{Error, Kind, Result};
use forebay_job::plan::{Direction, Of, Plan, Space, value_of};
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::desk::place_for;
use crate::records::{Instance, JobKey, Mode, Owner};

/// The phase of a job. Phases come in this order, and may be skipped only towards the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    SetUp,
    /// The job's instances are ready and filled, or become so; from here on the job may have run.
    Ready,
    /// The job has ended; its stage-outs are carried out.
    Ended,
    /// The scheduler has forgotten the job. The record goes when the job's instances are gone.
    TornDown,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::SetUp => "set up",
            Phase::Ready => "ready",
            Phase::Ended => "ended",
            Phase::TornDown => "torn down",
        }
    }
}

/// How a job ended, as far as the scheduler says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    Success,
    Failure,
    Unknown,
}

/// `wanted/jobs/CLUSTER/ID/INCARNATION`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub key: JobKey,
    pub owner: Owner,
    pub plan: Plan,
    pub phase: Phase,
    /// The nodes on which the job runs; known when it is about to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When the scheduler first said that the job has ended, or is to be torn down; seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<u64>,
    /// How the job ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// When the phase began, seconds since 1970.
    pub since: u64,
    /// Seconds since 1970.
    pub created: u64,
}

/// `actual/jobs/CLUSTER/ID/INCARNATION/NODE`: no process of the job uses its instances on that node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Seconds since 1970.
    pub at: u64,
    /// Processes that still used them when the time was over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
}

impl Job {
    /// The id of one of the job's instances.
    pub fn instance(&self, space: &Space) -> String {
        format!("{}-{}", self.key.name(), space.name)
    }

    /// The variables by which the job finds its instances, with their values.
    pub fn variables(&self, places: &Places<'_>) -> Vec<(String, String)> {
        let own = self.plan.instances.iter().map(|space| {
            let at = places.of_new(&self.instance(space), space.mode, self.owner);
            (&space.variables, at)
        });
        let used = self.plan.uses.iter().map(|used| (&used.variables, places.of(&used.name)));
        let values = own.chain(used).flat_map(|(names, at)| {
            names.iter().map(move |name| (name.clone(), value_of(name, &at)))
        });
        values.collect()
    }

    /// Enters a phase; never goes back.
    pub fn enter(&mut self, phase: Phase) {
        if self.phase < phase {
            self.phase = phase;
            self.since = now();
        }
    }

    /// Refuses an order for the job's run: the run is over, and the step that ends it would not see the
    /// order.
    pub fn require_open(&self) -> Result<()> {
        match self.ending.is_none() && self.phase < Phase::Ended {
            true => Ok(()),
            false => {
                let why = format!("job {} has ended, and gets nothing new", self.key.id);
                Err(Error::new(Kind::Usage, why))
            }
        }
    }

    /// Whether the job's plan stages files out of a named instance.
    pub fn stages_out_of(&self, name: &str) -> bool {
        self.plan.transfers.iter().any(|staging| {
            staging.direction == Direction::Out
                && matches!(&staging.of, Of::Persistent(of) if of == name)
        })
    }

    /// Whether a repeated setup asks for the same.
    pub fn is_the_same(&self, owner: Owner, plan: &Plan) -> bool {
        self.owner == owner && self.plan == *plan
    }
}

/// The mount points of instances.
pub struct Places<'a> {
    pub mount_root: &'a Path,
    /// The existing instances.
    pub instances: &'a [Instance],
}

impl Places<'_> {
    /// The mount point of an instance that may still have to be made.
    fn of_new(&self, id: &str, mode: Mode, owner: Owner) -> PathBuf {
        place_for(self.mount_root, id, mode, owner).unwrap_or_else(|| self.mount_root.join(id))
    }

    /// The mount point of an instance that was made before.
    fn of(&self, id: &str) -> PathBuf {
        let found = self.instances.iter().find(|instance| instance.id == id);
        let shows = found.and_then(|instance| instance.mountpoint.clone());
        shows.unwrap_or_else(|| self.mount_root.join(id))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_job::plan::{Mode, Use};

    use super::*;

    pub fn space(name: &str, mode: Mode) -> Space {
        Space {
            name: name.into(),
            mode,
            pool: None,
            bytes: 1 << 20,
            total: None,
            backing: None,
            settings: Default::default(),
            fs: None,
            variables: vec!["DW_JOB_STRIPED".into(), "TMPDIR".into()],
            line: 1,
        }
    }

    pub fn job(incarnation: u32) -> Job {
        Job {
            key: JobKey { cluster: "c".into(), id: "17".into(), incarnation },
            owner: Owner { uid: 1000, gid: 1000 },
            plan: Plan {
                instances: vec![space("striped", Mode::Private)],
                uses: vec![Use { name: "set".into(), variables: vec!["DW_P".into()], line: 2 }],
                ..Plan::default()
            },
            phase: Phase::SetUp,
            nodes: Vec::new(),
            ending: None,
            ended: None,
            since: 0,
            created: 0,
        }
    }

    #[test]
    fn each_run_of_a_job_finds_instances_of_its_own() {
        let places = Places { mount_root: Path::new("/m"), instances: &[] };
        let values = |n| job(n).variables(&places);
        let first = ("DW_JOB_STRIPED".to_string(), "/m/job-17-striped/".to_string());
        assert_eq!(values(1)[0], first);
        assert_eq!(values(1)[1], ("TMPDIR".into(), "/m/job-17-striped".into()));
        assert_eq!(values(2)[0].1, "/m/job-17-r2-striped/");
        assert_eq!(values(2)[2], ("DW_P".into(), "/m/set/".into()));
    }
}
