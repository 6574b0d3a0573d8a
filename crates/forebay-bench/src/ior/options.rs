//! IOR's command line: [`settings`] defines the options.

use super::params::Params;
use super::{script, settings};
use crate::args::{Parsed, Spec};
use crate::{Error, Result};

const EXAMPLES: &str = "\
  forebay bench ior -t 1m -b 16m -s 16 -N 4 -o /data/testFile
  forebay bench ior -F -C -e -t 1m -b 16m -s 16 -N 4 -o /data/testFile
  forebay bench ior -wrWR -l offset -t 64k -b 8m -N 2 -o /data/testFile
  forebay bench ior -w -z -t 4k -b 1g -D 30 -a URING --depth 32 -o /data/testFile
  forebay bench ior -r -t 1m -b 1g -k -E --cache drop -o /data/testFile
  forebay bench ior --target null -t 4k -b 4g
  forebay bench ior -f tests.ior --out results.ndjson

With none of -w -r -W -R both write and read are done. The file is removed at the end unless -k is
given, also if it was only read. Sizes: k, m, g, t are powers of 1024.";

pub fn spec() -> Spec {
    let spec = Spec::new("ior")
        .about(
            "IOR's workload, with IOR's options, meanings and output, without MPI. Before each \
             read phase it measures how much of the data is in the page cache, and it flags \
             numbers that no device made.",
        )
        .usage("[OPTIONS] [-o FILE]")
        .examples(EXAMPLES);
    settings::options(spec)
}

/// The tests a command line asks for; `None` if only help was wanted, which is printed.
pub fn read(args: &[String]) -> Result<Option<Vec<Params>>> {
    let parsed = spec().parse(args)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(None);
    }
    if let [stray, ..] = parsed.rest() {
        return Err(Error::usage(format!("{stray:?} is not an option; the file goes after -o")));
    }
    let base = base(&parsed)?;
    let mut tests = match parsed.get("scriptFile") {
        Some(path) => script::read(std::path::Path::new(path), &base)?,
        None => vec![base],
    };
    for test in &mut tests {
        test.complete();
        super::check::settings(test)?;
    }
    Ok(Some(tests))
}

fn base(parsed: &Parsed) -> Result<Params> {
    let mut params = Params::default();
    for (name, value) in parsed.given() {
        let named = |error| named(&format!("--{name}"), &error);
        match name {
            "scriptFile" => (),
            "directive" => directives(&mut params, value)?,
            _ if value.is_empty() => params.raise(name).map_err(named)?,
            _ => params.set(name, value).map_err(named)?,
        }
    }
    Ok(params)
}

/// `key=value,key=value`.
fn directives(params: &mut Params, text: &str) -> Result<()> {
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| {
            Error::usage(format!("-O {part:?}: write key=value, separated by commas"))
        })?;
        params
            .set(key.trim(), value.trim())
            .map_err(|error| named(&format!("-O {}", part.trim()), &error))?;
    }
    Ok(())
}

fn named(option: &str, error: &Error) -> Error {
    Error::usage(format!("{option}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Api;
    use crate::ior::params::{Format, Order, Reorder};

    fn one(line: &str) -> Params {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read(&args).unwrap().unwrap().remove(0)
    }

    fn refused(line: &str) -> String {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let error = read(&args).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn lines_from_tutorials_mean_what_they_mean_in_ior() {
        let plain = one("");
        assert_eq!((plain.block, plain.transfer, plain.segments), (1 << 20, 256 << 10, 1));
        assert!(plain.write && plain.read && !plain.keep);
        let usual = one("-wrkF -a POSIX -b16m -t 1m -s=16 -e -i 3 -vv --posix.odirect -ZZ -zz");
        assert!(usual.file_per_task && usual.keep && usual.sync && usual.direct);
        assert_eq!((usual.repetitions, usual.verbose, usual.segments), (3, 2, 16));
        assert_eq!((usual.reorder(), usual.order()), (Reorder::Shuffle, Order::Random));
    }

    #[test]
    fn directives_set_what_scripts_set() {
        let test = one("-O summaryFormat=JSON,summaryFile=/tmp/x,useO_DIRECT=1,fileperproc=1");
        assert_eq!(test.summary_format, Format::Json);
        assert!(test.direct && test.file_per_task);
        assert!(refused("-O nonsense=1").contains("nonsense"));
        assert!(refused("-O blockSize").contains("key=value"));
    }

    #[test]
    fn impossible_lines_are_refused_by_name() {
        assert!(refused("-t 2m -b 1m").contains("-t"));
        assert!(refused("-t 3 -b 4").contains("-b 4B is not a multiple of -t 3B: change"));
        assert!(refused("-C -Z").contains("-C"));
        assert!(refused("-a MPIIO").contains("-a POSIX"));
        assert!(refused("-y").contains("-o /a/file@/b/file"));
        assert!(refused("-L").contains("no option -L"));
        assert!(refused("-b 1x").contains("1x"));
        assert!(refused("somewhere").contains("-o"));
        assert!(refused("-N 0").contains("-N"));
        assert!(refused("-W -r").contains("-W"));
        assert!(refused("-R -l random").contains("-G"));
        assert!(refused("-b 4000000t -t 1m -N 4 -D 1").contains("-b"));
        assert!(refused("-a URING --depth 5000").contains("--depth"));
        for option in ["-d", "-D", "-T", "-j"] {
            for value in ["-1", "nan", "inf"] {
                assert!(refused(&format!("{option} {value}")).contains(option), "{option} {value}");
            }
        }
        assert!(refused("-r -i 2").contains("-k"));
    }

    #[test]
    fn the_tool_itself_can_be_the_target() {
        assert_eq!(one("--target null").api, Api::Null);
        assert_eq!(one("-a DUMMY").api, Api::Null);
    }
}
