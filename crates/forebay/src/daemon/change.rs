//! Changes of settings while the daemon serves, and the work that they wait for.

use forebay_backing::{Error, Kind, Result};
use forebay_engine::{Attachment, Tunables, WritePolicy};
use serde_json::{Map, Value, json};

use super::Daemon;
use super::api::drain;
use super::attach::to_be_flushed;
use crate::config::{Origin, change_tunable, tunable};
use crate::units::{counted, human_size};
use crate::wire::{JobKind, NewJob};

impl Daemon {
    pub fn config_json(&self) -> Value {
        let tunables = self.engine.files.tunables();
        let entries = self.settings.shown().map(|(key, value, origin)| {
            let now = tunable(&tunables, key.name).unwrap_or_else(|| value.clone());
            let origin = if now == *value { origin } else { &Origin::Runtime };
            let entry = json!({ "value": now.to_string(), "origin": origin.to_string() });
            (key.name.to_string(), entry)
        });
        Value::Object(entries.collect())
    }

    /// Changes all of the given keys, or none; the answer says what the change waits for.
    pub fn put_config(&self, body: &Value) -> Result<Value> {
        let usage = |what: &str| Error::new(Kind::Usage, format!("body: {what}"));
        let pairs = body.as_object().ok_or_else(|| usage("write {\"KEY\": \"VALUE\"}"))?;
        let before = self.engine.files.tunables();
        let mut after = before.clone();
        for (name, value) in pairs {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            after = change_tunable(&after, name, &text)?;
        }
        self.engine.ops.set_tunables(after.clone())?;
        if let Some(member) = &self.member {
            member.trust(after.revalidate);
        }
        tracing::info!(change = %body, "configuration changed");
        let waits_for = self.waits_for(&before, &after);
        let job = match waits_for.is_empty() {
            true => None,
            false => Some(self.start_drain()?),
        };
        Ok(json!({
            "changed": changes(pairs, &before, &after),
            "notes": self.given_less(pairs, &after),
            "waits_for": waits_for,
            "job": job,
        }))
    }

    /// Notes about settings that get less than was asked for.
    fn given_less(&self, pairs: &Map<String, Value>, after: &Tunables) -> Vec<String> {
        let asked = after.tier_size.filter(|_| pairs.contains_key("tier-size"));
        self.short_of(asked).into_iter().collect()
    }

    /// A note if the tier gets less than the size that was asked for.
    pub fn short_of(&self, asked: Option<u64>) -> Option<String> {
        let given = self.engine.ops.status().tier_bytes;
        let short = asked.filter(|asked| given < *asked);
        let note = |_| {
            let given = human_size(given);
            format!("tier-size: gets {given} for now, what its file system has less 5 %")
        };
        short.map(note)
    }

    pub fn set_config(&self, name: &str, text: &str) -> Result<()> {
        self.put_config(&json!({ name: text.trim() })).map(drop)
    }

    fn start_drain(&self) -> Result<u64> {
        let engine = self.engine.clone();
        self.jobs.start(NewJob::of(JobKind::Drain, Vec::new()), move |_, progress| {
            drain(&engine, progress)
        })
    }

    /// The dirty bytes that must reach the backing store before a change has its full effect.
    fn waits_for(&self, before: &Tunables, after: &Tunables) -> Vec<String> {
        let mut waits = Vec::new();
        let now = self.engine.ops.status();
        if now.attachment != Attachment::Attached {
            return waits; // Bytes that a detached tier keeps wait for its attach.
        }
        let dirty = || to_be_flushed(&now);
        let sooner = after.policy != before.policy && after.policy != WritePolicy::WriteBack;
        if sooner && now.dirty_bytes > 0 {
            waits.push(dirty());
        }
        if sooner && now.passthrough_writers > 0 {
            let writers = counted(now.passthrough_writers, "program");
            waits.push(format!("{writers} writing past the daemon, until they close their files"));
        }
        if now.used_bytes > now.tier_bytes {
            let over = human_size(now.used_bytes - now.tier_bytes);
            waits.push(format!("{over} more than fit to be flushed and evicted: {}", dirty()));
        }
        waits
    }
}

fn changes(pairs: &Map<String, Value>, before: &Tunables, after: &Tunables) -> Value {
    let text = |tunables, name: &str| tunable(tunables, name).map(|value| value.to_string());
    let change = |name: &String| {
        (name.clone(), json!({ "value": text(after, name), "was": text(before, name) }))
    };
    Value::Object(pairs.keys().map(change).collect())
}
