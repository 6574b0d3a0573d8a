//! Admission rules as text: `[[rule]]` tables of the configuration file, the flags of
//! `forebay rules add`, and the control socket, all in the same words.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_backing::{Error, Kind, Result};
use forebay_engine::rules::{Action, Rule};
use serde::{Deserialize, Serialize};

use super::ids;
use crate::units;

/// The text of a rule; see [`Rule`] for its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuleText {
    /// A name of letters, digits and '-'.
    pub name: String,

    /// allow, deny, deny-reads or deny-writes.
    pub action: String,

    /// A pattern: `*` and `?` within a name, `**` over directories; without a slash, a name in any
    /// directory, with one, a path from the root of the mount.
    #[arg(long, value_name = "PATTERN")]
    #[serde(default, deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,

    /// A user, by name or number.
    #[arg(long, value_name = "USER", value_parser = ids::user)]
    #[serde(default, deserialize_with = "ids::users", skip_serializing_if = "Vec::is_empty")]
    pub uid: Vec<u32>,

    /// A group, by name or number.
    #[arg(long, value_name = "GROUP", value_parser = ids::group)]
    #[serde(default, deserialize_with = "ids::groups", skip_serializing_if = "Vec::is_empty")]
    pub gid: Vec<u32>,

    /// A process and those it started; the rule goes when the last of them has ended.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,

    /// A control group (version 2) and those below it, such as system.slice/backup.service.
    #[arg(long, value_name = "GROUP")]
    #[serde(default, deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub cgroup: Vec<String>,

    /// Files of at least this size when they are opened.
    #[arg(long, value_name = "SIZE")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_min: Option<String>,

    /// Files of at most this size when they are opened.
    #[arg(long, value_name = "SIZE")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_max: Option<String>,

    /// The room in the fast tier for all files of the rule together; beyond it, new bytes displace
    /// the rule's oldest ones.
    #[arg(long, value_name = "SIZE")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,

    /// Do not evict the rule's files.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
}

pub(super) fn one_or_many<'de, D, T>(from: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        One(T),
        Many(Vec<T>),
    }
    Ok(match Either::deserialize(from)? {
        Either::One(one) => vec![one],
        Either::Many(many) => many,
    })
}

impl RuleText {
    /// # Errors
    ///
    /// The mistake in the rule, with the rule's name and what to write instead.
    pub fn read(&self) -> Result<Rule> {
        let usage =
            |reason: String| Error::new(Kind::Usage, format!("rule {}: {reason}", self.name));
        let size = |name: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(units::parse_size).transpose();
            parsed.map_err(|reason| usage(format!("{name}: {reason}")))
        };
        let rule = Rule {
            name: self.name.clone(),
            action: action(&self.action).map_err(usage)?,
            path: self.path.clone(),
            uid: self.uid.clone(),
            gid: self.gid.clone(),
            pid: self.pid,
            cgroup: self.cgroup.clone(),
            size_min: size("size-min", &self.size_min)?,
            size_max: size("size-max", &self.size_max)?,
            quota: size("quota", &self.quota)?,
            pin: self.pin,
        };
        rule.validate().map_err(usage)?;
        Ok(rule)
    }
}

impl From<&Rule> for RuleText {
    fn from(rule: &Rule) -> RuleText {
        let size = |bytes: Option<u64>| bytes.map(units::exact_size);
        let action = ACTIONS.iter().find(|(_, action)| *action == rule.action);
        RuleText {
            name: rule.name.clone(),
            action: action.map_or("", |(word, _)| word).into(),
            path: rule.path.clone(),
            uid: rule.uid.clone(),
            gid: rule.gid.clone(),
            pid: rule.pid,
            cgroup: rule.cgroup.clone(),
            size_min: size(rule.size_min),
            size_max: size(rule.size_max),
            quota: size(rule.quota),
            pin: rule.pin,
        }
    }
}

const ACTIONS: [(&str, Action); 4] = [
    ("allow", Action::Allow),
    ("deny", Action::Deny),
    ("deny-reads", Action::DenyReads),
    ("deny-writes", Action::DenyWrites),
];

fn action(word: &str) -> std::result::Result<Action, String> {
    let found = ACTIONS.iter().find(|(name, _)| *name == word);
    found
        .map(|(_, action)| *action)
        .ok_or_else(|| format!("action {word}: choose from allow, deny, deny-reads, deny-writes"))
}

/// The rules of a configuration file.
#[derive(Debug, Default)]
pub struct FileRules {
    /// `[[rule]]`: for every mount.
    pub common: Vec<Rule>,
    /// `[[mount.NAME.rule]]`: for that mount, before the common rules.
    pub of_mounts: BTreeMap<String, Vec<Rule>>,
}

/// Takes the tables of rules out of a configuration file's text.
pub fn from_toml(text: &str, path: &Path) -> Result<FileRules> {
    #[derive(Deserialize)]
    struct Tables {
        #[serde(default)]
        rule: Vec<RuleText>,
        #[serde(default)]
        mount: BTreeMap<String, OfMount>,
    }
    #[derive(Deserialize)]
    struct OfMount {
        #[serde(default)]
        rule: Vec<RuleText>,
    }
    let tables: Tables = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        let line = 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        Error::new(Kind::Usage, format!("{}:{line}: rule: {}", path.display(), e.message()))
    })?;
    let read = |rules: &[RuleText]| rules.iter().map(RuleText::read).collect::<Result<_>>();
    let of_mounts = tables.mount.iter().map(|(name, of)| Ok((name.clone(), read(&of.rule)?)));
    Ok(FileRules { common: read(&tables.rule)?, of_mounts: of_mounts.collect::<Result<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Rule>> {
        from_toml(text, Path::new("f.toml")).map(|rules| rules.common)
    }

    #[test]
    fn tables_of_the_file_are_rules_in_order() {
        let text = "max-age = \"1s\"\n[[rule]]\nname = \"a\"\naction = \"allow\"\npath = \"x/**\"\n\
                    uid = 5\n[[rule]]\nname = \"b\"\naction = \"deny\"\nsize-min = \"1GiB\"\n";
        let rules = read(text).unwrap();
        assert_eq!((rules[0].path[0].as_str(), rules[0].uid[0]), ("x/**", 5));
        assert_eq!((rules[1].action, rules[1].size_min), (Action::Deny, Some(1 << 30)));
        for rule in &rules {
            assert_eq!(RuleText::from(rule).read().unwrap(), *rule);
        }
    }

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        let group = forebay_base::users::Group::with_id(0).unwrap().expect("every machine has one");
        let ids = format!("uid = [\"root\", 5, \"6\"]\ngid = \"{}\"", group.name);
        let rules = read(&format!("[[rule]]\nname = \"a\"\naction = \"deny\"\n{ids}")).unwrap();
        assert_eq!((&rules[0].uid[..], &rules[0].gid[..]), (&[0, 5, 6][..], &[0][..]));
        let error = read("[[rule]]\nname = \"a\"\naction = \"deny\"\nuid = \"no such user\"");
        assert!(error.unwrap_err().to_string().contains("no such user: no user has this name"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let wrong =
            |body: &str| read(&format!("[[rule]]\nname = \"a\"\n{body}")).unwrap_err().to_string();
        assert!(wrong("action = \"forbid\"").contains("choose from allow"));
        assert!(wrong("action = \"deny\"\nquota = \"10\"").contains("rule a: quota: add a unit"));
        assert!(wrong("action = \"deny\"\nfoo = 1").contains("f.toml:4"));
    }
}
