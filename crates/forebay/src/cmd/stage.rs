//! `forebay stage`: copies files into an instance and out of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;
use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_node::hands::Stage;
use forebay_node::records::{
    Direction, Existing, How, Preserve, THREADS_MAX, Transfer, TransferActual, TransferOptions,
    TransferState, What, When,
};
use serde_json::json;

use crate::node::client::{NodeArgs, NodeClient};
use crate::node::wire::{NewTransfer, Progress, TransferView};
use crate::signals;
use crate::ui::progress::{Line, Sample, Told};
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_secs, human_size, parse_rate};

const STAGE: &str = "\
Examples:
  forebay stage in /pfs/dataset /run/forebay/mnt/scratch/dataset
  forebay stage out /run/forebay/mnt/scratch/results /pfs/results --at-end
  forebay stage list
  forebay stage wait t01kq3v8x0a1b2c
  forebay stage resume t01kq3v8x0a1b2c";

const COPY: &str = "\
Examples:
  forebay stage in /pfs/dataset /run/forebay/mnt/scratch/dataset
  forebay stage out /run/forebay/mnt/scratch/out /pfs/out --last 'MANIFEST' --checksum
  forebay stage out /run/forebay/mnt/scratch/out /pfs/out --at-end
  forebay stage in files.txt /run/forebay/mnt/scratch --type list --rate-max 200MB/s
  forebay stage out /run/forebay/mnt/scratch/out /pfs/out --preserve mode,times --existing newer

One of the two paths is in an instance of yours. The transfer runs on the instance's node with your
rights, goes on if this command, your job or the node daemon ends, and says done when everything is on
the destination and synced there. A file appears under its name when it is whole. With Ctrl-C the
transfer goes on; `forebay stage cancel` ends it. For a cache, in is a prefetch and out is a flush.";

