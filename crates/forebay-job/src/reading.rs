//! The state while the directives of one script are read, and the checks that all dialects share.

use forebay_base::units::counted;

use crate::Job;
use crate::fields::{Field, Fields, clip};
use crate::path::{Symbols, as_variable};
use crate::plan::{Mode, Of, Plan, Space};
use crate::problem::{Problems, Span};
use crate::sbatch::Wishes;
use crate::size::{self, Unit};
use crate::staging::Stage;

/// The longest name of an instance of a job: with `job-ID-rN-` before it, an id has at most 63
/// characters.
const JOB_NAME_MAX: usize = 32;
/// The longest name of a named instance.
const NAME_MAX: usize = 63;

/// The number of nodes that the job gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    Known(u32),
    /// At least this many, as far as the script says.
    AtLeast(u32),
}

impl Nodes {
    pub fn least(self) -> u32 {
        match self {
            Nodes::Known(n) | Nodes::AtLeast(n) => n.max(1),
        }
    }

    pub fn of(job: &Job<'_>, wishes: &Wishes) -> Nodes {
        match (job.nodes, job.nodes_least, wishes.nodes_for_sure()) {
            (Some(nodes), ..) | (None, None, Some(nodes)) => Nodes::Known(nodes),
            (None, Some(least), _) => Nodes::AtLeast(least),
            (None, None, None) => Nodes::AtLeast(wishes.nodes_least()),
        }
    }
}

pub struct Reading<'d> {
    pub job: &'d Job<'d>,
    pub wishes: Wishes,
    pub nodes: Nodes,
    /// Whether a `$` is anywhere in the script.
    pub dollars: Dollars,
    pub problems: Problems,
    pub plan: Plan,
    pub symbols: Symbols,
    pub stages: Vec<Stage<'d>>,
    /// The first pool that a directive names.
    pub pool: Option<String>,
    pub tmpdir: Tmpdir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dollars {
    Some,
    None,
}

/// The instance that `TMPDIR` names, by its index in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tmpdir {
    Nobody,
    First(usize),
    Asked(usize),
}

/// The readers of a directive's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Slurm reads them, too, in its own way.
    SlurmToo,
    /// Only forebay reads them.
    Alone,
}

/// How long an instance lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    OfJob,
    Named,
}

impl<'d> Reading<'d> {
    /// Reports that the text at `at` is for one node only. `refused` is the message on several nodes.
    pub fn one_node(&mut self, at: Span, refused: &str, remedy: &str) {
        self.plan.nodes_max = Some(1);
        match self.nodes {
            Nodes::Known(0 | 1) => {}
            Nodes::Known(n) | Nodes::AtLeast(n) if n > 1 => {
                let text = format!("{refused}, and the job has {n} nodes");
                self.problems.error(at, text, remedy);
            }
            _ => self.problems.warning(
                at,
                format!("{refused}: the job is refused if it gets several nodes"),
                "say #SBATCH --nodes=1, so that it is sure",
            ),
        }
    }

    pub fn size(&mut self, field: &Field<'_>, reads: Reads) -> Option<u64> {
        let (at, value) = (field.at(), field.value);
        let size = match size::read(value) {
            Ok(size) => size,
            Err((why, remedy)) => {
                self.problems.error(at, format!("{}: {why}", clip(value)), remedy);
                return None;
            }
        };
        if size.unit == Unit::Missing {
            match reads {
                Reads::Alone => {
                    let text = format!("{} has no unit", clip(value));
                    self.problems.error(at, text, format!("write for example {}GiB", clip(value)));
                    return None;
                }
                Reads::SlurmToo => self.problems.warning(
                    at,
                    format!("{} without a unit is bytes", clip(value)),
                    format!("write for example {}GiB", clip(value)),
                ),
            }
        }
        match (size.slurm, reads) {
            (Some(0), Reads::SlurmToo) => self.problems.warning(
                at,
                "Slurm itself ends a number at its point, and refuses 0",
                "write it without a point, in a smaller unit",
            ),
            (Some(read), Reads::SlurmToo) => self.problems.remark(
                at,
                format!(
                    "Slurm itself ends a number at its point: it counts {}",
                    counted(read, "byte")
                ),
                "write it without a point, in a smaller unit",
            ),
            _ => {}
        }
        Some(size.bytes)
    }

