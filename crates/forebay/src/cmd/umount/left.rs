//! The end of a daemon that is not this command's doing: waiting for it, and what it leaves in its tier.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::{Args, END_PATIENCE, Ended, LOOK_AGAIN, of_place};
use crate::cmd::watch::warn;
use crate::daemons::Drainer;
use crate::http::Client;
use crate::mounts::Place;
use crate::rights;
use crate::ui::progress::{Line, Sample};
use crate::ui::{note, say};
use crate::units::{counted, human_size};
use crate::wire::Leave;

/// The pause between two questions to a daemon that drains.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Waits for the end of a daemon whose mount is gone, and tells what it leaves.
pub fn wait(drainer: &Drainer, args: &Args) -> Result<Ended> {
    let place = &drainer.place;
    let client = Client::new(&place.tier);
    let process = process(&client);
    if args.keep_dirty {
        client.post("/v1/umount", &json!(Leave { keep_dirty: true, ..Leave::default() }))?;
    }
    note!("{}: waiting for its end", drainer.told());
    warn(drainer.status["backing_astray"].as_str());
    let until = args.timeout.map(|timeout| Instant::now() + timeout);
    let (mut line, mut status) = (Line::new("drain"), drainer.status.clone());
    while process.as_ref().is_some_and(|process| !ends_within(process, ASK_AGAIN)) {
        line.update(progress(&drainer.status, &status));
        if until.is_some_and(|until| Instant::now() > until) {
            line.clear();
            let now = Drainer { place: place.clone(), status };
            let text = format!("the time is up: {}", now.told());
            return Err(Error::new(Kind::DirtyAtRisk, text));
        }
        status = client.get("/v1/status").unwrap_or(status);
    }
    line.clear();
    let text = format!("the daemon of the former mount {} has ended", place.mountpoint.display());
    Ok(tell_left(place, args, "ended", text))
}

fn progress(first: &Value, now: &Value) -> Sample {
    let of = |status: &Value, name: &str| status[name].as_u64().unwrap_or(0);
    let done = |name| (of(first, name), of(first, name).saturating_sub(of(now, name)));
    let ((total_bytes, done_bytes), (total_files, done_files)) =
        (done("dirty_bytes"), done("dirty_files"));
    Sample { total_bytes, done_bytes, total_files, done_files, ..Sample::default() }
}

/// The daemon's process; `None` if it has ended.
pub fn process(client: &Client) -> Option<OwnedFd> {
    client.daemon_pid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
}

/// Whether the daemon's process ends in this time: until then it holds the tier's lock.
pub fn ends_within(process: &OwnedFd, patience: Duration) -> bool {
    let limit =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    // An error of poll counts as the end: a later mount reports a tier that is held.
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)) != Ok(0)
}

/// Tells what became of a mount whose daemon is gone, and what its tier still holds.
pub fn tell_left(place: &Place, args: &Args, daemon: &str, told: String) -> Ended {
    let left = Left::look(&place.tier);
    let text = left.text();
    let exit_code = left.exit_code(args.keep_dirty);
    // Fields that a job has as well have the same names and places here.
    let document = json!({
        "kind": "umount",
        "daemon": daemon,
        "dirty": left.dirty(),
        "report": { "left_dirty_files": left.files(), "left_dirty_bytes": left.bytes() },
        "message": text,
        "exit_code": exit_code,
    });
    if !args.json {
        say(told);
        say(match left {
            Left::Nothing => text,
            _ => {
                let tier = place.tier.display();
                format!("{text}; mount it again to go on, or `forebay recover {tier}`")
            }
        });
    }
    Ended { document: of_place(place, document), exit_code }
}

/// The dirty bytes that a dead daemon left in its tier.
enum Left {
    Nothing,
    Dirty {
        files: u64,
        bytes: u64,
    },
    /// The tier cannot be read.
    Unknown(Error),
}

impl Left {
    fn look(tier: &Path) -> Left {
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            match rights::dirty_in(tier) {
                Ok(found) if found.bytes + found.files == 0 => return Left::Nothing,
                Ok(found) => return Left::Dirty { files: found.files, bytes: found.bytes },
                // A dying daemon releases the tier's lock last.
                Err(error) if is_held(&error) && Instant::now() < deadline => {
                    sleep(LOOK_AGAIN);
                }
                Err(error) => return Left::Unknown(error),
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Left::Nothing => "nothing is dirty in the tier".into(),
            Left::Dirty { files, bytes } => {
                let (what, files) = (human_size(*bytes), counted(*files, "file"));
                format!("{what} in {files} are dirty and safe in the tier")
            }
            Left::Unknown(error) => {
                format!("what is dirty in the tier is not known, for it cannot be checked: {error}")
            }
        }
    }

    fn dirty(&self) -> Option<bool> {
        match self {
            Left::Nothing => Some(false),
            Left::Dirty { .. } => Some(true),
            Left::Unknown(_) => None,
        }
    }

    fn files(&self) -> Option<u64> {
        match self {
            Left::Nothing => Some(0),
            Left::Dirty { files, .. } => Some(*files),
            Left::Unknown(_) => None,
        }
    }

    fn bytes(&self) -> Option<u64> {
        match self {
            Left::Nothing => Some(0),
            Left::Dirty { bytes, .. } => Some(*bytes),
            Left::Unknown(_) => None,
        }
    }

    /// 0 if the user asked to keep dirty bytes; 4 for a tier that cannot be read in any case.
    fn exit_code(&self, keep_dirty: bool) -> u8 {
        match self {
            Left::Nothing => 0,
            Left::Dirty { .. } if keep_dirty => 0,
            Left::Dirty { .. } | Left::Unknown(_) => 4,
        }
    }
}

fn is_held(error: &Error) -> bool {
    error.kind() == Kind::InUse
}
