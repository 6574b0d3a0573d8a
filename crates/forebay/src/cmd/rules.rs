//! `forebay rules`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use forebay_backing::{Error, Kind, Result};
use forebay_engine::rules::Action;
use serde_json::{Value, json};

use crate::config::{self, RuleText};
use crate::http::Client;
use crate::mounts::{Mounts, Place};
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_size};
use crate::wire::WirePath;

const EXAMPLES: &str = "\
Examples:
  forebay rules list /mnt/fast
  forebay rules list /mnt/fast --window 5min
  forebay rules add /mnt/fast logs deny --path '*.log'
  forebay rules add /mnt/fast backup deny --cgroup system.slice/backup.service
  forebay rules add /mnt/fast models allow --path 'models/**' --quota 50GiB --pin
  forebay rules test /mnt/fast/var/x.log --uid 1000
  forebay rules remove /mnt/fast logs
  forebay rules save /mnt/fast > rules.toml

The first rule that matches when a file is opened decides, for that open; no rule means allow. What
is denied goes around the fast tier: reads are not kept, writes go to the backing store at once. A
file that has dirty bytes is written in the tier all the same, and flushed when it is closed. What is
in the tier is read from there. What comes beyond a quota takes the place of what the rule's files
have had in the tier longest, and is denied where none of that can go. Rules added here are lost at
unmount; [[rule]] tables in the configuration file are there from the start. `rules save` prints such
tables of the rules there are, and writes to no file: yours has comments, and is yours.

The list tells what a rule's files take of the fast tier, and of the requests of the opens that it
decided for how many were hits, partial hits, misses, new and bypasses, since the rule was added.
What is passed through to the tier or answered from the page cache is not in there. --json has reads
and writes apart.";

const ADD_EXAMPLES: &str = "\
Examples:
  forebay rules add /mnt/fast logs deny --path '*.log'
  forebay rules add /mnt/fast scans deny-reads --path '/data/**' --size-min 1GiB --uid 1000
  forebay rules add /mnt/fast job deny-writes --pid 4711
  forebay rules add /mnt/fast rest deny --all

All conditions must hold. One that takes several values holds if one of them does: give it again.";

const SAVE_EXAMPLES: &str = "\
Examples:
  forebay rules save /mnt/fast > rules.toml
  forebay rules save /mnt/fast --mount project

It prints all rules of the mount, those of `forebay rules add` and those of the configuration file, less
those that are for one process. They outlast an unmount once you have put them into the configuration file,
in place of those there: [[rule]] tables for every mount that reads the file, or, with --mount, those of
the section [mount.NAME].";

const LIST_EXAMPLES: &str = "\
Examples:
  forebay rules list /mnt/fast
  forebay rules list /mnt/fast --window 5min --json";

const REMOVE_EXAMPLES: &str = "\
Examples:
  forebay rules remove /mnt/fast logs";

const TEST_EXAMPLES: &str = "\
Examples:
  forebay rules test /mnt/fast/var/x.log
  forebay rules test /mnt/fast/var/x.log --uid 1000";

/// Say which files may use the fast tier, and how much of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the rules in their order, with what their files take and how they were served.
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Add a rule behind all others.
    #[command(after_help = ADD_EXAMPLES)]
    Add(Box<Add>),
    /// Remove a rule.
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(Remove),
    /// Print the rules of a mount, for you to put into the configuration file; save nothing by itself.
    #[command(after_help = SAVE_EXAMPLES)]
    Save(Save),
    /// Tell which rule an open of a file would meet.
    #[command(after_help = TEST_EXAMPLES)]
    Test(Test),
}

