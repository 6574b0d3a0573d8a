//! `bfs`: how fast is the search of a graph that does not fit into memory? Semi-external
//! breadth-first search: vertices in memory, edges in a file; the random reads of data-intensive
//! computing.

mod graph;
mod search;
mod verify;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::PathBuf;
use std::time::Instant;

use super::rates::check_tasks;
use super::session::{Before, Cache, Session, Told};
use super::{Prepared, Queue, Workload};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::clock;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::io::{Api, How};
use crate::meter::Total;
use crate::progress::Goal;
use crate::record::{Access, Line, Phase};
use crate::rng::Rng;
use crate::stats;
use crate::team::{Kind, Task};
use crate::units::{human_bytes, human_count};
use graph::{Offsets, Recipe};
use search::{Rows, Search};
use verify::{Fault, Tree, verify};

pub const WORKLOAD: Workload = Workload {
    name: "bfs",
    spec,
    cache: Policy::Direct,
    queue: Queue::Single("a thread has one read at a time; raise --tasks for more in flight"),
    plan,
};

fn spec() -> Spec {
    Spec::new("bfs")
        .about(
            "How fast is a graph searched that does not fit into memory? Breadth-first search of an \
             R-MAT graph\nmade from the seed: vertices in memory, edges in a file. Tells total I/O \
             time and total run time.\nEach tree is checked by the rules of Graph500.",
        )
        .value(None, "scale", "N", "two to this power vertices; default 20")
        .value(None, "edge-factor", "N", "edges per vertex; default 16")
        .value(Some('m'), "memory", "SIZE", "memory the search may use; default 64m")
        .value(Some('n'), "tasks", "N", "threads; default 4")
        .value(None, "roots", "N", "searches, each from its own root; default 4")
        .value(None, "read", "SIZE", "most bytes of a read; default 64k")
        .examples(
            "  forebay bench bfs /mnt/fast\n  \
             forebay bench bfs /mnt/slow --scale 24 --memory 1g -n 16 --cache drop --out bfs.ndjson",
        )
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let bfs = Bfs {
        recipe: Recipe {
            scale: parsed.number("scale", 20)?,
            edge_factor: parsed.number("edge-factor", 16)?,
            seed: parsed.number("seed", 1)?,
        },
        memory: parsed.size("memory", 64 << 20)?,
        threads: parsed.number("tasks", 4)?,
        roots: parsed.number("roots", 4)?,
        read: parsed.size("read", 64 << 10)?,
    };
    check_tasks(bfs.threads)?;
    bfs.check()?;
    Ok(Box::new(bfs))
}

struct Bfs {
    recipe: Recipe,
    memory: u64,
    threads: usize,
    roots: u32,
    read: u64,
}

/// Offset, parent, and two frontiers that could hold every vertex.
const BYTES_PER_VERTEX: u64 = 8 + 4 + 2 * 4;

impl Bfs {
    /// The bytes that must be in memory.
    fn fixed(&self) -> u64 {
        self.recipe.vertices() * BYTES_PER_VERTEX + self.threads as u64 * self.read
    }

    fn check(&self) -> Result<()> {
        let Recipe { scale, edge_factor, .. } = self.recipe;
        if !(4..=31).contains(&scale) || !(1..=1024).contains(&edge_factor) {
            return Err(Error::usage("--scale is 4 to 31, --edge-factor 1 to 1024"));
        }
        if !self.read.is_multiple_of(graph::PAGE) || !(graph::PAGE..=1 << 30).contains(&self.read) {
            return Err(Error::usage("--read: use a multiple of 4k, up to 1g"));
        }
        if self.roots == 0 {
            return Err(Error::usage("--roots: use 1 or more"));
        }
        if self.fixed() > self.memory {
            return Err(Error::usage(format!(
                "--memory {}: vertices and buffers alone need {}; raise it or lower --scale",
                human_bytes(self.memory),
                human_bytes(self.fixed())
            )));
        }
        if self.recipe.bytes() <= self.memory {
            return Err(Error::usage(format!(
                "--memory {}: the whole graph ({}) fits, so nothing need be read; lower it or raise \
                 --scale",
                human_bytes(self.memory),
                human_bytes(self.recipe.bytes())
            )));
        }
        Ok(())
    }

