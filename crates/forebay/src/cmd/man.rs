//! `forebay man`: the man pages, for packages.
//!
//! The generator (clap_mangen) makes each page except the text behind the options: there, paragraphs are
//! filled, and commands stay on one line, without hyphens added, as they are to be typed.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use forebay_backing::{Error, Result};

use crate::cli;
use crate::ui::say;

const EXAMPLES: &str = "\
Examples:
  forebay man /usr/local/share/man/man1
  forebay man /tmp/pages
  man /tmp/pages/forebay-mount.1

One page for each command, forebay.1 for all of them.";

/// Write the man pages into a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory; it is made if it does not exist.
    dir: PathBuf,
}

/// Examples on a page may be this long before they are broken.
const COLUMNS: usize = 72;

pub fn run(args: &Args) -> Result<u8> {
    let failed = |e| {
        let at = args.dir.display();
        Error::io(e, format!("{at}: name a directory that you can write to"))
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    let mut root = cli::shown(COLUMNS).disable_help_subcommand(true);
    root.build();
    let written = write_all(&root, &args.dir).map_err(failed)?;
    say(format!("{written} pages in {}", args.dir.display()));
    Ok(0)
}

fn write_all(command: &Command, dir: &Path) -> std::io::Result<usize> {
    let mut written = 1;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        written += write_all(sub, dir)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone());
    let mut page = std::fs::File::create(dir.join(man.get_filename()))?;
    render(&man, command, &after, &mut page)?;
    Ok(written)
}

fn render(man: &Man, command: &Command, after: &str, out: &mut impl Write) -> std::io::Result<()> {
    man.render_title(out)?;
    // Ragged lines, and no word broken: text copied from a page must be exactly as written.
    out.write_all(b".nh\n.ad l\n")?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(out)?;
    }
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    out.write_all(notes(after).as_bytes())
}

/// The text behind the options: examples, then paragraphs.
fn notes(text: &str) -> String {
    let mut roff = String::new();
    let mut as_it_is = false;
    for line in text.lines() {
        let command = line.starts_with(' ');
        if command != as_it_is {
            roff += if command { ".PP\n.nf\n.RS 2\n" } else { ".RE\n.fi\n" };
            as_it_is = command;
        }
        match line {
            "" => roff += ".PP\n",
            "Examples:" => roff += ".SH EXAMPLES\n",
            line => roff += &format!("{}\n", escaped(line.strip_prefix("  ").unwrap_or(line))),
        }
    }
    roff + if as_it_is { ".RE\n.fi\n" } else { "" }
}

/// Escapes a line so that roff prints it verbatim: no control line, no escape, hyphens as minus signs.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with(['.', '\\']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stay_as_they_are_and_paragraphs_are_filled() {
        let text =
            "Examples:\n  forebay set /m a=b\n  forebay x \\\n      -y '.'\n\nOne\ntwo.\n.dot";
        let page = ".SH EXAMPLES\n.PP\n.nf\n.RS 2\nforebay set /m a=b\nforebay x \\e\n    \
                    \\-y \\(aq.\\(aq\n.RE\n.fi\n.PP\nOne\ntwo.\n\\&.dot\n";
        assert_eq!(notes(text), page);
    }
}
