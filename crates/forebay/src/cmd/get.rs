//! `forebay get`.

use std::path::PathBuf;

use forebay_backing::{Error, Kind, Result};
use serde_json::{Map, Value};

use crate::config::keys;
use crate::http::Client;
use crate::mounts::Mounts;
use crate::ui::table::{Align, lay_out};
use crate::ui::{say, say_json};

const EXAMPLES: &str = "\
Examples:
  forebay get /mnt/fast
  forebay get /mnt/fast policy
  forebay get /mnt/fast dirty-low dirty-high --json

One key prints its value alone, for scripts. `forebay config show` tells what a new mount would get,
`forebay mount --help` what each setting means.";

/// Print settings of a mount as they are now, and where each comes from.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,

    /// The settings to print [default: everything].
    #[arg(value_name = "KEY")]
    keys: Vec<String>,

    /// Print values and origins as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let mut names = Vec::new();
    for name in &args.keys {
        let usage = |reason| Error::new(Kind::Usage, format!("{name}: {reason}"));
        names.push(keys::find(name).map_err(usage)?.name);
    }
    if names.is_empty() {
        names.extend(keys::KEYS.iter().map(|key| key.name));
    }
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let all = Client::new(&place.tier).get("/v1/config")?;
    match (args.json, args.keys.len()) {
        (true, _) => say_json(&chosen(&all, &names)),
        (false, 1) => say(word(&all[names[0]], "value")),
        (false, _) => lay_out(&[Align::Left; 3], &rows(&all, &names)).iter().for_each(say),
    }
    Ok(0)
}

fn chosen(all: &Value, names: &[&str]) -> Value {
    let entries = names.iter().map(|name| (name.to_string(), all[*name].clone()));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn rows(all: &Value, names: &[&str]) -> Vec<Vec<String>> {
    let row = |name: &&str| {
        let origin = format!("({})", word(&all[*name], "origin"));
        vec![name.to_string(), word(&all[*name], "value"), origin]
    };
    names.iter().map(row).collect()
}

fn word(entry: &Value, field: &str) -> String {
    entry[field].as_str().unwrap_or_default().into()
}
