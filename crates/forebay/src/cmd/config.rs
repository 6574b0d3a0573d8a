//! `forebay config show`.

use clap::Subcommand;
use forebay_backing::Result;
use serde_json::{Value, json};

use crate::config::{ConfigFlags, Settings};
use crate::ui::table::{Align, lay_out};
use crate::ui::{say, say_json};

const EXAMPLES: &str = "\
Examples:
  forebay config show
  forebay config show --config trial.toml --max-age 5s
  forebay config show --mount project
  forebay config show --json";

/// Look at the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(Show),
}

/// Print every setting with its value and where it comes from.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Show {
    /// Print the settings of the mount of this name.
    #[arg(long, value_name = "NAME")]
    mount: Option<String>,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigFlags,
}

pub fn run(args: &Args) -> Result<u8> {
    let What::Show(show) = &args.what;
    let settings = match &show.mount {
        None => show.config.load()?,
        Some(name) => {
            let file = show.config.read_file()?;
            show.config.load_section(&file, file.section(name)?)?
        }
    };
    match show.json {
        true => say_json(&as_json(&settings)),
        false => lay_out(&[Align::Left; 3], &rows(&settings)).iter().for_each(say),
    }
    Ok(0)
}

fn rows(settings: &Settings) -> Vec<Vec<String>> {
    let shown = settings.shown();
    let rows = shown.map(|(key, value, origin)| {
        vec![key.name.to_string(), value.to_string(), format!("({origin})")]
    });
    rows.collect()
}

fn as_json(settings: &Settings) -> Value {
    let entries = settings.shown().map(|(key, value, origin)| {
        let entry = json!({ "value": value.to_string(), "origin": origin.to_string() });
        (key.name.to_string(), entry)
    });
    Value::Object(entries.collect())
}