    fn generate(&self, session: &mut Session, place: &Store) -> Result<(Offsets, Vec<u8>)> {
        let began = Instant::now();
        // Degrees, and cursors and beginnings of the current rows, reduce the memory for rows.
        let spare = self.memory.saturating_sub(self.recipe.vertices() * 20).max(1 << 20);
        let mut progress = session.progress("generate", Goal::Ops(1000));
        let glance = |share: f64| {
            if let Some(progress) = &mut progress {
                progress.tick(0, (share * 1000.0) as u64);
            }
            !interrupt::seen()
        };
        let made = match place {
            Store::Memory => {
                let mut bytes = Vec::new();
                graph::write(self.recipe, spare, &mut bytes, glance).map(|made| (made, bytes))
            }
            Store::File(path) => write_file(self.recipe, spare, path, glance),
        };
        if let Some(progress) = &mut progress {
            progress.finish();
        }
        let made = made.map_err(|error| match error.kind() {
            std::io::ErrorKind::Interrupted => Error::Interrupted,
            _ => Error::io("write", place.path(), &error),
        })?;
        session.recorder.put(Line::Phase(Phase {
            name: "generate".into(),
            access: Access::Write,
            tasks: 1,
            bytes: made.0[made.0.len() - 1] * graph::WORD,
            seconds: began.elapsed().as_secs_f64(),
            figures: BTreeMap::from([
                ("vertices".into(), self.recipe.vertices() as f64),
                ("edges".into(), (made.0[made.0.len() - 1] / 2) as f64),
            ]),
            ..Phase::default()
        }))?;
        Ok(made)
    }

