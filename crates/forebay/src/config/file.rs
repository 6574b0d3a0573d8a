//! A configuration file: settings and rules of every mount, and sections that describe one mount each.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result};
use toml::de::{DeTable, DeValue};

use super::raw::{Place, RawConfig};
use crate::nearest::nearest;

#[derive(Debug, Default)]
pub struct ConfigFile {
    /// The settings and rules of every mount.
    pub common: RawConfig,
    /// In the order of their names.
    pub sections: Vec<Section>,
}

/// `[mount.NAME]`: the three directories of a mount, and its own settings and rules.
#[derive(Debug, Clone)]
pub struct Section {
    pub name: String,
    pub backing: PathBuf,
    pub tier: PathBuf,
    pub at: PathBuf,
    pub raw: RawConfig,
}

/// Keys of a section that are not settings.
const PLACES: [&str; 3] = ["backing", "tier", "at"];

impl ConfigFile {
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(Kind::Usage, cannot_read(path, &e)))?;
        ConfigFile::from_toml(&text, path)
    }

    pub fn from_toml(text: &str, path: &Path) -> Result<ConfigFile> {
        let place = Place { path, text };
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            place.usage(at, format!("not TOML: {}", e.message()))
        })?;
        let table = table.get_ref();
        let mut rules = super::rules::from_toml(text, path)?;
        let mut common = RawConfig::from_table(table, &["rule", "mount"], &place)?;
        common.rules = rules.common;
        let mut sections = Vec::new();
        for (name, value) in tables(table.get("mount").map(toml::Spanned::get_ref)) {
            let mut section = Section::read(name.get_ref(), value, name.span().start, &place)?;
            section.raw.rules = rules.of_mounts.remove(&section.name).unwrap_or_default();
            sections.push(section);
        }
        Ok(ConfigFile { common, sections })
    }

    /// The section of a name; the error names the nearest one.
    pub fn section(&self, name: &str) -> Result<&Section> {
        self.sections.iter().find(|section| section.name == name).ok_or_else(|| {
            let names = self.sections.iter().map(|section| section.name.as_str());
            let hint = match (nearest(name, names.clone()), self.sections.is_empty()) {
                (Some(near), _) => format!("did you mean {near}?"),
                (None, true) => format!("write [mount.{name}] with backing, tier and at"),
                (None, false) => format!("there are: {}", names.collect::<Vec<_>>().join(", ")),
            };
            Error::new(Kind::Usage, format!("no mount {name} in the configuration file; {hint}"))
        })
    }
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => {
            ": name a file that is there with --config or FOREBAY_CONFIG, or leave it out for the defaults"
        }
        std::io::ErrorKind::PermissionDenied => ": have its owner let you read it",
        _ => "",
    };
    format!("configuration file {}: {error}{remedy}", path.display())
}

type Entry<'a, 'i> = (&'a toml::Spanned<std::borrow::Cow<'i, str>>, &'a DeTable<'i>);

/// The tables in a table. The reader of the rules has refused every other value in it.
fn tables<'a, 'i>(value: Option<&'a DeValue<'i>>) -> impl Iterator<Item = Entry<'a, 'i>> {
    let table = match value {
        Some(DeValue::Table(table)) => Some(table),
        _ => None,
    };
    table.into_iter().flatten().filter_map(|(name, value)| match value.get_ref() {
        DeValue::Table(table) => Some((name, table)),
        _ => None,
    })
}

impl Section {
    fn read(name: &str, table: &DeTable<'_>, at: usize, place: &Place<'_>) -> Result<Section> {
        let others: Vec<&str> = PLACES.into_iter().chain(["rule"]).collect();
        let raw = RawConfig::from_table(table, &others, place)?;
        let dir = |key: &str| {
            let usage = |why: &str| place.usage(at, format!("mount.{name}: {key}: {why}"));
            match table.get(key).map(toml::Spanned::get_ref) {
                Some(DeValue::String(path)) if Path::new(path.as_ref()).is_absolute() => {
                    Ok(PathBuf::from(path.as_ref()))
                }
                Some(_) => Err(usage("write an absolute path")),
                None => Err(usage("is missing; a mount needs backing, tier and at")),
            }
        };
        let [backing, tier, at] = PLACES.map(dir);
        Ok(Section { name: name.into(), backing: backing?, tier: tier?, at: at?, raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<ConfigFile> {
        ConfigFile::from_toml(text, Path::new("f.toml"))
    }

    const TWO: &str = "max-age = \"1s\"\n[[rule]]\nname = \"all\"\naction = \"allow\"\n\
                       [mount.home]\nbacking = \"/b\"\ntier = \"/t\"\nat = \"/m\"\n\
                       max-age = \"2s\"\n[[mount.home.rule]]\nname = \"own\"\naction = \"deny\"\n\
                       [mount.data]\nbacking = \"/c\"\ntier = \"/u\"\nat = \"/n\"\n";

    #[test]
    fn sections_have_places_settings_and_rules_of_their_own() {
        let file = file(TWO).unwrap();
        let home = file.section("home").unwrap();
        assert_eq!((&*home.backing, &*home.at), (Path::new("/b"), Path::new("/m")));
        let raw = home.raw.clone().over(file.common.clone());
        let key = crate::config::keys::find("max-age").unwrap();
        let (value, origin) = raw.value(key).unwrap();
        assert_eq!((value.to_string(), origin.to_string()), ("2s".into(), "f.toml:9".into()));
        let rules: Vec<&str> = raw.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(rules, ["own", "all"]);
        assert_eq!(file.section("data").unwrap().raw.rules.len(), 0);
        assert_eq!(file.sections.len(), 2);
    }

    #[test]
    fn mistakes_in_sections_are_told_with_their_line() {
        for (text, expected) in [
            ("[mount.a]\nbacking = \"/b\"\ntier = \"/t\"\n", "f.toml:1: mount.a: at: is missing"),
            ("[mount.a]\nbacking = \"b\"", "f.toml:1: mount.a: backing: write an absolute path"),
            ("[mount.a]\nmaxage = \"1s\"", "f.toml:2: maxage: unknown key; did you mean max-age?"),
            ("mount = 5", "f.toml:1"),
        ] {
            let error = file(text).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        let error = file(TWO).unwrap().section("hme").unwrap_err();
        assert!(error.to_string().contains("did you mean home?"), "{error}");
    }
}
