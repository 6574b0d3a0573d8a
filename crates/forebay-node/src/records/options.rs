//! The options of a transfer.
//!
//! Options at their defaults are not written: a node of an earlier version refuses only orders that it
//! could not carry out.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Threads that copy for one transfer, at most.
pub const THREADS_MAX: u32 = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferOptions {
    /// Compare the copied files by content.
    #[serde(default)]
    pub checksum: bool,
    /// The maximum bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Files that match appear after all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<String>,
    /// `None`: everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserve: Option<Preserve>,
    #[serde(default, skip_serializing_if = "Existing::is_default")]
    pub existing: Existing,
}

impl TransferOptions {
    /// The length of its patterns; an empty one counts, too.
    pub fn names_bytes(&self) -> usize {
        self.last.iter().map(|pattern| pattern.len() + 1).sum()
    }
}

/// What happens to existing files that differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Existing {
    /// A file is replaced; others in its directory stay.
    #[default]
    Overwrite,
    /// A file is replaced if the source file was changed later.
    Newer,
    /// A file stays.
    Keep,
    /// A file stays, and the source file counts as failed.
    Fail,
    /// A directory goes with all its contents, and the new one takes its place.
    Replace,
}

impl Existing {
    pub fn is_default(&self) -> bool {
        *self == Existing::default()
    }

    pub fn name(self) -> &'static str {
        match self {
            Existing::Overwrite => "overwrite",
            Existing::Newer => "newer",
            Existing::Keep => "keep",
            Existing::Fail => "fail",
            Existing::Replace => "replace",
        }
    }
}

/// An attribute of a file beside its bytes and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attribute {
    Mode,
    Times,
    Owner,
    Xattr,
    Acl,
    /// The file's other names.
    Links,
}

impl Attribute {
    pub const ALL: [Attribute; 6] = [
        Attribute::Mode,
        Attribute::Times,
        Attribute::Owner,
        Attribute::Xattr,
        Attribute::Acl,
        Attribute::Links,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Attribute::Mode => "mode",
            Attribute::Times => "times",
            Attribute::Owner => "owner",
            Attribute::Xattr => "xattr",
            Attribute::Acl => "acl",
            Attribute::Links => "links",
        }
    }

    /// By its own name, or by that of `cp --preserve`.
    fn named(word: &str) -> Option<Attribute> {
        match word {
            "timestamps" => Some(Attribute::Times),
            "ownership" => Some(Attribute::Owner),
            _ => Attribute::ALL.into_iter().find(|attribute| attribute.name() == word),
        }
    }
}

/// The attributes that are preserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Preserve(BTreeSet<Attribute>);

impl Preserve {
    pub fn all() -> Preserve {
        Preserve(Attribute::ALL.into())
    }

    pub fn has(&self, attribute: Attribute) -> bool {
        self.0.contains(&attribute)
    }
}

impl FromStr for Preserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Preserve, String> {
        match text {
            "all" => return Ok(Preserve::all()),
            "none" => return Ok(Preserve(BTreeSet::new())),
            _ => {}
        }
        let named = |word: &str| {
            Attribute::named(word).ok_or_else(|| {
                let known = Attribute::ALL.map(Attribute::name).join(", ");
                format!("{word:?} is not known: give all, none, or some of {known}")
            })
        };
        text.split(',').map(|word| named(word.trim())).collect::<Result<_, _>>().map(Preserve)
    }
}

/// The form that is parsed.
impl fmt::Display for Preserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => f.write_str("none"),
            _ if *self == Preserve::all() => f.write_str("all"),
            _ => {
                let names: Vec<_> = self.0.iter().map(|attribute| attribute.name()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{read, written};

    #[test]
    fn what_is_preserved_is_read_as_it_is_shown_and_as_cp_names_it() {
        for text in ["all", "none", "mode", "times,links", "owner,xattr,acl"] {
            assert_eq!(text.parse::<Preserve>().unwrap().to_string(), text);
        }
        let cp: Preserve = "mode, ownership,timestamps".parse().unwrap();
        assert_eq!(cp.to_string(), "mode,times,owner");
        let every = "links,acl,xattr,owner,times,mode".parse::<Preserve>().unwrap();
        assert_eq!(every.to_string(), "all");
        for text in ["", "mood", "mode,", "all,mode", "Mode"] {
            let why = text.parse::<Preserve>().unwrap_err();
            assert!(why.contains("give all, none, or some of mode, times"), "{text:?}: {why}");
        }
    }

    /// In a cluster whose nodes are replaced one after the other, versions mix.
    #[test]
    fn an_order_of_an_earlier_version_has_the_defaults_and_one_with_defaults_is_such_an_order() {
        let earlier = br#"{"checksum":false,"threads":4}"#;
        let order: TransferOptions = read("k", earlier).unwrap();
        assert_eq!((&order.preserve, order.existing), (&None, Existing::Overwrite));
        assert_eq!(written(&order), earlier);
        let preserve = Some("mode,links".parse().unwrap());
        let order = TransferOptions { preserve, existing: Existing::Newer, ..order };
        let text = String::from_utf8(written(&order)).unwrap();
        assert!(text.contains(r#""preserve":["mode","links"],"existing":"newer""#), "{text}");
        assert_eq!(read::<TransferOptions>("k", text.as_bytes()).unwrap(), order);
    }
}