    /// Checks a name that becomes part of keys and of file names.
    pub fn name(&mut self, field: &Field<'_>, life: Life) -> Option<String> {
        let (name, most) = match life {
            Life::OfJob => (field.value, JOB_NAME_MAX),
            Life::Named => (field.value, NAME_MAX),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let first = name.chars().next().unwrap_or('-');
        let bad = name.chars().position(|c| !plain(c));
        let (at, text, remedy) = if let Some(bad) = bad {
            let text = format!("{} is no name", clip(name));
            (
                field.part(bad, bad + 1),
                text,
                "letters, digits, '-', '_' and '.' make names".to_string(),
            )
        } else if !first.is_ascii_alphabetic() {
            (
                field.part(0, 1),
                format!("{} begins with {first}", clip(name)),
                "begin names with a letter".into(),
            )
        } else if name.len() > most {
            (
                field.at(),
                format!("{} is too long", clip(name)),
                format!("use at most {most} characters"),
            )
        } else if life == Life::Named && name.starts_with("job-") {
            (field.at(), "names that begin with job- are for jobs".into(), "choose another".into())
        } else {
            return Some(name.into());
        };
        self.problems.error(at, text, remedy);
        None
    }

    /// The name of an instance of the job, or the default.
    pub fn own_name(&mut self, fields: &Fields<'_>, default: &str) -> Option<String> {
        match fields.get("name") {
            Some(field) => self.name(field, Life::OfJob),
            None => Some(default.into()),
        }
    }

    pub fn pool_of(&mut self, fields: &Fields<'_>) -> Option<String> {
        let field = fields.get("pool")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let starts = field.value.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts || !field.value.chars().all(plain) || field.value.len() > NAME_MAX {
            let text = format!("{} is no name of a pool", clip(field.value));
            self.problems.error(field.at(), text, "`forebay pools` shows those there are");
            return None;
        }
        self.pool.get_or_insert_with(|| field.value.into());
        Some(field.value.into())
    }

    /// Adds an instance of the job under its variables. Its mode, name and bytes are known.
    pub fn add(&mut self, at: Span, space: Space) {
        let of = Of::Job(space.name.clone());
        if self.plan.instances.iter().any(|other| other.name == space.name) {
            let text = format!("the job has an instance {} already", space.name);
            let remedy = match space.mode {
                Mode::Swap => "ask for all the swap in one line",
                _ => "give one of them another name with #FB and name=",
            };
            self.problems.error(at, text, remedy);
            return;
        }
        if let Some(taken) = space.variables.iter().find(|name| self.symbols.has(name)) {
            let text = format!("two instances have the variable {taken}");
            self.problems.error(at, text, "choose names that differ in letters or digits");
            return;
        }
        space.variables.iter().for_each(|variable| self.symbols.add(variable, &of));
        self.plan.instances.push(space);
    }

    /// Names a persistent instance under its variables.
    pub fn know_persistent(
        &mut self,
        at: Span,
        name: &str,
        variables: &[String],
        literal: &[&str],
    ) {
        let of = Of::Persistent(name.into());
        if let Some(taken) = variables.iter().find(|variable| self.symbols.has(variable)) {
            let text = format!("two instances have the variable {taken}");
            self.problems.error(at, text, "use one of them in this job");
            return;
        }
        variables.iter().for_each(|variable| self.symbols.add(variable, &of));
        // As directives may spell it, though a shell cannot.
        literal.iter().for_each(|prefix| self.symbols.add(&format!("{prefix}{name}"), &of));
    }

    pub fn variable(prefix: &str, name: &str) -> String {
        format!("{prefix}{}", as_variable(name))
    }

    /// A directory of a backing store.
    pub fn backing(&mut self, field: &Field<'_>) -> Option<std::path::PathBuf> {
        let (none, job) = (Symbols::default(), self.job);
        let paths = crate::path::Paths { symbols: &none, job };
        let meant = paths.read(field, crate::path::PerNode::MayNot, &mut self.problems)?;
        match meant.place {
            crate::path::Place::Outside(path) => Some(path),
            crate::path::Place::Inside(..) => None,
        }
    }
}
