//! `forebay status`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_cluster::member::{Overview, Seen};
use forebay_engine::Gauges;
use serde::Deserialize;
use serde_json::{Value, json};

use super::watch::how_to_settle;
use crate::daemons::{self, Drainer};
use crate::http::Client;
use crate::mounts::{Mounts, Place, sharing};
use crate::ui::table::{Align, lay_out};
use crate::ui::{note, say, say_json, say_wrong};
use crate::units::{counted, human_rate, human_secs, human_size};
use crate::wire::{MemberView, Phase, StatusView};

const EXAMPLES: &str = "\
Examples:
  forebay status
  forebay status /mnt/fast
  forebay status --json /mnt/fast
  forebay status --cluster /mnt/fast

Without MOUNTPOINT it tells of every forebay mount, and of every daemon whose mount is gone and which
still drains. A tier's directory works as MOUNTPOINT, too.";

/// Show what a mount holds: cached, dirty, failed, pinned, and what the drain waits for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount.
    mountpoint: Option<PathBuf>,

    /// Print everything as JSON: one object for MOUNTPOINT, an array without.
    #[arg(long)]
    json: bool,

    /// Show all members of the store that MOUNTPOINT is a member of.
    #[arg(long, requires = "mountpoint")]
    cluster: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let mounts = Mounts::read()?;
    match &args.mountpoint {
        Some(path) if args.cluster => cluster(&mounts.daemon_of(path)?, args.json),
        Some(path) => one(&mounts.daemon_of(path)?, args.json),
        None => all(&mounts, args.json),
    }
}

fn one(place: &Place, json: bool) -> Result<u8> {
    let status = asked(&place.tier)?;
    match json {
        true => say_json(&status),
        false => tell(&place.mountpoint, &place.tier, &status)?,
    }
    Ok(0)
}

fn cluster(place: &Place, json: bool) -> Result<u8> {
    let answer = Client::new(&place.tier).get("/v1/cluster")?;
    if json {
        say_json(&answer);
        return Ok(0);
    }
    let daemons = BTreeMap::<String, MemberView>::deserialize(&answer["daemons"]);
    let daemons = daemons.unwrap_or_default();
    let problems = Vec::<String>::deserialize(&answer["registry_problems"]).unwrap_or_default();
    let view: Overview = serde_json::from_value(answer)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))?;
    let store = format!("store {} in {}", view.store, view.registry);
    match view.registry_quota {
        Some(quota) => say(format!(
            "{store}, which uses {} of {}",
            human_size(view.registry_bytes),
            human_size(quota)
        )),
        None => say(store),
    }
    if let Some(by) = &view.gate {
        say(format!("member {by} renames a directory: nothing is claimed meanwhile"));
    }
    for problem in &problems {
        say_wrong(&format!("WARNING: the registry: {problem}"));
    }
    let head = [
        "MEMBER",
        "STATE",
        "EPOCH",
        "FILES",
        "DIRECTORIES",
        "DIRTY",
        "BEHIND",
        "COPIES AT",
        "ADDRESS",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(view.members.iter().map(|member| {
        let me = if member.name == view.member { " (here)" } else { "" };
        let said = daemons.get(&member.name);
        vec![
            format!("{}{me}", member.name),
            state(member),
            member.epoch.to_string(),
            member.claims.to_string(),
            member.creates.to_string(),
            said.map_or_else(|| unsaid_dirty(member), dirty_there),
            said.map_or_else(|| unsaid_lag(member), |said| behind(said, view.newest)),
            copies_at(member, said),
            if member.has_left() { "-".into() } else { member.address.clone() },
        ]
    }));
    lay_out(&[Align::Left; 9], &rows).iter().for_each(say);
    for (name, said) in &daemons {
        if let Some(error) = &said.error {
            say(format!("{name}: {error}"));
        }
    }
    Ok(0)
}

fn state(member: &Seen) -> String {
    match (member.alive, &member.taken) {
        (true, _) => "alive".into(),
        (false, None) if member.has_left() => "left".into(),
        (false, None) => "DEAD".into(),
        (false, Some(taken)) if taken.done => format!("DEAD, taken over by {}", taken.by),
        (false, Some(taken)) if taken.by.is_empty() => "DEAD".into(),
        (false, Some(taken)) => format!("DEAD, {} takes over", taken.by),
    }
}

/// The dirty bytes of a member that does not answer: none if it has left.
fn unsaid_dirty(member: &Seen) -> String {
    if member.has_left() { human_size(0) } else { "?".into() }
}

fn unsaid_lag(member: &Seen) -> String {
    if member.has_left() { "-".into() } else { "?".into() }
}

fn dirty_there(said: &MemberView) -> String {
    match &said.error {
        Some(_) => "?".into(),
        None => human_size(said.dirty_bytes),
    }
}

/// How many changes of the registry a member has not seen.
fn behind(said: &MemberView, newest: u64) -> String {
    match said.lag(newest) {
        None => "?".into(),
        Some(0) => "-".into(),
        Some(changes) => counted(changes, "change"),
    }
}

