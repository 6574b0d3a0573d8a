//! `forebay set`.

use std::path::PathBuf;

use forebay_backing::{Error, Kind, Result};
use serde_json::{Map, Value, json};

use super::watch;
use crate::config::keys;
use crate::http::Client;
use crate::mounts::Mounts;
use crate::ui::{Output, say, say_json};

const EXAMPLES: &str = "\
Examples:
  forebay set /mnt/fast max-age=10s rate-max=50MB/s
  forebay set /mnt/fast policy=write-through
  forebay set /mnt/fast tier-size=8GiB --background
  forebay set /mnt/fast bypass-reads=64MiB schedule=22:00-06:00

All of the values are taken, or none. They last until unmount; `forebay get` shows them, and
`forebay mount --help` says what each means.

They hold from the next request on. The policies write-through and write-around, and a tier-size that
is too small even after clean bytes are evicted, also drain all that is dirty; the command waits for
that. Interrupting it leaves the rest to the drain.";

/// Change settings of a mount while it is in use.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,

    /// The settings to change.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pairs: Vec<String>,

    /// Do not wait until the change has taken full effect.
    #[arg(long)]
    background: bool,

    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let body = parse(&args.pairs)?;
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let client = Client::new(&place.tier);
    let answer = client.ask("PUT", "/v1/config", &body)?;
    match args.json {
        true => say_json(&answer),
        false => tell(&answer),
    }
    let Some(id) = answer["job"].as_u64().filter(|_| !args.background) else { return Ok(0) };
    let job = watch::watch(&client, id, "drain", None)?;
    if Output::from(args.json) == Output::Human {
        watch::tell(&job, &place.mountpoint);
    }
    Ok(job.exit_code.unwrap_or(0))
}

fn parse(pairs: &[String]) -> Result<Value> {
    let mut body = Map::new();
    for pair in pairs {
        let usage = |reason: String| Error::new(Kind::Usage, format!("{pair}: {reason}"));
        let (name, value) = pair.split_once('=').ok_or_else(|| usage("write KEY=VALUE".into()))?;
        let key = keys::find(name.trim()).map_err(usage)?;
        body.insert(key.name.into(), json!(value.trim()));
    }
    Ok(Value::Object(body))
}

fn tell(answer: &Value) {
    for (name, change) in answer["changed"].as_object().into_iter().flatten() {
        let word = |field: &str| change[field].as_str().unwrap_or_default().to_string();
        say(format!("{name} = {} (was {})", word("value"), word("was")));
    }
    let lines =
        |name: &str| answer[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines("notes").for_each(say);
    lines("waits_for").for_each(|waiting| say(format!("waits for {waiting}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_keys_of_the_table() {
        let body = parse(&["max-age=10s".into(), "schedule=22:00-06:00=20MB/s".into()]).unwrap();
        assert_eq!(body, json!({ "max-age": "10s", "schedule": "22:00-06:00=20MB/s" }));
        let wrong = |pair: &str| parse(&[pair.into()]).unwrap_err().to_string();
        assert!(wrong("max-aeg=1s").contains("did you mean max-age?"));
        assert!(wrong("max-age").contains("write KEY=VALUE"));
    }
}
