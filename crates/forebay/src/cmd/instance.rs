//! `forebay instance`: file systems and swap that live with a job, or by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_node::now;
use forebay_node::records::{Instance, JobKey, Life, Mode, State, Want};
use serde_json::json;

use crate::config;
use crate::node::client::{NodeArgs, NodeClient};
use crate::node::wire::{CacheDaemon, CacheView, Destroy, Extend, InstanceView, NewInstance};
use crate::signals;
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_secs, human_size, parse_duration, parse_size};

/// A node looks at its instances every second: a state that it reports for this long is settled.
const SETTLED: Duration = Duration::from_secs(2);

/// The pause between two messages about an instance that a command waits for.
const AGAIN: Duration = Duration::from_secs(30);

const CREATE: &str = "\
Examples:
  forebay instance create private scratch --capacity 100GiB
  forebay instance create cache proj --backing /pfs/proj --capacity 500GiB
  forebay instance create cache data --backing /pfs/data --capacity 1TiB --set read-only=true
  forebay instance create private ds --capacity 2TiB --expires 14d --node n1 --node n2
  forebay instance create swap pages --capacity 64GiB --job 4711

The command returns when the instance is ready on all its nodes and prints where it is. Repeated, it
prints the instance that is there; the same name with other values is refused. The capacity is that on
each node; it is rounded up to whole grains of the pool. A private instance belongs to its owner alone
and stays on its nodes: its files go with it, but for those that `forebay stage out` brings away. A
cache shows its backing store, and written bytes go there by themselves.";

const EXTEND: &str = "\
Examples:
  forebay instance extend ds --expires 14d
  forebay instance extend ds --expires never

The time counts from now on, and may be sooner than before. A day before an instance expires, and in the
last quarter of one that lives shorter, `forebay instance list` and the node's log say so. What is in a
private instance goes with it, but for what was to be staged out.";

const DESTROY: &str = "\
Examples:
  forebay instance destroy scratch
  forebay instance destroy scratch --hurry
  forebay instance destroy scratch --no-wait

What was to be staged out at the end, and what is dirty in a cache, goes home first: the instance goes
when it has. Where that did not work and nothing is tried any more, the command ends at once with exit
code 4 and says what is left: `forebay stage resume` tries again, `forebay stage revoke` gives it up.
--hurry frees the node at once: what is not home waits, and `forebay manifest` lists it.
Stage-outs that were told to hurry are kept for a day (keep-after-hurry), then dropped with a record;
dirty bytes of a cache are never dropped.";