/// The partners that have all of a member's acknowledged bytes; how many partners are missing.
fn copies_at(member: &Seen, said: Option<&MemberView>) -> String {
    if member.copies == 0 {
        return "-".into();
    }
    let missing = usize::from(member.copies).saturating_sub(member.in_sync.len());
    let mut text = member.in_sync.join(", ");
    if missing > 0 {
        let more = if text.is_empty() { "" } else { ", " };
        text = format!("{text}{more}{missing} MISSING");
    }
    match said.map_or(0, |said| said.uncopied_files) {
        0 => text,
        files => format!("{text} ({} behind)", counted(files, "file")),
    }
}

/// The daemon's status, with the number of other tiers on the tier's file system.
fn asked(tier: &Path) -> Result<Value> {
    Client::new(tier).get("/v1/status").map(|status| with_sharing(tier, status))
}

fn with_sharing(tier: &Path, mut status: Value) -> Value {
    status["tier_shared_with"] = sharing(tier).into();
    status
}

/// Answers that have come by then are told in the order of the mounts, all others as they come.
const AT_ONCE: Duration = Duration::from_secs(1);

fn all(mounts: &Mounts, json: bool) -> Result<u8> {
    let ours: Vec<(&Path, &Path)> = mounts.ours().collect();
    let tiers: Vec<PathBuf> = ours.iter().map(|(_, tier)| tier.to_path_buf()).collect();
    let answers = daemons::statuses(&tiers, Duration::MAX);
    let drainers = Drainer::all(mounts);
    let mut told = Told { json, documents: BTreeMap::new(), exit_code: 0 };
    let (mut early, until) = (BTreeMap::new(), Instant::now() + AT_ONCE);
    let left = || until.saturating_duration_since(Instant::now());
    while let Ok((n, answer)) = answers.recv_timeout(left()) {
        early.insert(n, answer);
    }
    early.into_iter().try_for_each(|(n, answer)| told.add(n, ours[n], answer))?;
    let mut unmounted = drainers.into_iter().zip(ours.len()..);
    unmounted.try_for_each(|(Drainer { place, status }, n)| {
        told.add(n, (&place.mountpoint, &place.tier), Ok(status))
    })?;
    answers.into_iter().try_for_each(|(n, answer)| told.add(n, ours[n], answer))?;
    match json {
        true => say_json(&told.documents.values().collect::<Vec<_>>()),
        false if told.documents.is_empty() => say("nothing is mounted"),
        false => {}
    }
    Ok(told.exit_code)
}

/// The answers of several daemons, by the number of the daemon.
struct Told {
    json: bool,
    documents: BTreeMap<usize, Value>,
    exit_code: u8,
}

impl Told {
    fn add(&mut self, n: usize, (at, tier): (&Path, &Path), answer: Result<Value>) -> Result<()> {
        let document = match answer {
            Ok(status) => {
                let status = with_sharing(tier, status);
                if !self.json {
                    tell(at, tier, &status)?;
                }
                status
            }
            Err(error) => {
                self.exit_code = error.exit_code();
                if !self.json {
                    note!("{}: {error}", at.display());
                }
                json!({
                    "mountpoint": at.to_string_lossy(),
                    "tier": tier.to_string_lossy(),
                    "error": error.to_string(),
                })
            }
        };
        self.documents.insert(n, document);
        Ok(())
    }
}

fn tell(mountpoint: &Path, tier: &Path, status: &Value) -> Result<()> {
    let view: StatusView = serde_json::from_value(status.clone())
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))?;
    say(title(mountpoint, &view));
    let rows: Vec<Vec<String>> = facts(tier, &view)
        .into_iter()
        .map(|(name, text)| vec![format!("  {name}"), text])
        .collect();
    lay_out(&[Align::Left; 2], &rows).iter().for_each(say);
    for trouble in &view.troubles {
        say(format!("  {}: {}: {}", trouble.path, trouble.state, trouble.error));
        if trouble.state == "conflict" {
            say(format!("    {}", how_to_settle(&trouble.path, Some(mountpoint))));
        }
    }
    Ok(())
}

fn title(at: &Path, view: &StatusView) -> String {
    let (at, backing) = (at.display(), &view.backing);
    match view.phase {
        Phase::Serving => format!("{at} serves {backing}"),
        Phase::Leaving => format!("{at} serves {backing}, and is ending: it drains, then unmounts"),
        Phase::Unmounted => {
            format!("{at} is unmounted: its daemon drains into {backing}, then ends")
        }
    }
}