#[derive(Debug, clap::Args)]
struct List {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,
    /// Only the requests of the last 1min, 5min or 1h.
    #[arg(long, value_name = "TIME")]
    window: Option<String>,
    /// Print the rules as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Add {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,
    #[command(flatten)]
    rule: RuleText,
    /// The rule is for every file: it has no condition.
    #[arg(long)]
    all: bool,
    /// Print the rule as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,
    /// The rule's name.
    name: String,
    /// Print the rule's name as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Save {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,
    /// As [[mount.NAME.rule]], for that mount alone, not as [[rule]], which every mount gets.
    #[arg(long, value_name = "NAME")]
    mount: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Test {
    /// A file in a mount; it need not exist.
    path: PathBuf,
    /// As if opened by this user, by name or number [default: your own].
    #[arg(long, value_name = "USER", value_parser = config::user)]
    uid: Option<u32>,
    /// As if opened by this group, by name or number [default: your own].
    #[arg(long, value_name = "GROUP", value_parser = config::group)]
    gid: Option<u32>,
    /// As if opened by this process; without it no rule with a process or control group matches.
    #[arg(long)]
    pid: Option<u32>,
    /// Print the rule as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.what {
        What::List(args) => list(args)?,
        What::Add(args) => add(args)?,
        What::Remove(args) => {
            client(&args.mountpoint)?.0.delete(&format!("/v1/rules/{}", args.name))?;
            match args.json {
                true => say_json(&json!({ "removed": args.name })),
                false => say(format!("rule {} is removed", args.name)),
            }
        }
        What::Save(args) => save(args)?,
        What::Test(args) => test(args)?,
    }
    Ok(0)
}

fn add(args: &Add) -> Result<()> {
    let rule = args.rule.read()?;
    let (client, place) = client(&args.mountpoint)?;
    let usage = |why: String| Err(Error::new(Kind::Usage, format!("rule {}: {why}", rule.name)));
    match (rule.is_for_all(), args.all) {
        (false, true) => return usage("it has conditions: leave them out, or --all".into()),
        (true, false) if rule.action != Action::Allow => {
            let why = "without a condition it keeps every file out: give one, such as --path 'logs/**', or --all";
            return usage(why.into());
        }
        _ => {}
    }
    for pattern in &rule.path {
        if let Some(rest) = below_mount(pattern, &place.mountpoint) {
            let at = place.mountpoint.display();
            return usage(format!(
                "path '{pattern}' is matched from the root of the mount {at}, not from the machine's: write '{rest}'"
            ));
        }
    }
    for group in rule.cgroup.iter().filter(|group| !has_cgroup(group)) {
        note!(
            "there is no control group {group} now: rule {} matches once there is one",
            rule.name
        );
    }
    client.post("/v1/rules", &json!(args.rule))?;
    match args.json {
        true => say_json(&json!(args.rule)),
        false => say(format!("rule {} is added; `forebay rules list` shows all", rule.name)),
    }
    Ok(())
}

/// The rest of a pattern that begins with the mount point: no path in the mount begins so.
fn below_mount<'a>(pattern: &'a str, mountpoint: &Path) -> Option<&'a str> {
    let rest = pattern.strip_prefix(mountpoint.to_str()?)?;
    rest.strip_prefix('/').or_else(|| rest.is_empty().then_some("**"))
}

fn has_cgroup(group: &str) -> bool {
    Path::new("/sys/fs/cgroup").join(group.trim_matches('/')).is_dir()
}

fn client(path: &Path) -> Result<(Client, Place)> {
    let place = Mounts::read()?.daemon_of(path)?;
    Ok((Client::new(&place.tier), place))
}

fn list(args: &List) -> Result<()> {
    let client = client(&args.mountpoint)?.0;
    let mut rules = client.get("/v1/rules")?;
    if let Some(window) = &args.window {
        let stats = client.get(&format!("/v1/stats?window={window}"))?;
        for rule in rules.as_array_mut().into_iter().flatten() {
            let name = rule["name"].as_str().unwrap_or_default();
            rule["requests"] = stats["rules"][name]["requests"].clone();
        }
    }
    if args.json {
        say_json(&rules);
        return Ok(());
    }
    let rules: Vec<Vec<String>> = rules.as_array().into_iter().flatten().map(row).collect();
    if rules.is_empty() {
        say("no rules: everything is allowed");
        return Ok(());
    }
    let columns = [
        ("rule", Left),
        ("action", Left),
        ("used", Right),
        ("read", Right),
        ("written", Right),
        ("hits", Right),
        ("partial", Right),
        ("misses", Right),
        ("new", Right),
        ("bypasses", Right),
        ("", Left),
    ];
    tabulate(&columns, rules).iter().for_each(say);
    Ok(())
}

