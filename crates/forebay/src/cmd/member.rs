//! `forebay member`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Subcommand;
use forebay_backing::{Error, Kind, Result};
use serde_json::{Value, json};

use super::umount;
use super::watch::{tell_failures, watch};
use crate::http::Client;
use crate::mounts::Mounts;
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_secs, human_size, parse_duration};
use crate::wire::{Job, MissingFile};

const EXAMPLES: &str = "\
Examples:
  forebay member drain /mnt/fast n3
  forebay member missing /mnt/fast
  forebay member stopped /mnt/fast n3 --confirm n3
  forebay member give-up /mnt/fast n3 runs/7 --confirm n3
  forebay member give-up /mnt/fast n3 --confirm n3
  forebay member give-up /mnt/fast n3 --confirm n3 --confirm n5
  forebay member remove /mnt/fast n3

MOUNT is a mount of the store on any node that is alive. Members and their state are listed by
`forebay status --cluster MOUNT`.

What a dead member has not brought home and no other member has copies of is with its tier alone: mount
that again, there or on another machine (with the same --node), and all of it is back. Only if the flash
is lost, give the bytes up: then what the backing store has counts. If the member comes back all the same,
it keeps its bytes aside as conflicts. Where a member that is away has copies (n5 above), mount that: it
takes the dead one's place. If it is lost, too, confirm its name besides.";

const DRAIN: &str = "\
Examples:
  forebay member drain /mnt/fast n3
  forebay member drain /mnt/fast n3 --timeout 5min

It is as if `forebay umount` had been typed on the member's node. If its mount is in use, or not all can be
flushed, it stays mounted as it was, and nothing is lost: exit code 1 or 4. Ctrl-C calls it off. Mounted
again it is a member as before. A member that has left before, and holds nothing, is out: exit code 0.";

const MISSING: &str = "\
Examples:
  forebay member missing /mnt/fast
  forebay member missing /mnt/fast --member n3 --json";

const STOPPED: &str = "\
Examples:
  forebay member stopped /mnt/fast n3 --confirm n3

Say it only if the machine is off, or cut off from the store: otherwise it may still write to files that
another member has taken over. Those files are then compared with the store, and flushed again where they
differ.";

const GIVE_UP: &str = "\
Examples:
  forebay member give-up /mnt/fast n3 runs/7 --confirm n3
  forebay member give-up /mnt/fast n3 --confirm n3
  forebay member give-up /mnt/fast n3 --confirm n3 --confirm n5

`forebay member missing` lists what would be given up. A partner that is away and may have copies (n5
above) is confirmed besides: mounted again, it would take the dead member's place.";

const REMOVE: &str = "\
Examples:
  forebay member remove /mnt/fast n3

A member that holds files, or is named as a partner of another, is refused.";

/// Take a member out of a store that several nodes share; decide what becomes of a dead one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Take a member out, wherever it is: it flushes what it has, gives its claims back and unmounts.
    Drain(Drain),
    /// List the files whose newest bytes are with a member, not on the backing store.
    #[command(after_help = MISSING)]
    Missing(Missings),
    /// Say that a dead member has stopped for certain: its machine is off, or cut off from the store.
    #[command(after_help = STOPPED)]
    Stopped(Of),
    /// Give up what a dead member has not brought home: the store's bytes count then.
    #[command(after_help = GIVE_UP)]
    GiveUp(GiveUp),
    /// Take a dead member that holds nothing out for good: its name is free for another tier.
    #[command(after_help = REMOVE)]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
