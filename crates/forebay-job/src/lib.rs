//! The requests of a job script: directives are read from its text and become a plan.
//!
//! Pure: text in, plan and problems out. Nothing here looks at a file, a node or the network, since a
//! scheduler calls it where it may not wait. The work is linear in the script, and bounded after its
//! head.

mod datawarp;
mod fields;
mod nnf;
mod own;
mod path;
mod persistent;
pub mod plan;
mod problem;
mod reading;
mod sbatch;
mod script;
mod size;
mod staging;
mod verbs;

pub use problem::{PROBLEMS_MAX, Problem, Severity};

use crate::fields::{Fields, clip, near};
use crate::path::Symbols;
use crate::plan::{Direction, Plan};
use crate::problem::Problems;
use crate::reading::{Dollars, Nodes, Reading, Reads, Tmpdir};
use crate::script::{Directive, Prefix};
use crate::staging::{Dialect, Stage};
use crate::verbs::Verb;

/// The limits of directives in one script, and of words in one directive. More are a mistake of a
/// program that writes scripts, and would take the scheduler's time.
pub const DIRECTIVES_MAX: usize = 256;
pub const WORDS_MAX: usize = 64;

/// Judges a key and its value; the error says what is wrong.
pub type CheckSetting = fn(&str, &str) -> Result<(), String>;

/// The facts about the job beside its script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Job<'a> {
    /// The number of nodes, if it is certain.
    pub nodes: Option<u32>,
    /// The least number of nodes, while the scheduler may still choose. If neither is known, `#SBATCH`
    /// lines say.
    pub nodes_least: Option<u32>,
    /// `%j`. With an id, an unknown symbol is refused; without one, it stays in the plan.
    pub id: Option<&'a str>,
    /// `%u`.
    pub user: Option<&'a str>,
    /// `%x`.
    pub name: Option<&'a str>,
    /// Id and index of a task of an array: `%A`, `%a`.
    pub array: Option<(&'a str, &'a str)>,
    /// `%d`.
    pub workdir: Option<&'a str>,
    /// The value of `Directive=` in burst_buffer.conf, read as `#BB_LUA` is.
    pub directive: Option<&'a str>,
    /// Judges a setting of a cache.
    pub check_setting: Option<CheckSetting>,
}

/// The result of reading a script.
#[derive(Debug, Clone)]
pub struct Read {
    /// The plan, without refused parts.
    pub plan: Plan,
    /// Sorted by line.
    pub problems: Vec<Problem>,
    /// The number of further problems.
    pub left_out: usize,
    /// The number of forebay's directives that were found.
    pub directives: usize,
    /// The first pool that a directive names, Slurm's own `pool=` included.
    pub pool: Option<String>,
    /// The number of nodes that the job gets.
    pub nodes: u32,
    /// Whether `nodes` is certain.
    pub nodes_known: bool,
}

impl Read {
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

/// Reads a script's directives. The same text and job always give the same result.
pub fn read(script: &str, job: &Job<'_>) -> Read {
    let mut problems = Problems::default();
    let mut directives = script::directives(script, job.directive, &mut problems);
    let wishes = sbatch::wishes(&directives);
    directives.retain(|directive| directive.prefix != Prefix::Sbatch);
    bound(&mut directives, &mut problems);
    let nodes = Nodes::of(job, &wishes);
    let mut reading = Reading {
        job,
        wishes,
        nodes,
        dollars: if script.contains('$') { Dollars::Some } else { Dollars::None },
        problems,
        plan: Plan::default(),
        symbols: Symbols::default(),
        stages: Vec::new(),
        pool: None,
        tmpdir: Tmpdir::Nobody,
    };
    for directive in &directives {
        reading.directive(directive);
    }
    // All variables are known now.
    for stage in std::mem::take(&mut reading.stages) {
        reading.stage(&stage);
    }
    reading.settle_tmpdir();
    let (problems, left_out) = reading.problems.sorted();
    Read {
        plan: reading.plan,
        problems,
        left_out,
        directives: directives.len(),
        pool: reading.pool,
        nodes: nodes.least(),
        nodes_known: matches!(nodes, Nodes::Known(_)),
    }
}

fn bound(directives: &mut Vec<Directive>, problems: &mut Problems) {
    if let Some(first) = directives.get(DIRECTIVES_MAX) {
        let text = format!("more than {DIRECTIVES_MAX} directives");
        problems.error(first.at, text, "use type=list to stage many files");
        directives.truncate(DIRECTIVES_MAX);
    }
    for directive in directives {
        if let Some(word) = directive.words.get(WORDS_MAX) {
            let text = format!("more than {WORDS_MAX} words in a directive");
            problems.error(word.whole(), text, "");
            directive.words.truncate(WORDS_MAX);
        }
    }
}

/// Every directive, such as `#DW jobdw`, with the words it takes and those it ignores.
pub fn vocabulary() -> Vec<(String, Vec<&'static str>)> {
    let words = |verb: &Verb| {
        let own = verb.takes.iter().chain(verb.flags).chain(verb.ignores).copied();
        let modes = verb.takes.contains(&"access_mode");
        own.chain(verbs::MODIFIERS.iter().copied().filter(|_| modes)).collect()
    };
    let named = |verb: &Verb| format!("{} {}", verbs::shown(verb.prefix), verb.name);
    verbs::VERBS.iter().map(|verb| (named(verb), words(verb))).collect()
}

fn verb_is_known(name: &str) -> bool {
    verbs::is_known(name)
}

impl<'d> Reading<'d> {
    fn directive(&mut self, directive: &'d Directive) {
        let Some(word) = directive.words.first() else {
            self.problems.warning(directive.at, "nothing is behind the directive", "");
            return;
        };
        let name = word.text.as_str();
        let books = name.starts_with("pool=") || name.starts_with("capacity=");
        let prefix = match directive.prefix {
            Prefix::Dw if books => return self.of_slurm(directive),
            Prefix::Lua if !verbs::is_known(name) => return self.of_slurm(directive),
            Prefix::Lua => Prefix::Dw,
            prefix => prefix,
        };
        match verbs::find(prefix, name) {
            Some(verb) => {
                let (errors, known) = (self.problems.errors(), self.symbols.count());
                let fields = Fields::of(directive, verb, &mut self.problems);
                self.obey(verb, fields);
                if self.problems.errors() > errors && self.symbols.count() == known {
                    self.symbols.lacks_some();
                }
            }
            None => self.tell_no_verb(prefix, directive),
        }
    }

