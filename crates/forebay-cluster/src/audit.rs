//! Checks the records of shared stores in a registry, from all of them at one moment.

use std::collections::BTreeSet;

use forebay_registry::Entry;
use serde::de::DeserializeOwned;

use crate::keys::{Claim, Fenced, Gate, Given, Member, Partners, Removed, Store};

const STORES: &str = "stores/";

/// Lists records that no member can use, and claims that nobody gives back, each with its remedy.
/// `entries` is all that the registry holds.
pub fn problems_of(entries: &[Entry]) -> Vec<String> {
    let known: BTreeSet<&str> = entries.iter().map(|entry| &*entry.key).collect();
    let of_stores = || entries.iter().filter(|entry| entry.key.starts_with(STORES));
    let mut problems: Vec<String> = of_stores().filter_map(damaged).collect();
    problems.extend(of_stores().filter_map(|entry| claimed_by_nobody(entry, &known)));
    problems
}

/// The store's name, and the rest of the key.
fn parts(key: &str) -> (&str, Option<&str>) {
    let rest = key.strip_prefix(STORES).unwrap_or(key);
    rest.split_once('/').map_or((rest, None), |(store, rest)| (store, Some(rest)))
}

fn damaged(entry: &Entry) -> Option<String> {
    fn try_as<T: DeserializeOwned>(entry: &Entry) -> Option<String> {
        let error = serde_json::from_slice::<T>(&entry.value).err()?;
        Some(format!(
            "{}: this version cannot read it ({error}): update it if a newer one wrote the record; else \
             it is damaged: restore it from a copy",
            entry.key
        ))
    }
    let kind = parts(&entry.key).1.map(|rest| rest.split('/').next().unwrap_or(rest));
    match kind {
        None => try_as::<Store>(entry),
        Some("members") => try_as::<Member>(entry),
        Some("partners") => try_as::<Partners>(entry),
        Some("fenced") => try_as::<Fenced>(entry),
        Some("removed") => try_as::<Removed>(entry),
        Some("claims") => try_as::<Claim>(entry),
        Some("given") => try_as::<Given>(entry),
        Some("gate") => try_as::<Gate>(entry),
        Some(_) => None,
    }
}

/// A member is removed only when it holds nothing.
fn claimed_by_nobody(entry: &Entry, known: &BTreeSet<&str>) -> Option<String> {
    let (store, rest) = parts(&entry.key);
    rest?.strip_prefix("claims/")?;
    let claim: Claim = serde_json::from_slice(&entry.value).ok()?;
    let member = &claim.member;
    if known.contains(&*format!("{STORES}{store}/members/{member}")) {
        return None;
    }
    Some(format!(
        "{}: {} is claimed by {member}, which is no member of the store, and nobody can give it back: \
         mount the tier of {member} again (--node {member}); if it is lost, delete the claim",
        entry.key, claim.path
    ))
}

#[cfg(test)]
mod tests {
    use forebay_registry::Revision;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.into(), value: value.into(), revision: Revision(1), lease: None }
    }

    #[test]
    fn a_claim_of_nobody_and_what_cannot_be_read_are_told() {
        let member = r#"{"node":"a","address":"a:1","tier":"t","epoch":1,"boot":"b","protocol":5}"#;
        let claim = |member: &str| format!(r#"{{"member":"{member}","path":"runs/7"}}"#);
        let sound = vec![
            entry("stores/s", r#"{"protocol":5,"probe":"1.0"}"#),
            entry("stores/s/members/a", member),
            entry("stores/s/alive/a", ""),
            entry("stores/s/claims/7.0", &claim("a")),
            entry("stores/s/grants/1.0/a", ""),
            entry("wanted/instances/w", "whatever"),
        ];
        assert!(problems_of(&sound).is_empty(), "{:?}", problems_of(&sound));
        for (wrong, words) in [
            (
                entry("stores/s/claims/8.0", &claim("b")),
                "runs/7 is claimed by b, which is no member",
            ),
            // A claim in another store.
            (
                entry("stores/t/claims/8.0", &claim("a")),
                "runs/7 is claimed by a, which is no member",
            ),
            (entry("stores/s/claims/8.0", "x"), "stores/s/claims/8.0: this version cannot read it"),
            (entry("stores/t", "{}"), "stores/t: this version cannot read it"),
            (entry("stores/s/partners/a", "\u{2}"), "restore it from a copy"),
        ] {
            let mut all = sound.clone();
            all.push(wrong);
            let told = problems_of(&all);
            assert!(told.len() == 1 && told[0].contains(words), "{words}: {told:?}");
        }
    }
}
