//! NNF's dialect of `#DW jobdw` (HPE's Rabbit): its types and its name tell it from DataWarp's. The
//! capacity of xfs, gfs2 and raw is for each node, that of lustre is the sum.

use crate::datawarp::Wanted;
use crate::fields::{Fields, clip, not_one_of};
use crate::plan::{Mode, Space};
use crate::reading::{Life, Nodes, Reading, Reads};

pub const TYPES: [&str; 4] = ["xfs", "gfs2", "raw", "lustre"];

const SHARED: (&str, &str) = (
    "lustre is one namespace for all nodes, which forebay does not have yet",
    "write type=xfs (a space of its own on each node), or use a persistent instance by #DW persistentdw",
);

pub fn is_its_jobdw(fields: &Fields<'_>) -> bool {
    let of_type = fields.value("type").is_some_and(|kind| TYPES.contains(&kind));
    // A DataWarp type together with a name is a mistake in the name.
    let named = fields.get("name").is_some() || fields.get("requires").is_some();
    let datawarps = matches!(fields.value("type"), Some("scratch" | "cache"));
    of_type || (named && !datawarps && fields.get("access_mode").is_none())
}

impl Reading<'_> {
    pub fn nnf_jobdw(&mut self, fields: &Fields<'_>) {
        self.refuse_requires(fields);
        for word in ["access_mode", "access", "pfs"] {
            if let Some(field) = fields.get(word) {
                let text = format!("{word}= is of DataWarp's jobdw, and this is NNF's");
                self.problems.error(field.whole(), text, "leave it away");
            }
        }
        let kind = fields.need("type", "type=xfs", &mut self.problems).map(|field| field.value);
        let name = fields.need("name", "name=scratch", &mut self.problems).cloned();
        let name = name.and_then(|field| self.name(&field, Life::OfJob));
        let capacity = fields.need("capacity", "capacity=100GiB", &mut self.problems).cloned();
        let bytes = capacity.and_then(|field| self.size(&field, Reads::SlurmToo));
        let pool = self.pool_of(fields);
        let Some(kind) = kind.filter(|kind| self.require_type(fields, kind)) else { return };
        self.tell_of_type(fields, kind);
        let (Some(name), Some(bytes)) = (name, bytes) else { return };
        let wanted = Wanted { bytes, pool, line: fields.verb.whole().line };
        let variables = vec![Self::variable("DW_JOB_", &name)];
        let fs = (kind == "xfs").then(|| "xfs".to_string());
        let space = wanted.space(&name, Mode::Private, bytes, variables);
        self.add(fields.verb.whole(), Space { fs, ..space });
    }

    fn require_type(&mut self, fields: &Fields<'_>, kind: &str) -> bool {
        let at = fields.get("type").map_or(fields.verb.whole(), crate::fields::Field::at);
        let known = TYPES.contains(&kind);
        if !known {
            not_one_of(at, kind, TYPES.into_iter(), &mut self.problems);
        }
        known
    }

    fn tell_of_type(&mut self, fields: &Fields<'_>, kind: &str) {
        let at = fields.get("type").map_or(fields.verb.whole(), crate::fields::Field::at);
        match kind {
            "lustre" => self.one_node(at, SHARED.0, SHARED.1),
            "gfs2" if self.nodes != Nodes::Known(1) => self.problems.warning(
                at,
                "each node has a space of its own here, which others do not see",
                "write type=xfs, which says so",
            ),
            "raw" => self.problems.warning(
                at,
                "raw is a directory here, and no block device",
                "write type=xfs, if a directory is what the program needs",
            ),
            _ => {}
        }
    }

    /// Refuses `requires=`: a job's program would look for the required service in vain.
    pub fn refuse_requires(&mut self, fields: &Fields<'_>) {
        let Some(field) = fields.get("requires") else { return };
        for word in field.value.split(',') {
            let remedy = match word {
                "copy-offload" => "use `forebay stage out` in the script, or libdatawarp",
                "user-container-auth" => "leave it away: there are no containers beside the job",
                _ => {
                    let all = ["copy-offload", "user-container-auth"];
                    return not_one_of(field.at(), word, all.into_iter(), &mut self.problems);
                }
            };
            let text = format!("{} is not there", clip(word));
            self.problems.error(field.at(), text, remedy);
        }
    }
}
