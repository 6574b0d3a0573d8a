//! The settings of a cache that the node daemon makes.

use std::collections::BTreeMap;

use crate::config::keys::{self, Sets};

/// Refuses a setting; the error says what is wrong and what to write instead.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    let key = keys::find(name).map_err(|why| format!("{name}: {why}"))?;
    key.parse(value).map_err(|why| format!("{name}={value}: {why}"))?;
    match key.instance {
        Sets::Asker => Ok(()),
        Sets::Node => Err(format!("{name}={value}: is the node's to set")),
    }
}

/// The mount flags for these settings. Stored settings are checked like new ones: another node, or an
/// earlier version, may have accepted them.
pub fn flags(settings: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let flag = |(name, value): (&String, &String)| {
        check(name, value).map(|()| format!("--{name}={value}"))
    };
    settings.iter().map(flag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::{KEYS, Type};

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

    #[test]
    fn a_user_makes_a_cache_no_member_and_names_neither_files_nor_addresses() {
        let member = [
            ("registry", "etcd://127.0.0.1:2379/x"),
            ("node", "n"),
            ("peer-listen", "127.0.0.1:7480"),
            ("cluster-key", "/k"),
            ("peer-cert", "/c"),
            ("peer-cert-key", "/k"),
            ("peer-ca", "/c"),
            ("copies", "1"),
            ("copies-at", "write"),
            ("copies-short", "fail"),
            ("share-reads", "true"),
            ("locks", "node"),
            ("failure-domain", "rack"),
        ];
        let of_the_node = [
            ("tier-size", "1GiB"),
            ("passthrough", "off"),
            ("kernel-writeback", "true"),
            ("transport", "dev"),
            ("attr-ttl", "1h"),
            ("names-max", "100000000"),
            ("log-level", "trace"),
            ("metrics-listen", "127.0.0.1:9464"),
        ];
        for (name, value) in member.into_iter().chain(of_the_node) {
            let stored = BTreeMap::from([(name.to_string(), value.to_string())]);
            for error in [check(name, value).unwrap_err(), flags(&stored).unwrap_err()] {
                assert!(error.contains("the node's to set"), "{error}");
            }
        }
        let names = |kind| {
            matches!(
                kind,
                Type::File | Type::Loopback | Type::Address | Type::Registry | Type::Node
            )
        };
        let mut settable = KEYS.iter().filter(|key| key.instance == Sets::Asker);
        assert!(settable.all(|key| !names(key.kind)), "only the node names files and addresses");
    }

    #[test]
    fn settings_become_flags_of_the_mount() {
        let settings = [("max-age", "30s"), ("read-only", "true")];
        let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
        let flags = flags(&BTreeMap::from(settings));
        assert_eq!(flags.unwrap(), ["--max-age=30s", "--read-only=true"]);
    }
}