#[command(after_help = DRAIN)]
struct Drain {
    /// A mount point, or any path in the mount.
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// The member's name.
    name: String,
    /// Stop draining after this time; it stays mounted.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Missings {
    /// A mount point, or any path in the mount.
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// Only this member.
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
    /// Print the files as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Of {
    /// A mount point, or any path in the mount.
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// The member's name.
    name: String,
    /// The name once more: this cannot be undone.
    #[arg(long, value_name = "NAME")]
    confirm: Vec<String>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct GiveUp {
    #[command(flatten)]
    of: Of,
    /// Files or directories, below the store's root [default: all its files].
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// A mount point, or any path in the mount.
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// The member's name.
    name: String,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.what {
        What::Drain(args) => drain(args),
        What::Missing(args) => missing(args),
        What::Stopped(of) => {
            let partners = confirmed(of)?;
            if let Some(other) = partners.first() {
                let what =
                    format!("--confirm {other}: it is {} that is said to have stopped", of.name);
                return Err(Error::new(Kind::Usage, what));
            }
            let answer = post(&of.mountpoint, "stopped", &json!({ "member": of.name }))?;
            told(of.json, &answer, || format!("{}: has stopped, the registry knows", of.name));
            Ok(0)
        }
        What::GiveUp(args) => {
            let without = confirmed(&args.of)?;
            let (name, paths) = (&args.of.name, &args.paths);
            let body = json!({ "member": name, "paths": paths, "without": without });
            let answer = post(&args.of.mountpoint, "give-up", &body)?;
            let paths = answer["given_up"].as_array().map_or(0, Vec::len);
            told(args.of.json, &answer, || {
                let files = counted(paths as u64, "file");
                format!("{}: {files} given up: the backing store's bytes count", args.of.name)
            });
            Ok(0)
        }
        What::Remove(args) => {
            let answer = post(&args.mountpoint, "remove", &json!({ "member": args.name }))?;
            told(args.json, &answer, || format!("{}: is a member no more", args.name));
            Ok(0)
        }
    }
}

/// The other names given with `--confirm`; an error if the member's own name is not among them.
fn confirmed(of: &Of) -> Result<Vec<&String>> {
    match of.confirm.contains(&of.name) {
        true => Ok(of.confirm.iter().filter(|name| **name != of.name).collect()),
        false => Err(Error::new(
            Kind::Usage,
            format!(
                "this cannot be undone: give the member's name once more, --confirm {}",
                of.name
            ),
        )),
    }
}

fn post(mountpoint: &std::path::Path, what: &str, body: &Value) -> Result<Value> {
    let place = Mounts::read()?.daemon_of(mountpoint)?;
    Client::new(&place.tier).post(&format!("/v1/cluster/{what}"), body)
}

fn told(json: bool, answer: &Value, text: impl Fn() -> String) {
    match json {
        true => say_json(answer),
        false => say(text()),
    }
}

fn drain(args: &Drain) -> Result<u8> {
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let client = Client::new(&place.tier);
    if client.get("/v1/status")?["cluster"]["member"] == args.name.as_str() {
        return umount::of(&place, args.timeout, args.json);
    }
    let timeout = args.timeout.map(|timeout| timeout.as_secs_f64());
    let body = json!({ "member": args.name, "timeout_secs": timeout });
    let answer = client.post("/v1/cluster/drain", &body)?;
    let Some(id) = answer["id"].as_u64() else {
        told(args.json, &answer, || format!("{}: has left before, and holds nothing", args.name));
        return Ok(0);
    };
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout + umount::GRACE);
    let job = watch(&client, id, "drain", deadline)?;
    match args.json {
        true => say_json(&job),
        false => tell_drained(&args.name, &job, &place.mountpoint),
    }
    Ok(job.exit_code.unwrap_or(0))
}

fn tell_drained(name: &str, job: &Job, at: &Path) {
    let report = job.report.clone().unwrap_or_default();
    tell_failures(&report.failures, Some(at));
    match &job.error {
        Some(error) => note!("{error}"),
        None if report.files == 0 => say(format!("{name}: nothing was dirty; unmounted")),
        None => say(format!(
            "{name}: drained {} in {}, unmounted in {}",
            human_size(job.moved_bytes()),
            counted(report.files, "file"),
            human_secs(job.elapsed_secs)
        )),
    }
}

/// Lists the missing files; exit code 1 if some are a dead member's.
fn missing(args: &Missings) -> Result<u8> {
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let answer = Client::new(&place.tier).get("/v1/cluster/missing")?;
    let mut files: Vec<MissingFile> = serde_json::from_value(answer)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))?;
    files.retain(|file| args.member.as_ref().is_none_or(|name| file.file.member == *name));
    let exit_code = u8::from(files.iter().any(|file| !file.file.alive));
    if args.json {
        say_json(&files);
        return Ok(exit_code);
    }
    if files.is_empty() {
        say("everything is home");
        return Ok(0);
    }
    let row = |missing: &MissingFile| {
        let file = &missing.file;
        let state = match (file.alive, file.taken_from.is_empty()) {
            (false, _) => "DEAD".to_string(),
            (true, false) => format!("taken over from {}", file.taken_from.join(", ")),
            (true, true) => "goes home".into(),
        };
        vec![
            file.member.clone(),
            state,
            missing.bytes.map_or("?".into(), human_size),
            missing.age_secs.map_or("-".into(), human_secs),
            file.path.clone(),
        ]
    };
    let columns =
        [("MEMBER", Left), ("STATE", Left), ("BYTES", Right), ("AGE", Right), ("FILE", Left)];
    tabulate(&columns, files.iter().map(row)).iter().for_each(say);
    totals(&files).iter().for_each(say);
    Ok(exit_code)
}

/// A line of totals for each member.
fn totals(files: &[MissingFile]) -> Vec<String> {
    let mut by_member: BTreeMap<&str, Vec<&MissingFile>> = BTreeMap::new();
    for file in files {
        by_member.entry(&file.file.member).or_default().push(file);
    }
    let total = |(member, files): (&str, Vec<&MissingFile>)| {
        let known: u64 = files.iter().filter_map(|file| file.bytes).sum();
        let unknown = files.iter().filter(|file| file.bytes.is_none()).count() as u64;
        let count = counted(files.len() as u64, "file");
        let oldest = files.iter().filter_map(|file| file.age_secs).reduce(f64::max);
        let oldest = oldest.map(|age| format!(", the oldest {} old", human_secs(age)));
        let said = files.iter().find_map(|file| file.said_by.as_deref());
        let by = said.filter(|by| *by != member).map(|by| format!(", as {by} has them"));
        let (oldest, by) = (oldest.unwrap_or_default(), by.unwrap_or_default());
        match unknown {
            0 => format!("{member}: {} in {count}{oldest}{by}", human_size(known)),
            n if n == files.len() as u64 => format!("{member}: {count}, of unknown size"),
            n => format!(
                "{member}: {} in {count}{oldest}{by}; {n} of unknown size",
                human_size(known)
            ),
        }
    };
    by_member.into_iter().map(total).collect()
}