/// Make, list and give up instances: file systems and swap that live with a job, or by name.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  forebay instance create private scratch --capacity 100GiB\n  \
    forebay instance list\n  forebay instance show scratch\n  forebay instance destroy scratch"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make an instance.
    #[command(after_help = CREATE)]
    Create(Box<Create>),
    /// List your instances; root sees all.
    #[command(after_help = "Examples:\n  forebay instance list\n  forebay instance list --json")]
    List(List),
    /// Show one instance, and its state on each node.
    #[command(after_help = "Examples:\n  forebay instance show scratch")]
    Show(Show),
    /// Have a named instance expire at another time.
    #[command(after_help = EXTEND)]
    Extend(ExtendArgs),
    /// Flush and stage out the data that is to be kept, then remove.
    #[command(after_help = DESTROY)]
    Destroy(DestroyArgs),
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ModeArg {
    Cache,
    Private,
    Swap,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// A mount before a backing store, scratch space, or a swap file.
    mode: ModeArg,

    /// Its name; for an instance of a job, the part after the job's number.
    #[arg(required_unless_present = "job")]
    name: Option<String>,

    /// The room on each node.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: u64,

    /// The backing store of a cache: an absolute path.
    #[arg(long, value_name = "DIR")]
    backing: Option<PathBuf>,

    /// A setting of a cache, as `forebay mount` takes it.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,

    /// The pool to take the room from, if there are several.
    #[arg(long)]
    pool: Option<String>,

    /// A node for the instance; the node that is asked, if none is given.
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,

    /// How the capacity is enforced; see `forebay pools`.
    #[arg(long)]
    means: Option<String>,

    /// The file system of an image; XFS from 300 MiB on where mkfs.xfs is on all nodes, else ext4.
    #[arg(long, value_parser = ["ext4", "xfs"])]
    fs: Option<String>,

    /// Files that a private instance is to have room for.
    #[arg(long, value_name = "COUNT")]
    inodes: Option<u64>,

    /// Permissions of its root directory, such as 0750.
    #[arg(long, value_name = "MODE", value_parser = octal)]
    permissions: Option<u32>,

    /// The instance expires after this time.
    #[arg(long, value_name = "TIME", value_parser = parse_long_duration)]
    expires: Option<Duration>,

    /// The mount point; for root.
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,

    /// The scheduler's job to make it for, set up and not ended; for root.
    #[arg(long, value_name = "ID")]
    job: Option<String>,

    /// The scheduler's cluster.
    #[arg(long, value_name = "NAME", requires = "job", default_value = "default")]
    cluster: String,

    /// Which run of the job, counted from 1.
    #[arg(long, value_name = "N", requires = "job", default_value_t = 1)]
    incarnation: u32,

    /// The instance's owner; for root.
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Do not wait until it is ready.
    #[arg(long)]
    no_wait: bool,

    /// Give up waiting after this time; the instance stays wanted.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2min")]
    timeout: Duration,

    /// Print the instance as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, clap::Args)]
struct Show {
    id: String,

    /// Print the instance as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, clap::Args)]
struct ExtendArgs {
    id: String,

    /// When the instance expires, from now on; or `never`.
    #[arg(long, value_name = "TIME", value_parser = parse_end)]
    expires: End,

    /// Print the instance as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

/// The time at which an instance expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    After(Duration),
    Never,
}

#[derive(Debug, clap::Args)]
struct DestroyArgs {
    id: String,

    /// Free the node at once; bytes not yet home wait in the tier.
    #[arg(long)]
    hurry: bool,

    /// Do not wait until it is gone.
    #[arg(long)]
    no_wait: bool,

    /// Give up waiting after this time; the removal goes on by itself.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10min")]
    timeout: Duration,

    #[command(flatten)]
    node: NodeArgs,
}

const POLL: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    match &args.verb {
        Verb::Create(args) => create(args),
        Verb::List(args) => list(args),
        Verb::Show(args) => show(args),
        Verb::Extend(args) => extend(args),
        Verb::Destroy(args) => destroy(args),
    }
}

fn create(args: &Create) -> Result<u8> {
    let client = args.node.client();
    let backing = args.backing.as_deref().map(std::path::absolute).transpose();
    let backing = backing.map_err(|e| Error::io(e, "--backing"))?;
    let owner = args.user.as_deref().map(owner).transpose()?;
    let asked = NewInstance {
        name: args.name.clone(),
        mode: match args.mode {
            ModeArg::Cache => Mode::Cache,
            ModeArg::Private => Mode::Private,
            ModeArg::Swap => Mode::Swap,
        },
        job: args.job.as_ref().map(|id| JobKey {
            cluster: args.cluster.clone(),
            id: id.clone(),
            incarnation: args.incarnation,
        }),
        uid: owner.map(|(uid, _)| uid),
        gid: owner.map(|(_, gid)| gid),
        expires: args.expires.map(|time| now().saturating_add(time.as_secs())),
        nodes: args.nodes.clone(),
        pool: args.pool.clone(),
        bytes: args.capacity,
        mountpoint: args.mountpoint.clone(),
        backing,
        settings: args.settings.iter().cloned().collect::<BTreeMap<_, _>>(),
        means: args.means.clone(),
        fs: args.fs.clone(),
        inodes: args.inodes,
        permissions: args.permissions,
    };
    let made: InstanceView = client.post("/v1/instances", &json!(asked))?;
    let ready = match args.no_wait {
        true => made,
        false => wait_ready(&client, &made.wanted, args.timeout)?,
    };
    match (args.json, &ready.wanted.mountpoint) {
        (true, _) => say_json(&ready),
        (false, Some(at)) => say(at.display()),
        (false, None) => say(&ready.wanted.id),
    }
    Ok(0)
}

fn wait_ready(client: &NodeClient, wanted: &Instance, limit: Duration) -> Result<InstanceView> {
    signals::catch_interrupts();
    let id = &wanted.id;
    let deadline = Instant::now() + limit;
    loop {
        let view: InstanceView = client.get(&format!("/v1/instances/{id}"))?;
        if wanted.nodes.iter().all(|node| is_ready(&view, node)) {
            return Ok(view);
        }
        let waits = waits_for(&view);
        if signals::take_interrupt().is_some() {
            note!("{id} stays wanted: `forebay instance destroy {id}` gives it up");
            return Err(Error::new(Kind::Interrupted, waits));
        }
        if Instant::now() >= deadline {
            let why = format!(
                "instance {id} is not ready after {}: {waits}; it stays wanted: `forebay instance show \
                 {id}`, `forebay instance destroy {id}`",
                human_secs(limit.as_secs_f64())
            );
            return Err(Error::new(Kind::TimedOut, why));
        }
        // A failure is reported at once; the node goes on trying.
        if let Some(why) = failed(&view) {
            note!("{why}");
            let why = format!("instance {id} could not be made; it is tried again until destroyed");
            return Err(Error::new(Kind::Unavailable, why));
        }
        sleep(POLL);
    }
}

fn is_ready(view: &InstanceView, node: &str) -> bool {
    view.actual.get(node).is_some_and(|actual| actual.state == State::Ready)
}

fn failed(view: &InstanceView) -> Option<String> {
    let failed = view.actual.iter().find(|(_, actual)| actual.state == State::Failed);
    failed.map(|(node, actual)| format!("{node}: {}", actual.why.as_deref().unwrap_or("failed")))
}

/// For each node, what its part of the instance waits for.
fn waits_for(view: &InstanceView) -> String {
    let of = |node: &String| match view.actual.get(node) {
        None => format!("{node}: has not begun"),
        Some(actual) => match &actual.why {
            Some(why) => format!("{node}: {why}"),
            None => format!("{node}: {}", actual.state.name()),
        },
    };
    view.wanted.nodes.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn list(args: &List) -> Result<u8> {
    let all: Vec<InstanceView> = args.node.client().get("/v1/instances")?;
    if args.json {
        say_json(&all);
        return Ok(0);
    }
    let columns = [
        ("INSTANCE", Left),
        ("MODE", Left),
        ("OWNER", Left),
        ("CAPACITY", Right),
        ("STATE", Left),
        ("LIFE", Left),
        ("NODES", Left),
        ("AT", Left),
    ];
    tabulate(&columns, all.iter().map(row)).iter().for_each(say);
    all.iter().for_each(warn_of_end);
    Ok(0)
}

fn warn_of_end(view: &InstanceView) {
    let (id, private) = (&view.wanted.id, view.wanted.mode == Mode::Private);
    if let Some(left) = view.ends_in_seconds {
        let left = human_secs(left as f64);
        let keep = if private { "stage out what is to be kept, or " } else { "" };
        note!("{id} goes by itself in {left}: {keep}`forebay instance extend {id} --expires TIME`");
    }
}

fn row(view: &InstanceView) -> Vec<String> {
    let wanted = &view.wanted;
    vec![
        wanted.id.clone(),
        wanted.mode.name().into(),
        name_of(wanted.owner.uid),
        human_size(wanted.capacity),
        state(view),
        life(wanted),
        wanted.nodes.join(","),
        wanted.mountpoint.as_ref().map_or_else(|| "-".into(), |at| at.display().to_string()),
    ]
}

pub fn name_of(uid: u32) -> String {
    let user = forebay_base::users::User::with_id(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The worst of the instance's states on its nodes.
fn state(view: &InstanceView) -> String {
    if view.wanted.want != Want::Here {
        return "leaving".into();
    }
    let states = |state| view.actual.values().filter(|actual| actual.state == state).count();
    match (states(State::Failed), states(State::Ready), view.wanted.nodes.len()) {
        (0, ready, all) if ready == all => "ready".into(),
        (0, ..) => "making".into(),
        _ => "failed".into(),
    }
}

fn life(wanted: &Instance) -> String {
    match &wanted.life {
        Life::Job(job) => format!("job {}", job.id),
        Life::Named { expires: None } => "named".into(),
        Life::Named { expires: Some(at) } => {
            format!("{} left", human_secs(at.saturating_sub(now()) as f64))
        }
    }
}

fn show(args: &Show) -> Result<u8> {
    let path = format!("/v1/instances/{}?cache=", args.id);
    let view: InstanceView = args.node.client().get(&path)?;
    if args.json {
        say_json(&view);
        return Ok(0);
    }
    let wanted = &view.wanted;
    say(format!("{} {} of {}", wanted.mode.name(), wanted.id, name_of(wanted.owner.uid)));
    say(format!("  life      {}", life(wanted)));
    let (capacity, room) = (human_size(wanted.capacity), human_size(wanted.bytes));
    say(format!("  capacity  {capacity} on each node; {room} of pool {}", wanted.pool));
    if let Some(at) = &wanted.mountpoint {
        say(format!("  at        {}", at.display()));
    }
    if let Some(backing) = &wanted.backing {
        say(format!("  backing   {} ({})", backing.path.display(), backing.on.source));
    }
    for node in &wanted.nodes {
        say(format!("  {node:<9} {}", told(&view, node)));
    }
    if let Some(cache) = &view.cache {
        say(format!("  cache     {}", cache_told(cache)));
    }
    if wanted.mode == Mode::Private {
        say("  what is in it is on these nodes alone, and goes with it");
    }
    warn_of_end(&view);
    Ok(0)
}

fn cache_told(cache: &CacheView) -> String {
    let dirty = match (cache.dirty_bytes, cache.dirty_files) {
        (Some(0), Some(0)) => "nothing is dirty".into(),
        (Some(bytes), Some(files)) => {
            format!("{} dirty in {}", human_size(bytes), counted(files, "file"))
        }
        _ => "what is dirty in it `forebay manifest` says".into(),
    };
    match cache.daemon {
        CacheDaemon::Serving => dirty,
        CacheDaemon::Dead => format!("its daemon has died, and it is mounted again soon; {dirty}"),
    }
}

fn extend(args: &ExtendArgs) -> Result<u8> {
    let id = &args.id;
    let expires = match args.expires {
        End::After(time) => Some(now().saturating_add(time.as_secs())),
        End::Never => None,
    };
    let path = format!("/v1/instances/{id}/extend");
    let view: InstanceView = args.node.client().post(&path, &json!(Extend { expires }))?;
    match (args.json, args.expires) {
        (true, _) => say_json(&view),
        (false, End::After(time)) => {
            say(format!("{id} goes by itself in {}", human_secs(time.as_secs_f64())))
        }
        (false, End::Never) => say(format!("{id} stays until it is destroyed")),
    }
    Ok(0)
}

fn told(view: &InstanceView, node: &str) -> String {
    let Some(actual) = view.actual.get(node) else { return "has not begun".into() };
    let means = actual.means.as_ref().map_or_else(String::new, |means| format!(", {means}"));
    let why = actual.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let since = human_secs(now().saturating_sub(actual.since) as f64);
    format!("{} for {since}{means}{why}", actual.state.name())
}

fn destroy(args: &DestroyArgs) -> Result<u8> {
    signals::catch_interrupts();
    let (client, id) = (args.node.client(), &args.id);
    let ask = json!(Destroy { hurry: args.hurry });
    let _: InstanceView = client.post(&format!("/v1/instances/{id}/destroy"), &ask)?;
    if args.no_wait {
        say(format!("{id} is leaving"));
        return Ok(0);
    }
    let deadline = Instant::now() + args.timeout;
    let (mut told, mut said) = (String::new(), Instant::now());
    let mut undecided: Option<Instant> = None;
    loop {
        let all: Vec<InstanceView> = client.get("/v1/instances")?;
        let Some(view) = all.into_iter().find(|other| other.wanted.id == *id) else { break };
        let waits = waits_for(&view);
        let is_news = waits != told || said.elapsed() >= AGAIN;
        let is_known = view.actual.values().any(|actual| actual.why.is_some());
        if is_news && (is_known || said.elapsed() >= AGAIN) {
            let left =
                human_secs(deadline.saturating_duration_since(Instant::now()).as_secs() as f64);
            note!("{waits}; waits for {left} more at most");
            told.clone_from(&waits);
            said = Instant::now();
        }
        if signals::take_interrupt().is_some() {
            return Err(Error::new(Kind::Interrupted, format!("{id} goes on leaving: {waits}")));
        }
        undecided = is_undecided(&view).then(|| undecided.unwrap_or_else(Instant::now));
        if undecided.is_some_and(|since| since.elapsed() >= SETTLED) {
            let why = format!("{id} stays until you say what becomes of what is not home: {waits}");
            return Err(Error::new(Kind::DirtyAtRisk, why));
        }
        if Instant::now() >= deadline {
            let after = human_secs(args.timeout.as_secs_f64());
            let why = format!("{id} is still leaving after {after}, and goes on: {waits}");
            return Err(Error::new(Kind::DirtyAtRisk, why));
        }
        sleep(POLL);
    }
    say(format!("{id} is gone"));
    Ok(0)
}

/// Whether the instance is to be removed, and every node waits for its owner's decision.
fn is_undecided(view: &InstanceView) -> bool {
    let mut there = view.actual.values().peekable();
    let gone = view.wanted.want == Want::Gone && there.peek().is_some();
    gone && there.all(|actual| actual.undecided)
}

fn owner(user: &str) -> Result<(u32, u32)> {
    let usage = |why: String| Error::new(Kind::Usage, format!("--user {user}: {why}"));
    let uid = config::user(user).map_err(usage)?;
    let found = forebay_base::users::User::with_id(uid).map_err(|e| usage(e.to_string()))?;
    found.map(|found| (uid, found.gid)).ok_or_else(|| usage("this machine does not know it".into()))
}

fn key_value(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as max-age=10s")?;
    Ok((key.into(), value.into()))
}

fn octal(text: &str) -> std::result::Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write an octal number up to 0777".into())
}

fn parse_end(text: &str) -> std::result::Result<End, String> {
    match text {
        "never" => Ok(End::Never),
        _ => parse_long_duration(text).map(End::After).map_err(|why| format!("{why}, or never")),
    }
}

/// Like `parse_duration`, and accepts days.
fn parse_long_duration(text: &str) -> std::result::Result<Duration, String> {
    match text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok()) {
        Some(days) => Ok(Duration::from_secs(days.saturating_mul(24 * 60 * 60))),
        None => parse_duration(text),
    }
}
