//! Directives that bring files in and out: `stage_in` and `stage_out` of DataWarp and of forebay,
//! `copy_in` and `copy_out` of NNF. They are read when all variables are known.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_base::glob::Pattern;

use crate::fields::{Field, Fields, clip};
use crate::path::{End, Meant, Paths, PerNode, Place};
use crate::plan::{Direction, Mode, Nodes, Of, On, Staging, What, at_node};
use crate::reading::{Dollars, Reading};

/// The most patterns of one stage-out.
const LAST_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    DataWarp,
    Nnf,
    Own,
}

#[derive(Debug)]
pub struct Stage<'d> {
    pub dialect: Dialect,
    pub direction: Direction,
    pub fields: Fields<'d>,
}

/// The meaning of both sides of a transfer.
struct Sides {
    of: Of,
    inside: PathBuf,
    outside: PathBuf,
    source_ends: End,
    destination_ends: End,
}

const TYPES: [(&str, What); 3] =
    [("file", What::File), ("directory", What::Directory), ("list", What::List)];

impl Reading<'_> {
    pub fn stage(&mut self, stage: &Stage<'_>) {
        let fields = &stage.fields;
        let what = fields.choice("type", &TYPES, &mut self.problems);
        let type_is_wrong = fields.get("type").is_some() && what.is_none();
        let on = self.on(stage);
        let last = self.last(stage);
        let wish = self.wish(stage);
        let Some(sides) = self.sides(stage) else { return };
        let nodes = self.stage_nodes(stage, &sides, wish);
        let sound = self.require_twin(stage, &sides);
        let (Some(nodes), Some(on), Some(last), false, true) =
            (nodes, on, last, type_is_wrong, sound)
        else {
            return;
        };
        let what = match (what, sides.source_ends) {
            (None, End::Slash) => Some(What::Directory),
            (what, _) => what,
        };
        let Some((inside, outside)) = self.named(stage, what, &sides) else { return };
        self.tell_of_arrays(stage, &outside);
        let staging = Staging {
            direction: stage.direction,
            what,
            of: sides.of,
            inside,
            outside,
            nodes,
            on,
            last,
            checksum: fields.has("checksum"),
            line: fields.verb.whole().line,
        };
        self.tell_of_the_same(stage, &staging);
        self.plan.transfers.push(staging);
    }

    fn on(&mut self, stage: &Stage<'_>) -> Option<On> {
        let words = [("success", On::Success), ("always", On::Always)];
        match (stage.direction, stage.dialect, stage.fields.get("on")) {
            (Direction::Out, Dialect::Own, None) => Some(On::Success),
            (_, _, None) => Some(On::Always),
            (_, _, Some(_)) => stage.fields.choice("on", &words, &mut self.problems),
        }
    }

    fn last(&mut self, stage: &Stage<'_>) -> Option<Vec<String>> {
        let fields = stage.fields.last();
        for (index, field) in fields.iter().enumerate() {
            let wrong = Pattern::from_str(field.value).err();
            let control = field.value.contains(char::is_control);
            let (text, remedy) = match (wrong, control) {
                _ if index == LAST_MAX => {
                    (format!("more than {LAST_MAX} patterns"), "use fewer".into())
                }
                (_, true) => ("a control character is in a pattern".into(), "remove it".into()),
                (Some(remedy), _) => (format!("{} is no pattern", clip(field.value)), remedy),
                (None, false) => continue,
            };
            self.problems.error(field.at(), text, remedy);
            return None;
        }
        Some(fields.iter().map(|field| field.value.into()).collect())
    }

    /// Reads `nodes=all|first`.
    fn wish(&mut self, stage: &Stage<'_>) -> Option<Nodes> {
        stage.fields.choice(
            "nodes",
            &[("all", Nodes::All), ("first", Nodes::First)],
            &mut self.problems,
        )
    }

    fn sides(&mut self, stage: &Stage<'_>) -> Option<Sides> {
        let fields = &stage.fields;
        let example = |key| format!("{key}=/a/path");
        let inner = format!("${}/path", self.symbols.example());
        let (inside_key, outside_key) = match stage.direction {
            Direction::In => ("destination", "source"),
            Direction::Out => ("source", "destination"),
        };
        let inside = fields.need(inside_key, &format!("{inside_key}={inner}"), &mut self.problems);
        let outside = fields.need(outside_key, &example(outside_key), &mut self.problems);
        let (inside, outside) = (inside?, outside?);
        if !inside.value.starts_with('$') {
            self.tell_not_inside(stage, inside, inside_key, outside);
            return None;
        }
        if outside.value.is_empty() {
            let remedy = format!("write {outside_key}=/a/path");
            self.problems.error(outside.at(), format!("{outside_key}= is empty"), remedy);
            return None;
        }
        let paths = Paths { symbols: &self.symbols, job: self.job };
        let within = paths.read(inside, PerNode::MayNot, &mut self.problems);
        let per_node = match stage.direction {
            Direction::In => PerNode::MayNot,
            Direction::Out => PerNode::May,
        };
        let without = paths.read(outside, per_node, &mut self.problems);
        let (within, without) = (within?, without?);
        self.joined(stage, within, without, outside)
    }

    fn joined(
        &mut self,
        stage: &Stage<'_>,
        within: Meant,
        without: Meant,
        outside: &Field<'_>,
    ) -> Option<Sides> {
        let Place::Inside(of, inside) = within.place else { return None };
        let Place::Outside(path) = without.place else {
            let text = "both sides are in an instance";
            self.problems.error(outside.at(), text, "one of them is outside: write its whole path");
            return None;
        };
        let (source_ends, destination_ends) = match stage.direction {
            Direction::In => (without.end, within.end),
            Direction::Out => (within.end, without.end),
        };
        Some(Sides { of, inside, outside: path, source_ends, destination_ends })
    }

    /// Reports an instance's side that begins with no variable: most often a shell has replaced it.
    fn tell_not_inside(
        &mut self,
        stage: &Stage<'_>,
        field: &Field<'_>,
        key: &str,
        other: &Field<'_>,
    ) {
        let variable = self.symbols.example().to_string();
        let rest = clip(field.value.trim_start_matches('/'));
        let swapped = other.value.starts_with('$');
        if swapped {
            let verb = &stage.fields.verb.text;
            let text = format!("source= and destination= of {verb} are the wrong way round");
            self.problems.error(field.at(), text, "exchange them");
            return;
        }
        let text = match field.value {
            "" => format!("{key}= is empty"),
            value => format!("{key}={} is in no instance", clip(value)),
        };
        let there = format!("write {key}=${variable}/{rest}");
        let remedy = match self.dollars {
            Dollars::None => format!(
                "there is no $ in the whole script, so the shell that wrote it has replaced \
                 ${variable} by nothing: quote EOF where it is written, as in cat <<'EOF' (or {there})"
            ),
            Dollars::Some => format!(
                "{there}; if that is what was written, a shell has replaced ${variable} by nothing: \
                 quote EOF, as in cat <<'EOF'"
            ),
        };
        self.problems.error(field.at(), text, remedy);
    }

    /// The nodes of the job for a stage; named instances stay on their nodes.
    fn stage_nodes(
        &mut self,
        stage: &Stage<'_>,
        sides: &Sides,
        wish: Option<Nodes>,
    ) -> Option<Nodes> {
        if stage.fields.get("nodes").is_some() && wish.is_none() {
            return None;
        }
        let named = sides.outside.to_string_lossy().replace("%%", "").contains("%n");
        let told_apart = if named { Nodes::All } else { Nodes::First };
        let errors = self.problems.errors();
        let mode = self.mode_of(&sides.of);
        let nodes = match (stage.direction, mode) {
            (_, Some(Mode::Swap)) => unreachable!("swap has no variable"),
            (Direction::In, None) => wish.unwrap_or(Nodes::First),
            (Direction::Out, None) => self.out_nodes(stage, told_apart),
            (_, Some(Mode::Cache)) => Nodes::First,
            (Direction::In, Some(Mode::Private)) => self.in_nodes(stage, wish),
            (Direction::Out, Some(Mode::Private)) => self.out_nodes(stage, told_apart),
        };
        (self.problems.errors() == errors).then_some(nodes)
    }

    /// The mode of an instance; `None` for a named instance.
    fn mode_of(&self, of: &Of) -> Option<Mode> {
        let Of::Job(name) = of else { return None };
        self.plan.instances.iter().find(|space| space.name == *name).map(|space| space.mode)
    }

    fn in_nodes(&mut self, stage: &Stage<'_>, wish: Option<Nodes>) -> Nodes {
        match (stage.dialect, wish) {
            (Dialect::DataWarp, _) => {
                let at =
                    stage.fields.get("destination").map_or(stage.fields.verb.whole(), Field::at);
                self.one_node(
                    at,
                    "#DW stage_in fills no space that each node has of its own",
                    "write #FB stage_in with nodes=all or nodes=first",
                );
                Nodes::First
            }
            (_, wish) => wish.unwrap_or(Nodes::All),
        }
    }

    fn out_nodes(&mut self, stage: &Stage<'_>, told_apart: Nodes) -> Nodes {
        if told_apart == Nodes::All {
            return Nodes::All;
        }
        let field = stage.fields.get("destination");
        let at = field.map_or(stage.fields.verb.whole(), Field::at);
        let to = field.map_or("/out", |field| field.value).trim_end_matches('/');
        let remedy = format!("put %n, the node's name, into it: destination={}/%n", clip(to));
        self.one_node(at, "files of several nodes would meet in the destination", &remedy);
        Nodes::First
    }

    /// For a cache, requires that the other side is the same file in its backing store.
    fn require_twin(&mut self, stage: &Stage<'_>, sides: &Sides) -> bool {
        let Of::Job(name) = &sides.of else { return true };
        let space = self.plan.instances.iter().find(|space| space.name == *name);
        let Some(backing) = space.and_then(|space| space.backing.as_ref()) else { return true };
        let twin = backing.join(&sides.inside);
        let outside = match stage.direction {
            Direction::In => sides.outside.clone(),
            Direction::Out => at_node(&sides.outside, ""),
        };
        if outside.components().eq(twin.components()) {
            return true;
        }
        let (key, from) = match stage.direction {
            Direction::In => ("source", "come from"),
            Direction::Out => ("destination", "go to"),
        };
        let at = stage.fields.get(key).map_or(stage.fields.verb.whole(), Field::at);
        let text = format!("the bytes of a cache {from} its backing store");
        let remedy =
            format!("write {key}={}, or use a private space", clip(&twin.to_string_lossy()));
        self.problems.error(at, text, remedy);
        false
    }

    /// The two paths, with the file's name added where the file goes into a directory.
    fn named(
        &mut self,
        stage: &Stage<'_>,
        what: Option<What>,
        sides: &Sides,
    ) -> Option<(PathBuf, PathBuf)> {
        let (inside, outside) = (sides.inside.clone(), sides.outside.clone());
        if what != Some(What::File) {
            return Some((inside, outside));
        }
        let source = match stage.direction {
            Direction::In => &sides.outside,
            Direction::Out => &sides.inside,
        };
        let (Some(name), End::Name) = (source.file_name().map(Path::new), sides.source_ends) else {
            let at = stage.fields.get("source").map_or(stage.fields.verb.whole(), Field::at);
            self.problems.error(at, "this is a directory, and type=file", "write type=directory");
            return None;
        };
        Some(match (sides.destination_ends, stage.direction) {
            (End::Name, _) => (inside, outside),
            (End::Slash, Direction::In) => (inside.join(name), outside),
            (End::Slash, Direction::Out) => {
                let name = name.to_string_lossy().replace('%', "%%");
                (inside, outside.join(name))
            }
        })
    }

    fn tell_of_arrays(&mut self, stage: &Stage<'_>, outside: &Path) {
        let array = self.wishes.array || self.job.array.is_some();
        let field = stage.fields.get("destination");
        let (true, Direction::Out, Some(field)) = (array, stage.direction, field) else { return };
        let own = ["%a", "%j"].iter().any(|symbol| field.value.replace("%%", "").contains(symbol));
        if !own {
            let at = field.at();
            let remedy = format!(
                "put %a, the index in the array, into it: destination={}/%a",
                clip(&outside.to_string_lossy())
            );
            self.problems.warning(at, "all tasks of the array write to this place", remedy);
        }
    }

    fn tell_of_the_same(&mut self, stage: &Stage<'_>, staging: &Staging) {
        let same = |other: &&Staging| match (staging.direction, other.direction) {
            (Direction::In, Direction::In) => {
                other.of == staging.of && other.inside == staging.inside
            }
            (Direction::Out, Direction::Out) => other.outside == staging.outside,
            _ => false,
        };
        let both_directories = |other: &Staging| {
            let of = [staging.what, other.what];
            of.iter().all(|what| *what == Some(What::Directory) || *what == Some(What::List))
        };
        let Some(other) = self.plan.transfers.iter().find(same) else { return };
        // Two directories are merged.
        if both_directories(other) {
            return;
        }
        let at = stage.fields.get("destination").map_or(stage.fields.verb.whole(), Field::at);
        let text =
            format!("line {} has the same destination, and their order is not known", other.line);
        self.problems.warning(at, text, "give each a destination of its own");
    }
}
