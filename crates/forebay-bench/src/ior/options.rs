//! IOR's command line.

use super::params::Params;
use super::script;
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

/// All options; the long names are the keys of [`Params::set`].
pub fn spec() -> Spec {
    let spec = Spec::new("ior")
        .about(
            "IOR's workload, with IOR's options, meanings and output, without MPI. Before each \
             read phase it measures how much of the data is in the page cache, and it flags \
             numbers that no device made.",
        )
        .usage("[OPTIONS] [-o FILE]")
        .examples(EXAMPLES);
    ours(taken(sequence(layout(spec))))
}

fn layout(spec: Spec) -> Spec {
    spec.value(Some('a'), "api", "NAME", "POSIX, MMAP, URING or DUMMY")
        .value(Some('o'), "testFile", "FILE", "the file; several for -F are separated by @")
        .value(Some('b'), "blockSize", "SIZE", "contiguous bytes of a task in a segment [1m]")
        .value(Some('t'), "transferSize", "SIZE", "bytes of one transfer [256k]")
        .value(Some('s'), "segmentCount", "N", "segments [1]")
        .value(Some('N'), "numTasks", "N", "tasks [1]")
        .flag(Some('F'), "filePerProc", "a file for each task")
        .flag(Some('u'), "uniqueDir", "each task's file in a directory of its own")
        .flag(Some('m'), "multiFile", "a file for each repetition")
        .flag(Some('C'), "reorderTasks", "read what the rank -Q away wrote")
        .value(Some('Q'), "taskPerNodeOffset", "N", "how far away, in nodes [1]")
        .flag(Some('Z'), "reorderTasksRandom", "read what a random rank wrote; -ZZ each once")
        .value(Some('X'), "reorderTasksRandomSeed", "N", "seed of -Z; negative: new each time")
        .flag(Some('z'), "randomOffset", "random order in a segment; -zz random offsets")
        .value(None, "random-offset-seed", "N", "seed of -z [0]")
        .value(Some('l'), "dataPacketType", "KIND", "timestamp, offset, incompressible, random")
        .value(Some('G'), "setTimeStampSignature", "N", "signature of the contents [the time]")
        .flag(None, "posix.odirect", "O_DIRECT")
        .flag(Some('B'), "useO_DIRECT", "the same, as IOR 3 had it")
        .flag(None, "posix.rangelocks", "lock the range of each transfer")
}

fn sequence(spec: Spec) -> Spec {
    spec.flag(Some('w'), "writeFile", "write")
        .flag(Some('r'), "readFile", "read")
        .flag(Some('W'), "checkWrite", "read back and compare after writing")
        .flag(Some('R'), "checkRead", "compare what is read")
        .flag(Some('e'), "fsync", "fsync at the end of the write phase")
        .flag(Some('Y'), "fsyncPerWrite", "fsync after each write")
        .flag(Some('E'), "useExistingTestFile", "do not remove the file before writing")
        .flag(Some('k'), "keepFile", "keep the file")
        .flag(Some('K'), "keepFileWithError", "keep a file in which errors were found")
        .value(Some('i'), "repetitions", "N", "repetitions [1]")
        .value(Some('d'), "interTestDelay", "SECONDS", "pause between repetitions")
        .value(Some('D'), "deadlineForStonewalling", "SECONDS", "stop a phase after this time")
        .value(Some('T'), "maxTimeDuration", "MINUTES", "begin no repetition after this time")
        .value(None, "randomPrefill", "SIZE", "fill the file first, in transfers of this size")
        .flag(Some('g'), "intraTestBarriers", "barriers between open, transfers and close")
        .flag(Some('x'), "singleXferAttempt", "do not continue short transfers")
        .value(Some('j'), "outlierThreshold", "SECONDS", "warn of tasks so far from the mean")
        .value(Some('M'), "memoryPerNode", "SIZE", "memory to occupy: 2g or 75%")
        .value(Some('A'), "refNum", "N", "a number for the summary")
        .value(Some('O'), "directive", "K=V,...", "settings as in scripts, e.g. summaryFormat=JSON")
        .value(Some('f'), "scriptFile", "FILE", "tests from a script")
        .flag(Some('v'), "verbose", "tell more; repeatable")
        .flag(Some('y'), "dualMount", "not without MPI; list directories with -o a@b")
        .flag(None, "dryRun", "show what would be done")
        .flag(None, "warningAsErrors", "end at the first warning")
}

/// See [`super::ignored`].
fn taken(spec: Spec) -> Spec {
    spec.flag(Some('c'), "collective", "taken, without effect, as are all up to -U")
        .flag(Some('V'), "useFileView", "MPI-IO's")
        .flag(Some('p'), "preallocate", "MPI-IO's")
        .flag(Some('P'), "useSharedFilePointer", "MPI-IO's")
        .flag(Some('S'), "useStridedDatatype", "MPI-IO's")
        .flag(Some('H'), "showHints", "MPI-IO's")
        .flag(Some('I'), "individualDataSets", "HDF5's")
        .value(Some('J'), "setAlignment", "SIZE", "HDF5's")
        .flag(Some('n'), "noFill", "HDF5's")
        .flag(Some('q'), "quitOnError", "errors are counted")
        .value(Some('U'), "hintsFileName", "FILE", "MPI-IO's")
}

fn ours(spec: Spec) -> Spec {
    spec.flag(None, "threads", "tasks are threads, not processes")
        .value(None, "tasks-per-node", "N", "ranks that -C and -Z count as one node [1]")
        .value(None, "depth", "N", "transfers in flight with -a URING [32]")
        .value(None, "cache", "POLICY", "keep, drop, direct, fadvise, hog=75% before reading")
        .value(None, "device-limit", "RATE", "bytes per second the device can do, to flag more")
        .value(None, "target", "TARGET", "null: transfer nothing, measure the tool")
        .value(None, "out", "FILE", "results as NDJSON, for `forebay bench report`")
        .value(None, "json", "FILE", "results as one JSON document")
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
        match name {
            "scriptFile" => (),
            "directive" => directives(&mut params, value)?,
            // Flags that mean more when repeated.
            "randomOffset" => params.random_offset += 1,
            "reorderTasksRandom" => params.random_tasks += 1,
            "verbose" => params.verbose += 1,
            _ => {
                let value = if value.is_empty() { "1" } else { value };
                params.set(name, value).map_err(|error| named(&format!("--{name}"), &error))?;
            }
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
        assert!(refused("-t 3 -b 4").contains("multiple of -t"));
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
