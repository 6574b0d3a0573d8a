//! `forebay registry check|dump`.

mod probe;

use clap::Subcommand;
use forebay_backing::{Error, Kind, Result};
use forebay_registry::{Address, Embedded, Entry, Registry};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::ui::table::{Align, lay_out};
use crate::ui::{note, say, say_json, say_wrong};
use crate::units::{counted, human_size};
use probe::Probe;

use crate::registry_problems::{Usage, with_way_out};

const EXAMPLES: &str = "\
Examples:
  forebay registry check etcd://n1:2379,n2:2379,n3:2379/forebay
  forebay registry check /var/lib/forebay/registry
  forebay registry dump --prefix nodes/ etcd://n1:2379/forebay

An address is a directory of this machine, or etcd://HOST:PORT,.../PREFIX. With
TLS it is etcds://, and tells the files by ?ca=FILE&cert=FILE&key=FILE; a user of
etcd is told by user=NAME&password-file=FILE.";

const CHECK_EXAMPLES: &str = "\
Examples:
  forebay registry check etcd://n1:2379,n2:2379,n3:2379/forebay
  forebay registry check --json /var/lib/forebay/registry

What it writes is below check/ and is gone when it ends. It looks at all records
of nodes, instances, transfers and shared stores, too: one that is damaged, room
that is granted to nothing, a claim of nobody. Exit code 1 if anything is wrong,
with what to do about it.";

const DUMP_EXAMPLES: &str = "\
Examples:
  forebay registry dump /var/lib/forebay/registry
  forebay registry dump --prefix wanted/ --json etcd://n1:2379/forebay";

/// Look at the registry that nodes share.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(Check),
    Dump(Dump),
}

/// Try whether a registry does what nodes need.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES)]
struct Check {
    /// The registry's address.
    address: String,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Print the keys and values of a registry.
#[derive(Debug, clap::Args)]
#[command(after_help = DUMP_EXAMPLES)]
struct Dump {
    /// The registry's address.
    address: String,

    /// Only keys with this prefix.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let done = match &args.what {
        What::Check(args) => check(args),
        What::Dump(args) => dump(args),
    };
    done.map_err(with_way_out)
}

/// Opens a registry that exists: looking must not make one.
fn open(address: &str) -> Result<Arc<dyn Registry>> {
    let address: Address = address.parse()?;
    match &address {
        Address::Embedded(dir) if !Embedded::is_in(dir) => Err(Error::new(
            Kind::Usage,
            format!(
                "{}: there is no registry in it; the node daemon makes one when it starts",
                dir.display()
            ),
        )),
        _ => forebay_registry::open_at(&address, forebay_registry::PATIENCE),
    }
}

fn check(args: &Check) -> Result<u8> {
    let registry = open(&args.address)?;
    let mut probe = Probe::of(&registry)?;
    let (entries, _) = registry.range("")?;
    probe.problems.extend(forebay_node::audit::problems_of(&entries));
    probe.problems.extend(forebay_cluster::audit::problems_of(&entries));
    match args.json {
        true => say_json(&as_json(registry.address(), &probe, entries.len())),
        false => tell(registry.address(), &probe, entries.len()),
    }
    Ok(u8::from(!probe.problems.is_empty()))
}

fn tell(address: &str, probe: &Probe, records: usize) {
    let health = &probe.health;
    say(format!("{address}: {}", health.version));
    say(format!("cluster {}, revision {}", health.identity.cluster, health.identity.revision));
    let quota = match Usage::of(health) {
        Some(usage) => format!(
            "{} of {} ({} %)",
            human_size(health.bytes),
            human_size(usage.quota),
            usage.percent
        ),
        None => human_size(health.bytes),
    };
    say(format!("storage: {quota}, {}", counted(records as u64, "record")));
    if let Some(commits) = &probe.commits {
        say(format!(
            "commits: {} in turn, {:.2} ms each (median)",
            commits.count, commits.median_ms
        ));
    }
    if let Some(lease) = &probe.lease {
        say(format!("lease: granted for {} s, kept and given up", lease.as_secs()));
    }
    probe.problems.iter().for_each(|problem| say_wrong(&format!("problem: {problem}")));
    if probe.problems.is_empty() {
        say("sound");
    }
}

fn as_json(address: &str, probe: &Probe, records: usize) -> Value {
    let usage = Usage::of(&probe.health);
    json!({
        "ok": probe.problems.is_empty(),
        "address": address,
        "version": probe.health.version,
        "cluster": probe.health.identity.cluster,
        "revision": probe.health.identity.revision,
        "bytes": probe.health.bytes,
        "bytes_in_use": probe.health.bytes_in_use,
        "quota_bytes": probe.health.quota,
        "quota_percent": usage.map(|usage| usage.percent),
        "records": records,
        "alarms": probe.health.alarms,
        "commit_median_ms": probe.commits.as_ref().map(|commits| commits.median_ms),
        "lease_seconds": probe.lease.map(|lease| lease.as_secs()),
        "problems": probe.problems,
    })
}

fn dump(args: &Dump) -> Result<u8> {
    let registry = open(&args.address)?;
    let (entries, revision) = registry.range(&args.prefix)?;
    if args.json {
        say_json(&json!({ "revision": revision, "entries": entries }));
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    lay_out(&[Align::Left, Align::Right, Align::Left, Align::Left], &rows).iter().for_each(say);
    if entries.is_empty() {
        note!("{}: nothing begins with {:?}", registry.address(), args.prefix);
    }
    Ok(0)
}

/// The columns: key, revision, lease, value.
fn row(entry: &Entry) -> Vec<String> {
    let lease = entry.lease.map_or_else(|| "-".into(), |lease| lease.to_string());
    let value = String::from_utf8_lossy(&entry.value).into_owned();
    vec![entry.key.clone(), entry.revision.to_string(), lease, value]
}
