//! The virtual directory `.forebay/` at the root of the mount: the control socket's answers, for
//! `cat` and `echo`.

use forebay_backing::{Error, Result};
use forebay_fuse::{ControlAccess, ControlDir, ControlEntry};
use serde_json::Value;

use super::Daemon;
use crate::config::keys::{Change, KEYS};
use crate::config::tunable;
use crate::ui::plain::Plain;

impl ControlDir for Daemon {
    fn entries(&self) -> Vec<ControlEntry> {
        let views = ["status", "stats", "status.json", "stats.json"];
        let views = views.map(|path| (path, ControlAccess::Everybody)).into_iter();
        let views = views.chain([("names.json", ControlAccess::Owner)]);
        let views = views.map(|(path, access)| ControlEntry { path: path.into(), access });
        let keys = KEYS.iter().map(|key| ControlEntry {
            path: format!("config/{}", key.name),
            access: match key.change {
                Change::Live => ControlAccess::Setting,
                _ => ControlAccess::Everybody,
            },
        });
        views.chain(keys).collect()
    }

    fn read(&self, path: &str) -> Vec<u8> {
        let text = match path {
            "status" => lines(&figures(self.status_json())),
            "stats" => lines(&figures(self.stats_json())),
            "status.json" => format!("{:#}\n", figures(self.status_json())),
            "stats.json" => format!("{:#}\n", figures(self.stats_json())),
            "names.json" => format!("{:#}\n", self.names_json()),
            _ => path.strip_prefix("config/").map_or_else(String::new, |name| self.setting(name)),
        };
        text.into_bytes()
    }

    fn write(&self, path: &str, data: &[u8]) -> Result<()> {
        let not_text = || Error::os(libc::EINVAL, path);
        let name = path.strip_prefix("config/").ok_or_else(|| Error::os(libc::EACCES, path))?;
        let text = std::str::from_utf8(data).map_err(|_| not_text())?;
        // The writer sees only EINVAL, so the log has the reason.
        self.set_config(name, text).inspect_err(|error| tracing::warn!("{error}"))
    }
}

impl Daemon {
    /// The lists that [`figures`] replaces by their lengths.
    fn names_json(&self) -> Value {
        let (status, stats) = (self.status_json(), self.stats_json());
        serde_json::json!({
            "troubles": status["troubles"],
            "problems": status["recovery"]["problems"],
            "busiest_files": stats["busiest_files"],
            "processes": stats["processes"],
        })
    }

    fn setting(&self, name: &str) -> String {
        let now = tunable(&self.engine.files.tunables(), name);
        let value = now.or_else(|| self.settings.value(name).cloned());
        value.map_or_else(String::new, |value| format!("{value}\n"))
    }
}

/// Lists with names of files and programs: some users may not be allowed to see these names.
const NAMING: [&str; 4] = ["troubles", "problems", "busiest_files", "processes"];

/// Replaces those lists by their lengths.
fn figures(mut json: Value) -> Value {
    for (name, value) in json.as_object_mut().into_iter().flatten() {
        *value = match value.take() {
            Value::Array(items) if NAMING.contains(&name.as_str()) => items.len().into(),
            other => figures(other),
        };
    }
    json
}

/// One `name value` line for each scalar; nested names are joined by dots.
fn lines(json: &Value) -> String {
    let mut text = String::new();
    write_lines(&mut text, "", json);
    text
}

fn write_lines(text: &mut String, name: &str, value: &Value) {
    let below = |part: &str| match name {
        "" => part.to_string(),
        _ => format!("{name}.{part}"),
    };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(part, value)| write_lines(text, &below(part), value));
        }
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(i, item)| write_lines(text, &below(&i.to_string()), item));
        }
        Value::Null => text.push_str(&format!("{name} -\n")),
        Value::String(word) => text.push_str(&format!("{name} {}\n", Plain(word))),
        number => text.push_str(&format!("{name} {number}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values_become_dotted_lines() {
        let json = serde_json::json!({
            "a": 1, "b": { "c": "x\ny", "d": null }, "e": [{ "f": true }],
        });
        assert_eq!(lines(&json), "a 1\nb.c x\\ny\nb.d -\ne.0.f true\n");
    }

    #[test]
    fn lists_that_name_something_become_their_lengths() {
        let json = serde_json::json!({
            "troubles": [{ "path": "x" }], "ages": [1, 2], "recovery": { "problems": ["x: gone"] },
        });
        let expected =
            serde_json::json!({ "troubles": 1, "ages": [1, 2], "recovery": { "problems": 1 } });
        assert_eq!(figures(json), expected);
    }
}
