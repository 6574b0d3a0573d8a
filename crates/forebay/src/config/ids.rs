//! Users and groups as people write them: by name or by number.

use std::io;

use forebay_base::users::{Group, User};
use serde::{Deserialize, Deserializer, de};

use super::rules::one_or_many;

/// Both forms are usual in a file: `uid = 1000`, `uid = "alice"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u32),
    Text(String),
}

pub fn user(text: &str) -> Result<u32, String> {
    id(text, "user", || Ok(User::named(text)?.map(|user| user.uid)))
}

pub fn group(text: &str) -> Result<u32, String> {
    id(text, "group", || Ok(Group::named(text)?.map(|group| group.gid)))
}

pub fn users<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    ids(from, user)
}

pub fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    ids(from, group)
}

fn ids<'de, D: Deserializer<'de>>(
    from: D,
    read: fn(&str) -> Result<u32, String>,
) -> Result<Vec<u32>, D::Error> {
    let written: Vec<Written> = one_or_many(from)?;
    let ids = written.into_iter().map(|one| match one {
        Written::Number(id) => Ok(id),
        Written::Text(text) => read(&text).map_err(de::Error::custom),
    });
    ids.collect()
}

/// Reads an id. A number is an id, even if an account has these digits as its name.
fn id(
    text: &str,
    what: &str,
    named: impl FnOnce() -> io::Result<Option<u32>>,
) -> Result<u32, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    match named() {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(format!("{text}: no {what} has this name: give another, or a number")),
        Err(e) => Err(format!("{text}: {e}: give the {what}'s number")),
    }
}
