//! DataWarp's dialect of `#DW`: `jobdw`, `persistentdw`, `swap`. Its capacity is the sum over the
//! job's nodes, and there is no staging to a space that each node has of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_base::units::GIB;

use crate::fields::{Field, Fields, clip, not_one_of};
use crate::nnf;
use crate::plan::{Mode, Space, Use};
use crate::problem::Span;
use crate::reading::{Life, Nodes, Reading, Reads};
use crate::verbs::MODIFIERS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Scratch,
    Cache,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Striped,
    Private,
    Balanced,
}

impl Access {
    pub const NAMES: [(&'static str, Access); 4] = [
        ("striped", Access::Striped),
        ("private", Access::Private),
        ("ldbalance", Access::Balanced),
        ("ldbalanced", Access::Balanced),
    ];

    fn name(self) -> &'static str {
        match self {
            Access::Striped => "striped",
            Access::Private => "private",
            Access::Balanced => "ldbalance",
        }
    }
}

/// The refusal on several nodes, and the remedy.
const SHARED: (&str, &str) = (
    "striped is one namespace for all nodes, which forebay does not have yet",
    "write access_mode=private or #FB private capacity=SIZE (a space of its own on each node), or use a \
     persistent instance by #DW persistentdw name=NAME",
);
const CACHES: (&str, &str) = (
    "a cache that is written is on one node only",
    "write access_mode=ldbalance, or #FB cache with set=read-only=true, to read on several",
);

