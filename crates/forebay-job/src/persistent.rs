//! Named instances that outlive the job: made and destroyed by `#BB` and `#FB`.

use std::path::PathBuf;

use forebay_base::units::parse_duration;

use crate::datawarp::Access;
use crate::fields::{Field, Fields, clip};
use crate::plan::{Create, Destroy, Mode};
use crate::reading::{Life, Reading, Reads};

impl Reading<'_> {
    /// Reads `#BB create_persistent`.
    pub fn create_persistent(&mut self, fields: &Fields<'_>) {
        let name = self.needed_name(fields);
        let capacity = fields.need("capacity", "capacity=1TiB", &mut self.problems).cloned();
        let bytes = capacity.and_then(|field| self.size(&field, Reads::SlurmToo));
        let types = [("scratch", Mode::Private), ("cache", Mode::Cache)];
        let kind = match fields.get("type") {
            None => Some(Mode::Private),
            Some(_) => fields.choice("type", &types, &mut self.problems),
        };
        let modes = self.modes(fields);
        let pool = self.pool_of(fields);
        let backing = kind.and_then(|kind| self.backing_of(fields, kind, "pfs"));
        if let (Some(Mode::Private), Some(modes)) = (kind, &modes)
            && modes.contains(&Access::Balanced)
        {
            let at = fields.get("access").or(fields.get("access_mode")).map(Field::at);
            let at = at.unwrap_or(fields.verb.whole());
            self.problems.error(at, "ldbalance is of a cache", "write type=cache, or striped");
            return;
        }
        let (Some(name), Some(bytes), Some(mode), Some(_)) = (name, bytes, kind, modes) else {
            return;
        };
        let Some(backing) = backing else { return };
        let line = fields.verb.whole().line;
        let (nodes, expires_after) = (Vec::new(), None);
        self.create(
            fields,
            Create { name, mode, pool, bytes, backing, nodes, expires_after, line },
        );
    }

    /// Reads `#FB create`.
    pub fn create_own(&mut self, fields: &Fields<'_>) {
        let name = self.needed_name(fields);
        let needed = fields.need("mode", "mode=private", &mut self.problems).is_some();
        let modes = [("private", Mode::Private), ("cache", Mode::Cache)];
        let mode = match fields.get("mode") {
            Some(field) if field.value == "swap" => {
                let text = "swap is for a job: others would share it";
                self.problems.error(
                    field.at(),
                    text,
                    "write #FB swap SIZE in the job that needs it",
                );
                None
            }
            _ if needed => fields.choice("mode", &modes, &mut self.problems),
            _ => None,
        };
        let capacity = fields.need("capacity", "capacity=1TiB", &mut self.problems).cloned();
        let bytes = capacity.and_then(|field| self.size(&field, Reads::Alone));
        let pool = self.pool_of(fields);
        let nodes = self.nodes_of(fields);
        let expires_after = self.expires(fields);
        let backing = mode.and_then(|mode| self.backing_of(fields, mode, "backing"));
        let (Some(name), Some(mode), Some(bytes)) = (name, mode, bytes) else { return };
        let (Some(nodes), Some(backing)) = (nodes, backing) else { return };
        let line = fields.verb.whole().line;
        self.create(
            fields,
            Create { name, mode, pool, bytes, backing, nodes, expires_after, line },
        );
    }

    fn create(&mut self, fields: &Fields<'_>, create: Create) {
        if self.plan.creates.iter().any(|other| other.name == create.name) {
            let text = format!("{} is created twice", create.name);
            self.problems.error(fields.verb.whole(), text, "say it once");
            return;
        }
        self.plan.creates.push(create);
    }

    pub fn destroy(&mut self, fields: &Fields<'_>) {
        let Some(name) = self.needed_name(fields) else { return };
        if self.plan.destroys.iter().any(|other| other.name == name) {
            let text = format!("{name} is destroyed twice");
            self.problems.error(fields.verb.whole(), text, "say it once");
            return;
        }
        let hurry = fields.has("hurry");
        if hurry {
            let text = "hurry does not wait for what is not home yet";
            self.problems.remark(fields.verb.whole(), text, "`forebay manifest` lists it");
        }
        self.plan.destroys.push(Destroy { name, hurry, line: fields.verb.whole().line });
    }

    /// The name of a persistent instance.
    pub fn needed_name(&mut self, fields: &Fields<'_>) -> Option<String> {
        let field = fields.need("name", "name=NAME", &mut self.problems)?.clone();
        self.name(&field, Life::Named)
    }

    /// The backing directory; `None` if a problem was reported.
    pub fn backing_of(
        &mut self,
        fields: &Fields<'_>,
        mode: Mode,
        key: &str,
    ) -> Option<Option<PathBuf>> {
        match (mode, fields.get(key)) {
            (Mode::Cache, Some(field)) => self.backing(field).map(Some),
            (Mode::Cache, None) => {
                let text = format!("a cache needs {key}=");
                let remedy = format!("write {key}=/the/directory/it/shows");
                self.problems.error(fields.verb.whole(), text, remedy);
                None
            }
            (_, Some(field)) => {
                let text = format!("{key}= is of a cache, and this is none");
                self.problems.error(field.whole(), text, "leave it away");
                None
            }
            (_, None) => Some(None),
        }
    }

    fn nodes_of(&mut self, fields: &Fields<'_>) -> Option<Vec<String>> {
        /// One commit of the registry grants the room on all of them.
        const NODES_MAX: usize = 110;
        let Some(field) = fields.get("nodes") else { return Some(Vec::new()) };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let mut nodes: Vec<String> = Vec::new();
        for node in field.value.split(',').take(NODES_MAX + 1) {
            let starts = node.starts_with(|c: char| c.is_ascii_alphanumeric());
            let (text, remedy) = if node.contains('[') || node.contains(']') {
                ("lists in brackets are not read here".to_string(), "write each node: n1,n2")
            } else if !starts || !node.chars().all(plain) || node.len() > 63 {
                (
                    format!("{} is no name of a node", clip(node)),
                    "`forebay nodes` shows those there are",
                )
            } else if nodes.iter().any(|other| other == node) {
                (format!("{node} is named twice"), "name it once")
            } else if nodes.len() == NODES_MAX {
                (format!("more than {NODES_MAX} nodes"), "create several instances")
            } else {
                nodes.push(node.into());
                continue;
            };
            self.problems.error(field.at(), text, remedy);
            return None;
        }
        Some(nodes)
    }

    fn expires(&mut self, fields: &Fields<'_>) -> Option<u64> {
        let field = fields.get("expires")?;
        match parse_duration(field.value) {
            Ok(time) if time.as_secs() > 0 => return Some(time.as_secs()),
            Ok(_) => {
                self.problems.error(field.at(), "it would be gone at once", "write for example 14d")
            }
            Err(remedy) => {
                self.problems.error(
                    field.at(),
                    format!("{} is no time", clip(field.value)),
                    remedy,
                );
            }
        }
        None
    }
}
