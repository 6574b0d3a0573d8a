//! `forebay node`: the node daemon, and commands for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::{Error, Result};
use forebay_node::NodeConfig;
use forebay_node::health::Trouble;
use serde_json::{Value, json};

use super::nodes::staying;
use crate::config::LogSettings;
use crate::daemon::log::{Place, Stderr};
use crate::daemon::{self, Ready, Side};
use crate::node::client::NodeArgs;
use crate::node::wire::NodeView;
use crate::ui::{say, say_json};

const EXAMPLES: &str = "\
Examples:
  forebay node
  forebay node --config /etc/forebay/node.toml
  forebay node --detach
  forebay node drain n17
  forebay node undrain n17
  forebay node health

Without a configuration file the daemon serves one pool, below /var/lib/forebay, and keeps its records
there, too. It stays in the foreground, or with --detach in the background: then the command returns when
the daemon serves, with an error if it does not. SIGTERM stops it. Mounts and transfers go on without it,
and the next daemon takes them up: stop the old one, start the new one, and jobs notice nothing.

The file is TOML, by default /etc/forebay/node.toml; docs/JOBS.md has a table of its keys:

  name = \"n17\"                      # the host's name, if not said
  registry = \"etcd://e1:2379,e2:2379\"  # of this machine alone, if not said
  backing-mounts = [\"/pfs\"]         # must be mounted before they are used
  keep-after-hurry = \"24h\"
  transfer-weight = 20              # of processors, where a job's programs have 100
  [limits]
  instances-per-user = 20
  bytes-per-user = \"2TiB\"
  transfers-per-user = 10000        # that are not done
  [[pool]]
  name = \"flash\"
  dir = \"/nvme/forebay\"
  capacity = \"800GiB\"
  grain = \"1GiB\"
  swap = true

`health` exits 0 if the daemon answers and takes new instances, 1 if it is drained, 3 if it does not
answer, and 4 if something is wrong, which it names: a pool that cannot be used, swap that is left on, more
than `manifest-max` not home. For a scheduler's HealthCheckProgram, see docs/JOBS.md.";

const DRAIN: &str = "\
Examples:
  forebay node drain n17

Instances stay until their jobs end. Mounts of root's with --registry that are members under the node's name
flush, give back what they hold, and unmount, as by `forebay umount`; one that is in use is asked again
every 10 s. `forebay nodes` says what is still there, and to root why. `forebay node undrain` ends it.";

/// Serve instances and transfers on this node.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The configuration file [default: /etc/forebay/node.toml, if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Go into the background, and return when the daemon serves; the log is node.log in its `state`.
    #[arg(long)]
    detach: bool,

    /// Log as json, for a collector.
    #[arg(long)]
    log_json: bool,

    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Have a node take nothing new, and its mounts that are members leave, for maintenance.
    #[command(after_help = DRAIN)]
    Drain(Named),
    /// Have a node take new instances again; what has left stays out until it is mounted.
    #[command(after_help = "Examples:\n  forebay node undrain n17")]
    Undrain(Named),
    /// Say whether the node is fit for jobs.
    #[command(after_help = "Examples:\n  forebay node health\n  forebay node health --json")]
    Health {
        /// Print the answer as JSON.
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        node: NodeArgs,
    },
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The node, as `forebay nodes` names it.
    #[arg(value_name = "NODE")]
    name: String,

    #[command(flatten)]
    node: NodeArgs,
}

/// The exit code of `health` if something is wrong with the node.
const AILING: u8 = 4;

/// The log of a daemon in the background, in its `state`.
const LOG: &str = "node.log";

const CONFIG: &str = "/etc/forebay/node.toml";

pub fn run(args: &Args) -> Result<u8> {
    match &args.verb {
        None => serve(args),
        Some(Verb::Drain(named)) => drain(named, "drain"),
        Some(Verb::Undrain(named)) => drain(named, "undrain"),
        Some(Verb::Health { json, node }) => health(node, *json),
    }
}

