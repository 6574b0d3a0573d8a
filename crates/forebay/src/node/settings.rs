//! Settings of a cache that the node daemon makes.

use crate::config::keys;

/// Of the node, and not of who asks for a cache on it.
const OF_THE_NODE: [&str; 6] =
    ["log-file", "metrics-listen", "config", "tier-size", "passthrough", "kernel-writeback"];

/// Says what is wrong with a setting, and what to write instead.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    let key = keys::find(name).map_err(|why| format!("{name}: {why}"))?;
    key.parse(value).map_err(|why| format!("{name}={value}: {why}"))?;
    match OF_THE_NODE.contains(&name) {
        true => Err(format!("{name}={value}: is the node's to set")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_told_with_what_to_write() {
        assert_eq!(check("max-age", "30s"), Ok(()));
        for (name, value, why) in [
            ("max-aeg", "30s", "did you mean max-age?"),
            ("max-age", "30", "add a unit"),
            ("log-file", "/x", "the node's to set"),
        ] {
            let error = check(name, value).unwrap_err();
            assert!(error.contains(why) && error.contains(name), "{error}");
        }
    }
}