fn row(rule: &Value) -> Vec<String> {
    let word = |name: &str| rule[name].as_str().unwrap_or_default().to_string();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let requests = &rule["requests"];
    let mut row = vec![word("name"), word("action"), human_size(number(&rule["used_bytes"]))];
    row.extend(["read", "write"].map(|way| human_size(number(&requests[way]["bytes"]))));
    let both =
        |served: &str| number(&requests["read"][served]) + number(&requests["write"][served]);
    row.extend(["hits", "partial_hits", "misses", "new", "bypasses"].map(|s| both(s).to_string()));
    row.push(conditions(rule));
    row
}

/// Prints the rules. The configuration file has a person's comments, so this command does not change it.
fn save(args: &Save) -> Result<()> {
    let rules = client(&args.mountpoint)?.0.get("/v1/rules")?;
    let head = match &args.mount {
        Some(name) => format!("[[mount.{name}.rule]]"),
        None => "[[rule]]".into(),
    };
    let rules: Vec<&Value> = rules.as_array().into_iter().flatten().collect();
    // A rule for a process is not saved: the process ends before the next mount.
    let (lasting, passing): (Vec<&Value>, Vec<&Value>) =
        rules.into_iter().partition(|rule| rule["pid"].is_null());
    for rule in &lasting {
        say(&head);
        toml_of(rule).lines().for_each(say);
        say("");
    }
    for rule in passing {
        note!("left out, since it is for one process: {}", rule["name"]);
    }
    let scope = match &args.mount {
        Some(name) => format!("the mount {name} alone"),
        None => "every mount (--mount NAME: for one alone)".into(),
    };
    note!(
        "{} for {scope}, not saved yet: put them in place of those in the configuration file, in this order",
        counted(lasting.len() as u64, "rule")
    );
    Ok(())
}

/// The conditions as TOML: its strings, numbers, arrays and booleans are written as in JSON.
fn toml_of(rule: &Value) -> String {
    let fields = rule.as_object().into_iter().flatten();
    let written = fields.filter(|(name, _)| !FIGURES[1..].contains(&name.as_str()));
    let (name, rest): (Vec<_>, Vec<_>) = written.partition(|(key, _)| *key == "name");
    let action = std::iter::once(format!("action = {}\n", rule["action"]));
    let line = |(key, value): (&String, &Value)| format!("{key} = {value}\n");
    name.into_iter().map(line).chain(action).chain(rest.into_iter().map(line)).collect()
}

/// Fields of a rule that are measured, not written in it, or have a column of their own.
const FIGURES: [&str; 6] =
    ["name", "action", "used_bytes", "dirty_bytes", "quota_bytes", "requests"];

fn conditions(rule: &Value) -> String {
    let fields = rule.as_object().into_iter().flatten();
    let shown = fields.filter(|(name, _)| !FIGURES.contains(&name.as_str()));
    shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn test(args: &Test) -> Result<()> {
    let (client, place) = client(&args.path)?;
    let path = WirePath::from(place.path.as_path());
    let size = std::fs::metadata(&args.path).map_or(0, |meta| meta.len());
    let uid = args.uid.unwrap_or_else(|| rustix::process::getuid().as_raw());
    let gid = args.gid.unwrap_or_else(|| rustix::process::getgid().as_raw());
    let pid = args.pid.unwrap_or(0);
    let body = json!({ "path": path, "size": size, "uid": uid, "gid": gid, "pid": pid });
    let rule = client.post("/v1/rules/test", &body)?;
    let word = |name: &str| rule[name].as_str().unwrap_or_default();
    let found = match rule.is_null() {
        true => "allow (no rule matches)".into(),
        false => format!("{} ({})", word("action"), word("name")),
    };
    match (args.json, args.uid) {
        (true, _) => say_json(&rule),
        (false, Some(_)) => say(found),
        (false, None) => say(format!("{found} for user {uid}")),
    }
    Ok(())
}