impl Reading<'_> {
    pub fn jobdw(&mut self, fields: &Fields<'_>) {
        if nnf::is_its_jobdw(fields) {
            return self.nnf_jobdw(fields);
        }
        let types = [("scratch", Type::Scratch), ("cache", Type::Cache)];
        let kind = match fields.get("type") {
            None => Some(Type::Scratch),
            // Both dialects meet here, so the message names the types of both.
            Some(field) if !types.iter().any(|(name, _)| *name == field.value) => {
                let all = types.iter().map(|(name, _)| *name).chain(nnf::TYPES);
                not_one_of(field.at(), field.value, all, &mut self.problems);
                None
            }
            Some(_) => fields.choice("type", &types, &mut self.problems),
        };
        let example = "capacity=100GiB";
        let capacity = fields.need("capacity", example, &mut self.problems).cloned();
        let bytes = capacity.as_ref().and_then(|field| self.size(field, Reads::SlurmToo));
        let modes = self.modes(fields);
        let pool = self.pool_of(fields);
        let pfs = self.pfs(fields, kind);
        let (Some(kind), Some(bytes), Some(modes)) = (kind, bytes, modes) else { return };
        let wanted = Wanted { bytes, pool, line: fields.verb.whole().line };
        match (kind, pfs) {
            (Type::Scratch, _) => self.scratch(fields, &modes, &wanted),
            (Type::Cache, Some(backing)) => self.cache(fields, &modes, &wanted, backing),
            (Type::Cache, None) => {}
        }
    }

    fn pfs(&mut self, fields: &Fields<'_>, kind: Option<Type>) -> Option<PathBuf> {
        match (kind, fields.get("pfs")) {
            (Some(Type::Cache), Some(field)) => self.backing(field),
            (Some(Type::Cache), None) => {
                let at = fields.verb.whole();
                self.problems.error(at, "a cache needs pfs=", "write pfs=/the/directory/it/shows");
                None
            }
            (Some(Type::Scratch), Some(field)) => {
                let remedy = "write type=cache, or leave pfs= away";
                self.problems.error(
                    field.whole(),
                    "pfs= is of a cache, and this is scratch",
                    remedy,
                );
                None
            }
            _ => None,
        }
    }

    /// Reads modes such as `striped`, `private(MFS=1GiB)`, `striped,private`; the default is
    /// striped.
    pub fn modes(&mut self, fields: &Fields<'_>) -> Option<Vec<Access>> {
        if let (Some(_), Some(other)) = (fields.get("access_mode"), fields.get("access")) {
            let at = other.whole();
            self.problems.error(at, "access_mode= and access= are the same", "leave one away");
            return None;
        }
        let Some(field) = fields.get("access_mode").or(fields.get("access")) else {
            return Some(vec![Access::Striped]);
        };
        let mut modes = Vec::new();
        for (from, part) in top_level(field.value) {
            let name = part.split('(').next().unwrap_or_default();
            let at = field.part(from, from + name.chars().count());
            match Access::NAMES.iter().find(|(known, _)| *known == name) {
                None => {
                    let names = Access::NAMES.iter().take(3).map(|(name, _)| *name);
                    not_one_of(at, name, names, &mut self.problems);
                    return None;
                }
                Some((_, mode)) if modes.contains(mode) => {
                    self.problems.error(at, format!("{name} is said twice"), "say it once");
                    return None;
                }
                Some((_, mode)) => modes.push(*mode),
            }
            self.modifiers(field, from + name.chars().count(), &part[name.len()..])?;
        }
        Some(modes)
    }

    /// Reads modifiers such as `(MFS=1GiB,client_cache=yes)`, at a character of the value.
    fn modifiers(&mut self, field: &Field<'_>, from: usize, text: &str) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        let at = field.part(from, from + text.chars().count());
        let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) else {
            self.problems.error(at, "a parenthesis is not closed", "write MODE(WORD=VALUE,...)");
            return None;
        };
        for word in inner.split(',') {
            let name = word.split('=').next().unwrap_or_default();
            if !MODIFIERS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                not_one_of(at, name, MODIFIERS.iter().copied(), &mut self.problems);
                return None;
            }
            self.problems.warning(at, format!("{name} does nothing here"), "");
        }
        Some(())
    }

    fn scratch(&mut self, fields: &Fields<'_>, modes: &[Access], wanted: &Wanted) {
        let at = mode_at(fields);
        if modes.contains(&Access::Balanced) {
            self.problems.error(at, "ldbalance is of a cache", "write striped or private");
            return;
        }
        if modes.contains(&Access::Striped) {
            self.one_node(at, SHARED.0, SHARED.1);
        }
        if let [_, _, ..] = modes {
            let text = "striped and private are two spaces here, each with the whole capacity";
            self.problems.remark(at, text, "");
        }
        // A space that is refused is not divided either.
        let shared = modes.contains(&Access::Striped);
        let bytes = if shared { wanted.bytes } else { self.share(fields, wanted.bytes) };
        let total = (!shared).then_some(wanted.bytes);
        for mode in modes {
            let variables = vec![format!("DW_JOB_{}", mode.name().to_ascii_uppercase())];
            let space = wanted.space(mode.name(), Mode::Private, bytes, variables);
            self.add(at, Space { total, ..space });
        }
    }

    /// Each node's share of a capacity for all nodes.
    fn share(&mut self, fields: &Fields<'_>, total: u64) -> u64 {
        let nodes = self.nodes.least();
        if let (Nodes::AtLeast(_), Some(field)) = (self.nodes, fields.get("capacity")) {
            self.problems.warning(
                field.at(),
                format!("the capacity is that of all nodes together, and is divided by {nodes} here"),
                "say how many there are with #SBATCH --nodes=COUNT, or write #FB private capacity=SIZE, \
                 which is of each node",
            );
        }
        total.div_ceil(u64::from(nodes))
    }

    fn cache(&mut self, fields: &Fields<'_>, modes: &[Access], wanted: &Wanted, backing: PathBuf) {
        let at = mode_at(fields);
        if modes.contains(&Access::Private) {
            self.problems.error(at, "a cache is not private", "write striped or ldbalance");
            return;
        }
        let (mut settings, mut bytes, mut total) = (BTreeMap::new(), wanted.bytes, None);
        if modes.contains(&Access::Striped) {
            self.one_node(at, CACHES.0, CACHES.1);
        } else {
            settings.insert("read-only".into(), "true".into());
            total = Some(bytes);
            bytes = self.share(fields, bytes);
        }
        let variable = |mode: &Access| match mode {
            Access::Balanced => "DW_JOB_LDBAL_CACHE".to_string(),
            _ => "DW_JOB_STRIPED_CACHE".to_string(),
        };
        let space = wanted.space("cache", Mode::Cache, bytes, modes.iter().map(variable).collect());
        self.add(at, Space { total, backing: Some(backing), settings, ..space });
    }

    /// Reads `persistentdw`: both dialects write it alike, and each has a variable of its own for
    /// it.
    pub fn persistentdw(&mut self, fields: &Fields<'_>) {
        self.refuse_requires(fields);
        let Some(field) = fields.need("name", "name=NAME", &mut self.problems).cloned() else {
            return;
        };
        let Some(name) = self.name(&field, Life::Named) else { return };
        let prefixes = ["DW_PERSISTENT_STRIPED_", "DW_PERSISTENT_"];
        let variables: Vec<String> =
            prefixes.iter().map(|prefix| Self::variable(prefix, &name)).collect();
        self.use_of(field.at(), name, variables, &prefixes);
    }

    pub fn use_of(&mut self, at: Span, name: String, variables: Vec<String>, literal: &[&str]) {
        if self.plan.uses.iter().any(|other| other.name == name && other.variables == variables) {
            self.problems.error(at, format!("{name} is used twice"), "say it once");
            return;
        }
        self.know_persistent(at, &name, &variables, literal);
        self.plan.uses.push(Use { name, variables, line: at.line });
    }

    /// Reads `swap 2GiB`, the size on each node; Slurm takes the number alone, as GiB.
    pub fn swap(&mut self, fields: &Fields<'_>, reads: Reads) {
        let Some(field) = fields.bare().cloned() else {
            let at = fields.verb.whole();
            self.problems.error(
                at,
                "swap needs a size, which is that of each node",
                "write swap 2GiB",
            );
            return;
        };
        let digits = field.value.chars().all(|c| c.is_ascii_digit()) && !field.value.is_empty();
        let bytes = match (digits, reads) {
            (true, Reads::SlurmToo) => {
                let count = field.value.parse::<u64>().ok().and_then(|n| n.checked_mul(GIB));
                count.filter(|bytes| *bytes > 0).or_else(|| self.size(&field, Reads::Alone))
            }
            _ => self.size(&field, Reads::Alone),
        };
        let name = self.own_name(fields, "swap");
        let pool = self.pool_of(fields);
        let (Some(bytes), Some(name)) = (bytes, name) else { return };
        if reads == Reads::SlurmToo {
            self.tell_what_slurm_counts(&field, bytes);
        }
        if !self.wishes.exclusive {
            let text = "swap serves all programs of a node, not the job alone";
            self.problems.remark(
                fields.verb.whole(),
                text,
                "#SBATCH --exclusive keeps the nodes for it",
            );
        }
        let wanted = Wanted { bytes, pool, line: fields.verb.whole().line };
        self.add(field.at(), wanted.space(&name, Mode::Swap, bytes, Vec::new()));
    }

    fn tell_what_slurm_counts(&mut self, field: &Field<'_>, bytes: u64) {
        let end = field.value.find(|c: char| !c.is_ascii_digit()).unwrap_or(field.value.len());
        let count = field.value[..end].parse::<u64>().unwrap_or(0);
        if count.checked_mul(GIB) != Some(bytes) {
            let text = format!("Slurm itself reads {} as {count} GiB", clip(field.value));
            self.problems.remark(field.at(), text, "write whole GiB, such as swap 2GiB");
        }
    }
}

/// The result of the words of an instance.
pub struct Wanted {
    pub bytes: u64,
    pub pool: Option<String>,
    pub line: u32,
}

impl Wanted {
    pub fn space(&self, name: &str, mode: Mode, bytes: u64, variables: Vec<String>) -> Space {
        Space {
            name: name.into(),
            mode,
            pool: self.pool.clone(),
            bytes,
            total: None,
            backing: None,
            settings: BTreeMap::new(),
            fs: None,
            variables,
            line: self.line,
        }
    }
}

fn mode_at(fields: &Fields<'_>) -> Span {
    let field = fields.get("access_mode").or(fields.get("access"));
    field.map_or(fields.verb.whole(), Field::at)
}

/// The parts between commas outside of parentheses, each with its first character's position.
fn top_level(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut depth, mut start, mut first) = (0u32, 0, 0);
    for (index, (at, c)) in text.char_indices().enumerate() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push((first, &text[start..at]));
                (start, first) = (at + 1, index + 1);
            }
            _ => {}
        }
    }
    parts.push((first, &text[start..]));
    parts
}