fn serve(args: &Args) -> Result<u8> {
    let default = || Some(PathBuf::from(CONFIG)).filter(|path| path.exists());
    let config = match args.config.clone().or_else(default) {
        Some(path) => NodeConfig::read(&path)?,
        None => NodeConfig::from_toml("")?,
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Error::os(libc::EPERM, "a node daemon mounts for others: run it as root"));
    }
    if args.detach {
        return serve_in_background(config, args.log_json);
    }
    start_log(args);
    crate::node::serve(config, Ready::nobody())
}

fn serve_in_background(config: NodeConfig, log_json: bool) -> Result<u8> {
    let (name, socket, state) = (config.name.clone(), config.socket.clone(), config.state.clone());
    let begin = |ready: Ready| match start_log_file(&config.state, log_json) {
        Ok(()) => crate::node::serve(config, ready),
        Err(error) => {
            ready.failed(&error);
            Err(error)
        }
    };
    match daemon::fork()? {
        Side::Daemon(ready) => {
            std::process::exit(begin(ready).unwrap_or_else(|e| e.exit_code()).into())
        }
        Side::Parent(child) => {
            let notes = child.wait_ready("the node daemon has ended")?;
            let (socket, log) = (socket.display(), state.join(LOG));
            let notes = notes.join(", ");
            say(format!("node {name} serves at {socket} ({notes}); its log is {}", log.display()));
            Ok(0)
        }
    }
}

fn start_log_file(state: &Path, json: bool) -> Result<()> {
    if let Some(parent) = state.parent() {
        crate::node::make_dir(parent)?;
    }
    let place = Place { dir: Arc::new(forebay_node::own_dir(state)?), name: LOG.into() };
    let settings = LogSettings { json, level: "info", file: None };
    daemon::log::start(&settings, Some(place), Stderr::Unread)
}

fn start_log(args: &Args) {
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr);
    match args.log_json {
        true => builder.json().init(),
        false => builder.with_ansi(false).init(),
    }
}

fn drain(named: &Named, verb: &str) -> Result<u8> {
    let path = format!("/v1/nodes/{}/{verb}", named.name);
    let _: Value = named.node.client().post(&path, &json!({}))?;
    match verb {
        "drain" => {
            say(format!(
                "node {} takes nothing new, and its members leave; `forebay nodes` says what is still on it",
                named.name
            ));
            let nodes: Vec<NodeView> = named.node.client().get("/v1/nodes")?;
            let of_it = || nodes.iter().filter(|node| node.name == named.name);
            of_it().flat_map(staying).for_each(say);
            if of_it().all(|node| node.record.is_none()) {
                say(format!("node {} is away: it is drained when it comes back", named.name));
            }
        }
        _ => say(format!("node {} takes new instances again", named.name)),
    }
    Ok(0)
}

fn health(node: &NodeArgs, json: bool) -> Result<u8> {
    let found: Value = node.client().get("/v1/node")?;
    let draining = found["draining"].as_bool().unwrap_or(false);
    let troubles: Vec<Trouble> =
        serde_json::from_value(found["troubles"].clone()).unwrap_or_default();
    let exit_code = match (troubles.is_empty(), draining) {
        (false, _) => AILING,
        (true, draining) => u8::from(draining),
    };
    if json {
        say_json(&found);
        return Ok(exit_code);
    }
    troubles.iter().for_each(|trouble| say(&trouble.text));
    match (exit_code, draining) {
        (_, true) => say("drained: takes nothing new"),
        (0, _) => say("fit"),
        _ => {}
    }
    Ok(exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_help_text_is_one() {
        let (_, file) = EXAMPLES.split_once("of its keys:\n\n").expect("it is shown");
        let (file, _) = file.split_once("\n\n`health`").expect("text follows");
        let config = NodeConfig::from_toml(file).unwrap();
        assert_eq!((config.name.as_str(), config.pools.len()), ("n17", 1));
        assert!(config.pools[0].swap && config.limits.instances_per_user == Some(20));
    }
}
