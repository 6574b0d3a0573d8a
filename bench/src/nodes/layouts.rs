//! Four tasks of `forebay bench` on four nodes, beside the same four on one node. One task's data are
//! verified by another, through another node's mount; a byte changed in between must be found.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Pair;
use super::many::NODES;
use crate::report::{Finding, Report};
use crate::run::{Rounds, Run};

/// The size in the IO500's hard layout: no multiple of a page.
const SMALL: &str = "3901";

/// The exit codes of a verification without and with errors.
const GOOD: i32 = 0;
const WRONG: i32 = 1;

/// The mounts where tasks work: those of four nodes, or only the one without a registry.
struct Ground<'a> {
    pair: &'a Pair,
    spread: bool,
}

impl Ground<'_> {
    /// A name for each task, each through the mount that is `away` nodes after that of its writer.
    fn names(&self, name: &str, away: usize) -> String {
        self.paths(name, away).map(|path| path.display().to_string()).collect::<Vec<_>>().join("@")
    }

    fn paths(&self, name: &str, away: usize) -> impl Iterator<Item = PathBuf> + '_ {
        let name = name.to_owned();
        (0..NODES).map(move |task| {
            let name = format!("{name}{task}");
            match self.spread {
                true => self.pair.cluster.at((task + away) % NODES, &name),
                false => self.pair.dirs()[1].join(name),
            }
        })
    }

    /// Changes one byte of one task's file, through its writer's mount.
    fn damage(&self, file: &str) -> Result<()> {
        let path = self.paths("", 0).next().context("there are tasks")?.with_file_name(file);
        let file = File::options().read(true).write(true).open(&path)?;
        let (mut byte, at) = ([0], file.metadata()?.len() / 2);
        file.read_exact_at(&mut byte, at)?;
        Ok(file.write_all_at(&[byte[0] ^ 1], at)?)
    }
}

/// Runs `forebay bench`, which must end with this code; returns its JSON.
fn tool(run: &Run, line: &str, code: i32) -> Result<Value> {
    let binary = run.binary.as_deref().context("no forebay binary (--forebay FILE)")?;
    let json = run.disk.path().join("bench.json");
    let _ = std::fs::remove_file(&json);
    let line = line.replace("FILE", &json.to_string_lossy());
    let mut command = Command::new(binary);
    command.arg("bench").args(line.split(' ')).stdin(Stdio::null());
    let done = command.output().context("cannot start forebay bench")?;
    let said = String::from_utf8_lossy(&done.stderr);
    let ended = done.status.code();
    ensure!(ended == Some(code), "`forebay bench {line}` ended with {ended:?}: {}", said.trim());
    let text = std::fs::read_to_string(&json).context("forebay bench wrote no JSON")?;
    serde_json::from_str(&text).context("what forebay bench wrote is not JSON")
}

fn state(what: &str) -> String {
    format!("{what}, verified through another node's mount; a changed byte was found")
}

fn names() -> [String; 2] {
    ["4 nodes", "1 node"].map(str::to_owned)
}

pub fn ior(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, NODES)?;
    let size = run.pick("128m", "32m");
    let [write, read] = run.alternate(2, Rounds::Few, |who, round| {
        let ground = Ground { pair: &pair, spread: who == 0 };
        let task = |options: &str, away, code| {
            let at = ground.names(&format!("ior-{round}-"), away);
            let how = "-O summaryFormat=JSON -O summaryFile=FILE";
            tool(run, &format!("ior {options} -F -t 1m -b {size} -N {NODES} {how} -o {at}"), code)
        };
        let rate = |told: &Value, name: &str| {
            let rate = told["tests"][0]["max"][name].as_f64();
            rate.with_context(|| format!("forebay bench ior tells no {name}"))
        };
        let written = rate(&task("-w -k", 0, GOOD)?, "writeMB")?;
        // The second reader is neither the writer nor the first reader.
        let read = rate(&task("-r -R -k", 1, GOOD)?, "readMB")?;
        ground.damage(&format!("ior-{round}-0.00000000"))?;
        task("-R", 2, WRONG)?;
        Ok([written, read])
    })?;
    let state = state(&format!("{NODES} tasks, {size} each (-F -t 1m)"));
    report.add(Finding::new("nodes-ior/write", &state, "MB/s", &names(), &write))?;
    report.add(Finding::new("nodes-ior/read", &state, "MB/s", &names(), &read))
}

pub fn mdtest(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, NODES)?;
    let files = run.pick(500, 100);
    let samples: [_; 4] = run.alternate(2, Rounds::Few, |who, round| {
        let ground = Ground { pair: &pair, spread: who == 0 };
        let name = format!("md-{round}-");
        let task = |options: &str, away, code| {
            let at = ground.names(&name, away);
            let all = format!("-F -n {files} -w {SMALL} -e {SMALL} --tasks {NODES} --json FILE");
            tool(run, &format!("mdtest {options} {all} -d {at}"), code)
        };
        let created = rate(&task("-C", 0, GOOD)?, "File creation")?;
        let read = task("-T -E -X", 1, GOOD)?;
        let read = [rate(&read, "File stat")?, rate(&read, "File read")?];
        ground.damage(&format!("{name}0/test-dir.0-0/mdtest_tree.0/file.mdtest.0.0"))?;
        task("-E -X", 2, WRONG)?;
        let removed = rate(&task("-r", 3, GOOD)?, "File removal")?;
        Ok([created, read[0], read[1], removed])
    })?;
    let state = state(&format!("{NODES} tasks, {files} files of {SMALL} bytes each (-F -X)"));
    for (name, samples) in ["create", "stat", "read", "remove"].into_iter().zip(&samples) {
        let case = format!("nodes-mdtest/{name}");
        report.add(Finding::new(&case, &state, "files/s", &names(), samples))?;
    }
    Ok(())
}

fn rate(told: &Value, phase: &str) -> Result<f64> {
    let phases = told["phases"].as_array().context("forebay bench mdtest tells no phases")?;
    let phase = phases.iter().find(|one| one["name"] == phase).context("a phase is missing")?;
    let of = |name: &str| phase[name].as_f64().with_context(|| format!("a phase has no {name}"));
    Ok(of("ops")? / of("seconds")?)
}