    /// `#BB_LUA pool=flash capacity=1GB` is for Slurm's accounting, and means nothing to forebay.
    fn of_slurm(&mut self, directive: &'d Directive) {
        for word in &directive.words {
            match word.text.split_once('=') {
                Some(("pool", pool)) => {
                    self.pool.get_or_insert_with(|| pool.into());
                }
                Some(("capacity", _)) => {}
                keyed => {
                    let typed = keyed.map_or(word.text.as_str(), |(key, _)| key);
                    let verbs = verbs::VERBS.iter().filter(|verb| verb.prefix == Prefix::Dw);
                    let all = ["pool", "capacity"].into_iter().chain(verbs.map(|verb| verb.name));
                    let at = word.span(0, typed.chars().count());
                    return fields::not_one_of(at, typed, all, &mut self.problems);
                }
            }
        }
    }

    fn tell_no_verb(&mut self, prefix: Prefix, directive: &Directive) {
        let word = &directive.words[0];
        let name = word.text.as_str();
        let refused = verbs::REFUSED.iter().find(|(of, verb, ..)| *of == prefix && *verb == name);
        if let Some((_, _, text, remedy)) = refused {
            return self.problems.error(word.whole(), *text, *remedy);
        }
        let shown = verbs::shown(prefix);
        let text = format!("{} is no directive of {shown}", clip(name));
        let elsewhere = verbs::VERBS.iter().find(|verb| verb.name == name);
        let own = || verbs::VERBS.iter().filter(|verb| verb.prefix == prefix).map(|verb| verb.name);
        let remedy = match (elsewhere, near(name, own())) {
            (Some(verb), _) => format!("write {} {name}", verbs::shown(verb.prefix)),
            (None, Some(near)) => format!("did you mean {near}?"),
            (None, None) => format!("{shown} has {}", own().collect::<Vec<_>>().join(", ")),
        };
        self.problems.error(word.whole(), text, remedy);
    }

    fn obey(&mut self, verb: &Verb, fields: Fields<'d>) {
        let stage = |dialect, direction, fields| Stage { dialect, direction, fields };
        let (dialect, reads) = match verb.prefix {
            Prefix::Fb => (Dialect::Own, Reads::Alone),
            _ => (Dialect::DataWarp, Reads::SlurmToo),
        };
        match verb.name {
            "jobdw" => self.jobdw(&fields),
            "persistentdw" => self.persistentdw(&fields),
            "swap" => self.swap(&fields, reads),
            "create_persistent" => self.create_persistent(&fields),
            "destroy_persistent" | "destroy" => self.destroy(&fields),
            "private" => self.private(&fields),
            "cache" => self.own_cache(&fields),
            "use" => self.use_own(&fields),
            "create" => self.create_own(&fields),
            "stage_in" => self.stages.push(stage(dialect, Direction::In, fields)),
            "stage_out" => self.stages.push(stage(dialect, Direction::Out, fields)),
            "copy_in" => self.stages.push(stage(Dialect::Nnf, Direction::In, fields)),
            "copy_out" => self.stages.push(stage(Dialect::Nnf, Direction::Out, fields)),
            other => unreachable!("{other} is in the table of verbs, and nobody obeys it"),
        }
    }
}
