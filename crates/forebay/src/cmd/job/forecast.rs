//! How long a plan's transfers take at given rates, and which hooks exceed Slurm's limits.

use forebay_job::plan::{Direction, Of, Plan, Space, Staging};
use serde::Serialize;

use super::rates::{Rate, Rates};
use super::sources::Counted;
use crate::burst_conf::BurstConf;
use crate::units::{human_rate, human_secs};

/// The hook that a transfer runs in, which has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// Before nodes are known: named instances are filled.
    DataIn,
    /// On the job's nodes, before the job begins.
    PreRun,
    /// When the job has ended.
    DataOut,
}

#[derive(Debug, Clone, Serialize)]
pub struct Load {
    pub hook: Hook,
    pub setting: &'static str,
    pub limit_secs: u64,
    pub secs: f64,
    /// The time is an upper bound: the size of a stage-out is not known before the job, so the space's size counts.
    pub at_most: bool,
    /// The line of the first directive that runs in the hook.
    pub line: u32,
}

impl Hook {
    pub fn of(staging: &Staging) -> Hook {
        match (staging.direction, &staging.of) {
            (Direction::In, Of::Persistent(_)) => Hook::DataIn,
            (Direction::In, Of::Job(_)) => Hook::PreRun,
            (Direction::Out, _) => Hook::DataOut,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Hook::DataIn => "data-in",
            Hook::PreRun => "pre-run",
            Hook::DataOut => "data-out",
        }
    }

    fn limit(self, conf: &BurstConf) -> (&'static str, u64) {
        match self {
            Hook::DataIn => ("StageInTimeout", conf.stage_in_secs),
            Hook::PreRun => ("OtherTimeout", conf.other_secs),
            Hook::DataOut => ("StageOutTimeout", conf.stage_out_secs),
        }
    }
}

/// The load of each hook on one node, with its transfers one after the other.
pub fn loads(
    plan: &Plan,
    counted: &[Option<Counted>],
    rates: &Rates,
    conf: &BurstConf,
) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    let mut emptied: Vec<&str> = Vec::new();
    for (staging, counted) in plan.transfers.iter().zip(counted) {
        let hook = Hook::of(staging);
        let secs = match (staging.direction, &staging.of) {
            (Direction::In, _) => {
                counted.as_ref().map_or(0.0, |counted| rates.secs(&rates.stage_in, counted))
            }
            // A space gives no more than it holds, however many lines stage out of it.
            (Direction::Out, Of::Job(name)) if !emptied.contains(&name.as_str()) => {
                emptied.push(name);
                let all = whole(plan, name).map(all_of);
                all.map_or(0.0, |all| rates.secs(&rates.stage_out, &all))
            }
            (Direction::Out, _) => 0.0,
        };
        match loads.iter_mut().find(|load| load.hook == hook) {
            Some(load) => load.secs += secs,
            None => {
                let (setting, limit_secs) = hook.limit(conf);
                let at_most = hook == Hook::DataOut;
                let line = staging.line;
                loads.push(Load { hook, setting, limit_secs, secs, at_most, line });
            }
        }
    }
    loads.sort_by_key(|load| load.hook);
    loads
}

fn whole<'p>(plan: &'p Plan, name: &str) -> Option<&'p Space> {
    plan.instances.iter().find(|space| space.name == name)
}

fn all_of(space: &Space) -> Counted {
    Counted { bytes: space.bytes, ..Counted::default() }
}

impl Load {
    /// If the limit is too short: the problem, and what to change.
    pub fn complaint(&self, rates: &Rates) -> Option<(String, String)> {
        if self.secs <= self.limit_secs as f64 {
            return None;
        }
        let Rate { bytes_per_second, .. } = match self.hook {
            Hook::DataIn | Hook::PreRun => rates.stage_in,
            Hook::DataOut => rates.stage_out,
        };
        let rate = human_rate(bytes_per_second as f64);
        let takes = human_secs(self.secs);
        let (hook, setting, limit) = (self.hook.name(), self.setting, self.limit_secs);
        let text = match self.at_most {
            true => format!(
                "bringing a full space home takes {takes} at {rate}, and Slurm gives {hook} {limit} s"
            ),
            false => {
                format!("filling takes {takes} at {rate}, and Slurm gives {hook} {limit} s")
            }
        };
        // Twice the expected time, since rates are no promise.
        let wanted = ((self.secs * 2.0 / 60.0).ceil() * 60.0) as u64;
        let other = match self.hook {
            Hook::PreRun => {
                "; or keep the data in a named instance (#FB create, #FB use), which is filled before"
            }
            Hook::DataIn => "; or stage less",
            Hook::DataOut => "; what is not home by then goes on, and `forebay manifest` lists it",
        };
        Some((text, format!("ask for {setting}={wanted} in burst_buffer.conf{other}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "#FB private capacity=100GB\n#FB use name=set\n\
        #FB stage_in source=/a destination=$FB_JOB_SCRATCH/a\n\
        #FB stage_in source=/b destination=$FB_JOB_SCRATCH/b\n\
        #FB stage_in source=/c destination=$FB_PERSISTENT_SET/c\n\
        #FB stage_out source=$FB_JOB_SCRATCH/d destination=/d\n\
        #FB stage_out source=$FB_JOB_SCRATCH/e destination=/e\n";

    fn all(conf: &BurstConf) -> Vec<Load> {
        let job = forebay_job::Job { nodes: Some(1), ..Default::default() };
        let plan = forebay_job::read(SCRIPT, &job).plan;
        let one = Some(Counted { files: 1000, bytes: 100_000_000_000, unreadable: 0, whole: true });
        let rates = Rates::of(Some(500_000_000), 100, &[]);
        loads(&plan, &[one, one, one, None, None], &rates, conf)
    }

    #[test]
    fn each_hook_carries_its_transfers() {
        let loads = all(&BurstConf::default());
        let found: Vec<_> = loads.iter().map(|l| (l.hook, l.setting, l.secs, l.line)).collect();
        assert_eq!(
            found,
            [
                (Hook::DataIn, "StageInTimeout", 210.0, 5),
                (Hook::PreRun, "OtherTimeout", 420.0, 3),
                (Hook::DataOut, "StageOutTimeout", 200.0, 6),
            ]
        );
    }

    #[test]
    fn what_does_not_end_in_time_names_the_setting_to_change() {
        let rates = Rates::of(Some(500_000_000), 100, &[]);
        let loads = all(&BurstConf { stage_out_secs: 100, ..BurstConf::default() });
        let told: Vec<_> = loads.iter().filter_map(|load| load.complaint(&rates)).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].0.contains("pre-run 300 s") && told[0].1.contains("OtherTimeout=840"));
        assert!(told[1].0.contains("full space") && told[1].1.contains("StageOutTimeout=420"));
    }
}