    /// Runs one search, with its record and its tree.
    fn search(
        &self,
        session: &mut Session,
        (graph, place): (&Graph, &Store),
        (index, root): (u32, u32),
    ) -> Result<Found> {
        let files = place.files();
        let before = session.before_reading(&files)?;
        let rows = match place {
            Store::File(path) => {
                Rows::File(path, How { direct: session.base.direct(), ..How::default() })
            }
            Store::Memory => Rows::Memory(&graph.bytes),
        };
        let search = Search::new(&graph.offsets, root);
        let name = format!("search {}", index + 1);
        let team = session.team(self.threads, &name, Goal::Bytes(self.recipe.bytes()));
        let outcome = team.run(|task: &Task<'_>, (): &()| search.work(task, &rows, self.read));
        let seconds = clock::now().saturating_sub(outcome.began) as f64 / 1e9;
        let total = Total::of(outcome.meters());
        let (parents, levels) = search.finish();
        let found = Found {
            edges: reached_words(&graph.offsets, &parents) / 2,
            parents,
            seconds,
            // Threads wait for reads at the same time: the mean of their waits is the run's.
            io_seconds: total.latency.counts().sum() as f64 / 1e9 / self.threads as f64,
        };
        self.put(session, (index, &files, before), (&found, levels), &total)?;
        outcome.check()?;
        if outcome.interrupted { Err(Error::Interrupted) } else { Ok(found) }
    }

    fn put(
        &self,
        session: &mut Session,
        (iteration, files, before): (u32, &[PathBuf], Before),
        (found, levels): (&Found, u64),
        total: &Total,
    ) -> Result<()> {
        let told = Told {
            name: "search",
            iteration,
            access: Access::Read,
            tasks: self.threads,
            seconds: found.seconds,
            transfer: 0,
            before,
            cache: Cache::Doubtful,
            files,
            figures: BTreeMap::from([
                ("run_seconds".into(), found.seconds),
                ("io_seconds".into(), found.io_seconds),
                ("traversed_edges".into(), found.edges as f64),
                ("traversed_edges_per_second".into(), found.edges as f64 / found.seconds),
                ("levels".into(), levels as f64),
            ]),
        };
        session.put_phase(&told, total)
    }

    fn check_tree(&self, graph: &Graph, place: &Store, root: u32, found: &Found) -> Result<Tree> {
        let rows: Box<dyn Read> = match place {
            Store::Memory => Box::new(&graph.bytes[..]),
            Store::File(path) => {
                let file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
                Box::new(BufReader::with_capacity(1 << 20, file))
            }
        };
        let goes_on = || !interrupt::seen();
        let tree = verify(&graph.offsets, rows, &found.parents, root, goes_on);
        tree.map_err(|fault| match fault {
            Fault::Stopped => Error::Interrupted,
            Fault::Read(error) => Error::io("read", place.path(), &error),
            Fault::Wrong(text) => Error::failed(format!(
                "the tree from root {root} is wrong ({text}): what was read is not what was written"
            )),
        })
    }
}

/// The place of the edges.
enum Store {
    File(PathBuf),
    Memory,
}

impl Store {
    fn path(&self) -> PathBuf {
        match self {
            Store::File(path) => path.clone(),
            Store::Memory => "memory".into(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Store::File(path) => vec![path.clone()],
            Store::Memory => Vec::new(),
        }
    }
}

/// A finished graph; `bytes` only if it is kept in memory.
struct Graph {
    offsets: Offsets,
    bytes: Vec<u8>,
}

struct Found {
    parents: Vec<u32>,
    edges: u64,
    seconds: f64,
    io_seconds: f64,
}

fn write_file(
    recipe: Recipe,
    memory: u64,
    path: &PathBuf,
    glance: impl FnMut(f64) -> bool,
) -> std::io::Result<(Offsets, Vec<u8>)> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let offsets = graph::write(recipe, memory, &mut out, glance)?;
    out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    Ok((offsets, Vec::new()))
}

/// The number of words in the rows of reached vertices.
fn reached_words(offsets: &[u64], parents: &[u32]) -> u64 {
    let reached = offsets.windows(2).zip(parents).filter(|(_, parent)| **parent != search::NONE);
    reached.map(|(pair, _)| pair[1] - pair[0]).sum()
}

/// A vertex that has edges, drawn at random.
fn draw_root(offsets: &[u64], rng: &mut Rng) -> u32 {
    loop {
        let vertex = rng.below(offsets.len() as u64 - 1) as usize;
        if offsets[vertex + 1] > offsets[vertex] {
            return vertex as u32;
        }
    }
}

impl Prepared for Bfs {
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("scale".into(), self.recipe.scale.to_string()),
            ("edge-factor".into(), self.recipe.edge_factor.to_string()),
            ("memory".into(), human_bytes(self.memory)),
            ("threads".into(), self.threads.to_string()),
            ("roots".into(), self.roots.to_string()),
            ("read".into(), human_bytes(self.read)),
        ])
    }

    fn needs(&self) -> u64 {
        self.recipe.bytes()
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--read", self.read)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        // The vertices are shared by the tasks.
        session.base.kind = Kind::Threads;
        let place = match session.base.api {
            Api::Null => Store::Memory,
            _ => Store::File(session.file("edges")),
        };
        let (offsets, bytes) = self.generate(session, &place)?;
        let graph = Graph { offsets, bytes };
        let mut rng = Rng::new(self.recipe.seed);
        let (mut run, mut io, mut rates) = (0.0, 0.0, Vec::new());
        for index in 0..self.roots {
            let root = draw_root(&graph.offsets, &mut rng);
            let found = self.search(session, (&graph, &place), (index, root))?;
            self.check_tree(&graph, &place, root, &found)?;
            run += found.seconds;
            io += found.io_seconds;
            rates.push(found.edges as f64 / found.seconds);
        }
        session.recorder.finding(format!(
            "{} searches took {run:.2} s, {io:.2} s of it I/O ({:.0} %); {} traversed edges a \
             second in the median. All trees passed the five checks of Graph500.",
            self.roots,
            100.0 * io / run.max(1e-9),
            human_count(stats::median(&rates)),
        ))
    }
}

#[cfg(test)]
mod tests;