fn facts(tier: &Path, s: &StatusView) -> Vec<(&'static str, String)> {
    let g = &s.gauges;
    let files = |count| counted(count, "file");
    let mut facts = vec![
        (
            "daemon",
            format!(
                "pid {}, up {}, {}, passthrough {}, requests over {}",
                s.pid,
                human_secs(s.uptime_secs),
                s.policy,
                s.passthrough,
                s.transport.as_deref().unwrap_or("nothing yet")
            ),
        ),
        (
            "tier",
            format!(
                "{}: {} of {} used ({} %), {}, {} open",
                tier.display(),
                human_size(g.used_bytes),
                human_size(g.tier_bytes),
                (g.used_bytes * 100).checked_div(g.tier_bytes).unwrap_or(0),
                files(g.files),
                g.open_files
            ),
        ),
        ("clean", human_size(g.clean_bytes)),
        ("dirty", dirty(g)),
        ("drain", drain(g)),
    ];
    facts.splice(2..2, about_tier(s).into_iter().map(|text| ("", text)));
    if g.pinned_files > 0 {
        let text = format!("{} in {}", human_size(g.pinned_bytes), files(g.pinned_files));
        facts.push(("pinned", text));
    }
    if g.passthrough_writers > 0 {
        facts.push(("writers", format!("{} open past the daemon", files(g.passthrough_writers))));
    }
    if g.busy_files > 0 {
        facts.push(("busy", format!("{} at work in the tier, not counted", files(g.busy_files))));
    }
    if g.failed_files > 0 {
        facts.push(("failed", format!("{}, retried", files(g.failed_files))));
    }
    if g.conflicted_files > 0 {
        facts.push((
            "conflicts",
            format!("{}, flushed once they are settled", files(g.conflicted_files)),
        ));
    }
    let available = if g.backing_available { "available" } else { "AWAY" };
    let error = g.last_error.as_ref().map_or_else(String::new, |(error, ago)| {
        format!("; last error {} ago: {error}", human_secs(*ago))
    });
    facts.push(("backing", format!("{available}{error}")));
    if let Some(astray) = &s.backing_astray {
        facts.push(("WARNING", astray.clone()));
    }
    facts
}

/// What else is to be known of the tier.
fn about_tier(s: &StatusView) -> Vec<String> {
    let mut lines: Vec<String> = detached(&s.attachment).map(Into::into).into_iter().collect();
    if s.gauges.tier_short_bytes > 0 {
        lines.push(format!(
            "SHORT of {}, since other files fill its file system: make room there, or mount with another --tier",
            human_size(s.gauges.tier_short_bytes)
        ));
    }
    if s.tier_shared_with > 0 {
        let others = counted(s.tier_shared_with, "other tier");
        lines
            .push(format!("shares its file system with {others}: what those use is not free here"));
    }
    lines
}

fn detached(attachment: &str) -> Option<&'static str> {
    match attachment {
        "detaching" => Some("DETACHING: nothing more comes into it"),
        "detached" => Some("DETACHED: all goes to the backing store; see `forebay attach`"),
        "detached-keep-dirty" => {
            Some("DETACHED, dirty bytes are kept: all else goes to the backing store")
        }
        _ => None,
    }
}

fn dirty(s: &Gauges) -> String {
    if s.dirty_files == 0 && s.dirty_bytes == 0 {
        return "nothing".into();
    }
    format!(
        "{} in {}, oldest {} old, {} being flushed",
        human_size(s.dirty_bytes),
        counted(s.dirty_files, "file"),
        human_secs(s.oldest_dirty_age_secs),
        human_size(s.flushing_bytes)
    )
}

/// The longest forecast that is shown: beyond, rates that are means of seconds tell nothing.
const OUTLOOK_MAX_SECS: f64 = 3_600.0;

/// Rates, forecast and term of the drain; without rates at rest, and without a forecast beyond an hour.
fn drain(s: &Gauges) -> String {
    let mut parts = Vec::new();
    if s.drain_bytes_per_sec + s.arrival_bytes_per_sec > 0 {
        let [drain, arrival] =
            [s.drain_bytes_per_sec, s.arrival_bytes_per_sec].map(|r| human_rate(r as f64));
        parts.push(match s.arrival_bytes_per_sec {
            0 => drain,
            _ => format!("{drain} of {arrival} that arrive (mean of 5 s)"),
        });
    }
    let near = |secs: Option<f64>| secs.filter(|secs| *secs <= OUTLOOK_MAX_SECS);
    match (near(s.clean_in_secs), near(s.full_in_secs)) {
        (Some(secs), _) => parts.push(format!("clean in {}", human_secs(secs))),
        (None, Some(secs)) => parts.push(format!("full in {}", human_secs(secs))),
        (None, None) => {}
    }
    if s.governor != "none" {
        parts.push(format!("governed by: {}", s.governor));
    }
    parts.push(format!("limited by: {}", s.limited_by));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drain_is_told_without_what_means_nothing() {
        let rest = Gauges {
            governor: "none".into(),
            limited_by: "nothing-dirty".into(),
            full_in_secs: Some(1e8),
            ..Gauges::default()
        };
        assert_eq!(drain(&rest), "limited by: nothing-dirty");
        let busy = Gauges {
            governor: "level".into(),
            limited_by: "pace".into(),
            drain_bytes_per_sec: 1 << 20,
            arrival_bytes_per_sec: 3 << 20,
            full_in_secs: Some(90.0),
            ..rest
        };
        let told = "1.0 MiB/s of 3.0 MiB/s that arrive (mean of 5 s), full in 1 min 30 s, governed by: level, \
                    limited by: pace";
        assert_eq!(drain(&busy), told);
    }
}
