//! `#FB`: forebay's own directives. Sizes are per node, and Slurm reads none of them.

use std::collections::BTreeMap;

use crate::datawarp::Wanted;
use crate::fields::{Field, Fields, clip};
use crate::path::as_variable;
use crate::plan::{Mode, Space};
use crate::reading::{Reading, Reads, Tmpdir};

#[derive(Clone, Copy)]
enum Wish {
    Yes,
    No,
}

impl Reading<'_> {
    pub fn private(&mut self, fields: &Fields<'_>) {
        let name = self.own_name(fields, "scratch");
        let bytes = self.own_capacity(fields);
        let pool = self.pool_of(fields);
        let systems = [("ext4", "ext4"), ("xfs", "xfs")];
        let fs = fields.choice("fs", &systems, &mut self.problems);
        let words = [("yes", Wish::Yes), ("no", Wish::No)];
        let tmpdir = fields.choice("tmpdir", &words, &mut self.problems);
        let (Some(name), Some(bytes)) = (name, bytes) else { return };
        let wanted = Wanted { bytes, pool, line: fields.verb.whole().line };
        let variables = vec![variable_of("FB_JOB_", &name)];
        let space = wanted.space(&name, Mode::Private, bytes, variables);
        let index = self.plan.instances.len();
        self.add(fields.verb.whole(), Space { fs: fs.map(String::from), ..space });
        if index < self.plan.instances.len() {
            self.take_tmpdir(fields, index, tmpdir);
        }
    }

    /// Gives `TMPDIR` to the space that asks for it, or to the first that does not refuse it.
    fn take_tmpdir(&mut self, fields: &Fields<'_>, index: usize, asked: Option<Wish>) {
        match (self.tmpdir, asked) {
            (Tmpdir::Asked(_), Some(Wish::Yes)) => {
                let at = fields.get("tmpdir").map_or(fields.verb.whole(), Field::at);
                self.problems.error(at, "another space is TMPDIR already", "say tmpdir=yes once");
            }
            (_, Some(Wish::Yes)) => self.tmpdir = Tmpdir::Asked(index),
            (Tmpdir::Nobody, None) => self.tmpdir = Tmpdir::First(index),
            _ => {}
        }
    }

    pub fn own_cache(&mut self, fields: &Fields<'_>) {
        let name = self.own_name(fields, "cache");
        let bytes = self.own_capacity(fields);
        let pool = self.pool_of(fields);
        let backing = self.backing_of(fields, Mode::Cache, "backing");
        let settings = self.settings(fields);
        let (Some(name), Some(bytes), Some(settings)) = (name, bytes, settings) else { return };
        let Some(backing) = backing else { return };
        if settings.get("read-only").is_none_or(|value| value != "true") {
            self.one_node(
                fields.verb.whole(),
                "a cache that is written is on one node only",
                "write set=read-only=true, to read on several, or #FB private",
            );
        }
        let wanted = Wanted { bytes, pool, line: fields.verb.whole().line };
        let variables = vec![variable_of("FB_JOB_", &name)];
        let space = wanted.space(&name, Mode::Cache, bytes, variables);
        self.add(fields.verb.whole(), Space { backing, settings, ..space });
    }

    /// Reads `set=max-age=30s,read-only=true`.
    fn settings(&mut self, fields: &Fields<'_>) -> Option<BTreeMap<String, String>> {
        let mut settings = BTreeMap::new();
        let Some(field) = fields.get("set") else { return Some(settings) };
        let mut from = 0;
        for part in field.value.split(',') {
            let at = field.part(from, from + part.chars().count());
            from += part.chars().count() + 1;
            let Some((key, value)) = part.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                let text = format!("{} has no value", clip(part));
                self.problems.error(at, text, "write set=KEY=VALUE,KEY=VALUE");
                return None;
            };
            let checked = self.job.check_setting.map_or(Ok(()), |check| check(key, value));
            if let Err(why) = checked {
                self.problems.error(at, why, "`forebay mount --help` shows the settings");
                return None;
            }
            if settings.insert(key.into(), value.into()).is_some() {
                self.problems.error(at, format!("{} is set twice", clip(key)), "set it once");
                return None;
            }
        }
        Some(settings)
    }

    pub fn use_own(&mut self, fields: &Fields<'_>) {
        let Some(name) = self.needed_name(fields) else { return };
        let at = fields.get("name").map_or(fields.verb.whole(), Field::at);
        let variable = variable_of("FB_PERSISTENT_", &name);
        self.use_of(at, name, vec![variable], &[]);
    }

    fn own_capacity(&mut self, fields: &Fields<'_>) -> Option<u64> {
        let field = fields.need("capacity", "capacity=100GiB", &mut self.problems)?.clone();
        self.size(&field, Reads::Alone)
    }

    /// Gives `TMPDIR` to its space.
    pub fn settle_tmpdir(&mut self) {
        if let Tmpdir::First(index) | Tmpdir::Asked(index) = self.tmpdir {
            self.plan.instances[index].variables.push("TMPDIR".into());
        }
    }
}

fn variable_of(prefix: &str, name: &str) -> String {
    format!("{prefix}{}", as_variable(name).to_ascii_uppercase())
}