/// Bring files into an instance and out of it.
#[derive(Debug, clap::Args)]
#[command(after_help = STAGE)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Copy into an instance.
    #[command(after_help = COPY)]
    In(Copy),
    /// Copy out of an instance, now or when it goes.
    #[command(after_help = COPY)]
    Out(Copy),
    /// List your transfers; root sees all.
    #[command(after_help = "Examples:\n  forebay stage list\n  forebay stage list --json")]
    List(List),
    /// Show one transfer.
    #[command(after_help = "Examples:\n  forebay stage show t01kq3v8x0a1b2c")]
    Show(One),
    /// Wait until a transfer has ended, with progress.
    #[command(
        after_help = "Examples:\n  forebay stage wait t01kq3v8x0a1b2c\n\nExit code 0 if it is \
        done, 1 if files are left, which the manifest lists."
    )]
    Wait(One),
    /// End a transfer where it is; what is copied stays.
    #[command(after_help = "Examples:\n  forebay stage cancel t01kq3v8x0a1b2c")]
    Cancel(One),
    /// Take back a stage-out at the end, or give up what one has left.
    #[command(after_help = "Examples:\n  forebay stage revoke t01kq3v8x0a1b2c")]
    Revoke(One),
    /// Carry out now what was to be done at the end.
    #[command(after_help = "Examples:\n  forebay stage activate t01kq3v8x0a1b2c")]
    Activate(One),
    /// Take up what a transfer has left.
    #[command(after_help = "Examples:\n  forebay stage resume t01kq3v8x0a1b2c")]
    Resume(One),
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TypeArg {
    File,
    Directory,
    List,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ExistingArg {
    /// A file is replaced, others in its directory stay.
    Overwrite,
    /// A file is replaced if the source's was changed later.
    Newer,
    /// A file stays.
    Keep,
    /// A file stays, and the source's counts as failed.
    Fail,
    /// A directory is removed with all its files, and the new one takes its place.
    Replace,
}

impl From<ExistingArg> for Existing {
    fn from(arg: ExistingArg) -> Existing {
        match arg {
            ExistingArg::Overwrite => Existing::Overwrite,
            ExistingArg::Newer => Existing::Newer,
            ExistingArg::Keep => Existing::Keep,
            ExistingArg::Fail => Existing::Fail,
            ExistingArg::Replace => Existing::Replace,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Copy {
    /// The file or directory to copy; a slash at its end says that it will be a directory.
    source: PathBuf,

    /// Its new name; a file that is copied to a directory keeps its own.
    destination: PathBuf,

    /// What the source is; looked up, if not given.
    #[arg(long = "type", value_name = "TYPE")]
    what: Option<TypeArg>,

    /// Copy when the instance goes, not now.
    #[arg(long)]
    at_end: bool,

    /// The instance, if the paths do not tell.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,

    /// The node, if the instance has files of its own on each.
    #[arg(long = "on", value_name = "NODE")]
    on: Option<String>,

    /// Read back what was copied and compare it by content.
    #[arg(long)]
    checksum: bool,

    /// Copy no faster than this.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate_max: Option<u64>,

    /// Copy with this number of threads, 1 to 256.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=THREADS))]
    threads: Option<u32>,

    /// Files that match appear after all others are synced.
    #[arg(long, value_name = "PATTERN")]
    last: Vec<String>,

    /// Attributes to copy beside bytes and names: all (the default), none, or some of mode, times, owner,
    /// xattr, acl, links.
    ///
    /// The words of `cp --preserve` for them work, too. Links are the further names of a file. Only root
    /// can give an owner; for other users all leaves out what they may not give. Without mode a file has its
    /// source's permissions, and group and others may not write.
    #[arg(long, value_name = "LIST")]
    preserve: Option<Preserve>,

    /// What to do with files that exist and differ; if not given, overwrite.
    #[arg(long, value_name = "WHAT", value_enum)]
    existing: Option<ExistingArg>,

    /// Do not wait until it has ended.
    #[arg(long)]
    no_wait: bool,

    /// Print the transfer as JSON.
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
struct One {
    #[arg(value_name = "TRANSFER")]
    id: String,

    /// Print the transfer as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

const POLL: Duration = Duration::from_millis(100);

const THREADS: i64 = THREADS_MAX as i64;

pub fn run(args: &Args) -> Result<u8> {
    match &args.verb {
        Verb::In(copy) => start(copy, Direction::In),
        Verb::Out(copy) => start(copy, Direction::Out),
        Verb::List(args) => list(args),
        Verb::Show(one) => {
            let view = fetch(&one.node.client(), &one.id)?;
            tell(&view, one.json);
            Ok(0)
        }
        Verb::Wait(one) => wait(&one.node.client(), &one.id, one.json),
        Verb::Cancel(one) => order(one, "cancel", "ends where it is"),
        Verb::Revoke(one) => order(one, "revoke", "is revoked"),
        Verb::Activate(one) => {
            order(one, "activate", "begins now")?;
            wait(&one.node.client(), &one.id, one.json)
        }
        Verb::Resume(one) => {
            order(one, "resume", "is taken up again")?;
            wait(&one.node.client(), &one.id, one.json)
        }
    }
}

fn start(copy: &Copy, direction: Direction) -> Result<u8> {
    let client = copy.node.client();
    let absolute = |path: &PathBuf| {
        // A slash at the end says that a source that is not there yet will be a directory.
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let whole =
            std::path::absolute(path).map_err(|e| Error::io(e, path.display().to_string()))?;
        Ok::<_, Error>(if slash { whole.join("") } else { whole })
    };
    let asked = NewTransfer {
        instance: copy.instance.clone(),
        node: copy.on.clone(),
        direction,
        what: copy.what.map(|what| match what {
            TypeArg::File => What::File,
            TypeArg::Directory => What::Directory,
            TypeArg::List => What::List,
        }),
        source: absolute(&copy.source)?,
        destination: absolute(&copy.destination)?,
        when: if copy.at_end { When::AtEnd } else { When::Now },
        options: TransferOptions {
            checksum: copy.checksum,
            rate_max: copy.rate_max,
            threads: copy.threads,
            last: copy.last.clone(),
            preserve: copy.preserve.clone(),
            existing: copy.existing.map_or_else(Existing::default, Existing::from),
        },
    };
    let made: TransferView = client.post("/v1/transfers", &json!(asked))?;
    let id = &made.wanted.id;
    if copy.at_end || copy.no_wait {
        match copy.json {
            true => say_json(&made),
            false => say(id),
        }
        return Ok(0);
    }
    wait(&client, id, copy.json)
}

fn fetch(client: &NodeClient, id: &str) -> Result<TransferView> {
    client.get(&format!("/v1/transfers/{id}"))
}

/// The state of the transfer's latest attempt.
fn current(view: &TransferView) -> Option<&TransferActual> {
    view.actual.as_ref().filter(|actual| actual.attempt == view.wanted.attempt)
}

fn wait(client: &NodeClient, id: &str, json: bool) -> Result<u8> {
    signals::catch_interrupts();
    let mut line = Line::new("stage");
    let mut told = None;
    loop {
        let view = fetch(client, id)?;
        let ended = current(&view).map(|actual| actual.state).filter(|state| state.has_ended());
        if let Some(state) = ended {
            line.clear();
            tell(&view, json);
            return Ok(u8::from(state != TransferState::Done));
        }
        let why = current(&view).and_then(|actual| actual.why.clone());
        if let Some(why) = why.as_ref().filter(|_| why != told) {
            line.clear();
            note!("transfer {id} waits: {why}");
        }
        told = why;
        line.update(sample(&view));
        if signals::take_interrupt().is_some() {
            line.clear();
            let hint = format!("transfer {id} goes on; `forebay stage cancel {id}` ends it");
            return Err(Error::new(Kind::Interrupted, hint));
        }
        sleep(POLL);
    }
}

fn sample(view: &TransferView) -> Sample {
    let progress = view.progress.clone().unwrap_or_default();
    Sample {
        total_bytes: progress.bytes_total,
        done_bytes: progress.bytes,
        total_files: progress.files_total,
        done_files: progress.files,
        failed_files: progress.failures,
        told: view.progress.as_ref().map(pace),
    }
}

fn pace(progress: &Progress) -> Told {
    Told {
        bytes_per_second: progress.bytes_per_second,
        files_per_second: progress.files_per_second,
        eta_seconds: progress.eta_seconds,
        counting: progress.stage == Some(Stage::Counting),
    }
}

fn tell(view: &TransferView, json: bool) {
    if json {
        return say_json(view);
    }
    let Transfer { id, source, destination, direction, .. } = &view.wanted;
    say(format!(
        "{id}: stage-{} of {} to {}: {}",
        direction.name(),
        source.display(),
        destination.display(),
        state(view)
    ));
    if let Some(text) = asked(&view.wanted.options) {
        say(format!("  asked for: {text}"));
    }
    if let Some(progress) = &view.progress {
        let (done, all) = (human_size(progress.bytes), human_size(progress.bytes_total));
        let files = counted(progress.files_total, "file");
        say(format!("  {done} of {all}, {} of {files}", progress.files));
        say(format!("  {}", pace(progress).text()));
    }
    if let Some(actual) = current(view) {
        if view.progress.is_none() {
            say(format!("  {} in {}", human_size(actual.bytes), counted(actual.files, "file")));
            if let Some(text) = how(&actual.how) {
                say(format!("  {text}"));
            }
        }
        if actual.failures > 0 {
            note!(
                "{} failed; `forebay manifest` lists what is not home",
                counted(actual.failures, "file")
            );
        }
        if let Some(why) = &actual.why {
            note!("{why}");
        }
        actual.notes.iter().for_each(|text| note!("{text}"));
        let more = actual.noted.saturating_sub(actual.notes.len() as u64);
        if more > 0 {
            note!("{more} more were left out or did not come along");
        }
    }
}

/// The options of the transfer, as the command line has them.
fn asked(options: &TransferOptions) -> Option<String> {
    let TransferOptions { checksum, rate_max, threads, last, preserve, existing } = options;
    let mut all = Vec::new();
    all.extend(checksum.then(|| "--checksum".to_string()));
    all.extend(rate_max.map(|rate| format!("--rate-max {}/s", human_size(rate))));
    all.extend(threads.map(|count| format!("--threads {count}")));
    all.extend(last.iter().map(|pattern| format!("--last '{pattern}'")));
    all.extend(preserve.as_ref().map(|list| format!("--preserve {list}")));
    all.extend((!existing.is_default()).then(|| format!("--existing {}", existing.name())));
    (!all.is_empty()).then(|| all.join(" "))
}

fn how(how: &How) -> Option<String> {
    let How { kept_files, cloned_bytes, in_kernel_bytes, .. } = *how;
    let mut all = Vec::new();
    if kept_files > 0 {
        all.push(format!("{} there already", counted(kept_files, "file")));
    }
    if cloned_bytes > 0 {
        all.push(format!("{} as shared blocks", human_size(cloned_bytes)));
    }
    if in_kernel_bytes > 0 {
        all.push(format!("{} copied in the kernel", human_size(in_kernel_bytes)));
    }
    (!all.is_empty()).then(|| all.join(", "))
}

fn state(view: &TransferView) -> &'static str {
    match (current(view), view.wanted.when) {
        (Some(actual), _) => actual.state.name(),
        (None, When::AtEnd) => "at the end",
        (None, When::Now) => "waiting",
    }
}

fn list(args: &List) -> Result<u8> {
    let all: Vec<TransferView> = args.node.client().get("/v1/transfers")?;
    if args.json {
        say_json(&all);
        return Ok(0);
    }
    let columns = [
        ("TRANSFER", Left),
        ("INSTANCE", Left),
        ("WAY", Left),
        ("STATE", Left),
        ("FILES", Right),
        ("BYTES", Right),
        ("ETA", Right),
        ("SOURCE", Left),
        ("DESTINATION", Left),
    ];
    tabulate(&columns, all.iter().map(row)).iter().for_each(say);
    Ok(0)
}

fn row(view: &TransferView) -> Vec<String> {
    let (files, bytes) = match (&view.progress, current(view)) {
        (Some(progress), _) => (progress.files, progress.bytes),
        (None, Some(actual)) => (actual.files, actual.bytes),
        (None, None) => (0, 0),
    };
    let wanted = &view.wanted;
    let eta = view.progress.as_ref().and_then(|progress| progress.eta_seconds);
    vec![
        wanted.id.clone(),
        wanted.instance.clone(),
        wanted.direction.name().into(),
        state(view).into(),
        files.to_string(),
        human_size(bytes),
        eta.map_or_else(|| "-".into(), human_secs),
        wanted.source.display().to_string(),
        wanted.destination.display().to_string(),
    ]
}

fn order(one: &One, verb: &str, then: &str) -> Result<u8> {
    let path = format!("/v1/transfers/{}/{verb}", one.id);
    let _: Transfer = one.node.client().post(&path, &json!({}))?;
    if !one.json {
        say(format!("{} {then}", one.id));
    }
    Ok(0)
}
