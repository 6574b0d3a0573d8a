//! The rules of which calls fail, and how: pure, with randomness from a seed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::glob::Pattern;
use serde::{Deserialize, Serialize};

use super::super::layer::{Call, Verb};
use crate::{Error, Kind, Result};

/// All rules of a store; the first that fires decides. As a file:
///
/// ```json
/// {"seed": 7, "rules": [
///   {"op": "write_at", "path": "data/*.bin", "fail": "ENOSPC", "skip": 3, "count": 2},
///   {"op": "any", "path": "away", "fail": "gone"},
///   {"op": "sync", "stall_ms": 500, "probability": 0.1}
/// ]}
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultRules {
    pub seed: u64,
    pub rules: Vec<FaultRule>,
}

/// Matching calls are counted from 0; those from `skip` on fire with `probability`, at most
/// `count` times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultRule {
    /// A [`Verb`]'s name, or `any`.
    pub op: String,
    /// With `*` or `?`: a [`Pattern`]. Otherwise the path itself and everything below it. Empty: every
    /// call, including calls without a path.
    pub path: String,
    /// An errno's name or number (as a string), or `gone`: the store does not answer. Absent: a stall only.
    pub fail: Option<Failure>,
    #[serde(rename = "when")]
    pub moment: Moment,
    /// How long the call waits before it goes on.
    pub stall_ms: u64,
    pub probability: f64,
    pub skip: u64,
    pub count: Option<u64>,
}

impl Default for FaultRule {
    fn default() -> FaultRule {
        FaultRule {
            op: "any".to_owned(),
            path: String::new(),
            fail: None,
            moment: Moment::Before,
            stall_ms: 0,
            probability: 1.0,
            skip: 0,
            count: None,
        }
    }
}

/// `after` lets the call take effect and then reports failure, as a lost reply does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    #[default]
    Before,
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Failure {
    Errno(i32),
    Gone,
}

const ERRNOS: &[(&str, i32)] = &[
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("EDQUOT", libc::EDQUOT),
    ("EEXIST", libc::EEXIST),
    ("EFBIG", libc::EFBIG),
    ("EINTR", libc::EINTR),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENODATA", libc::ENODATA),
    ("ENODEV", libc::ENODEV),
    ("ENOENT", libc::ENOENT),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("ENOTCONN", libc::ENOTCONN),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("EROFS", libc::EROFS),
    ("ESTALE", libc::ESTALE),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EXDEV", libc::EXDEV),
];

impl TryFrom<String> for Failure {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Failure, String> {
        let named = ERRNOS.iter().find(|(name, _)| *name == text).map(|(_, errno)| *errno);
        let number = || text.parse().ok().filter(|errno| (1..4096).contains(errno));
        match named.or_else(number) {
            Some(errno) => Ok(Failure::Errno(errno)),
            None if text == "gone" => Ok(Failure::Gone),
            None => Err(format!("`{text}` is no errno known here (EIO, ENOSPC, 28, gone, ...)")),
        }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        match failure {
            Failure::Gone => "gone".to_owned(),
            Failure::Errno(errno) => ERRNOS
                .iter()
                .find(|(_, e)| *e == errno)
                .map_or_else(|| errno.to_string(), |(name, _)| (*name).to_owned()),
        }
    }
}

impl Failure {
    pub fn error(self, call: &Call<'_>) -> Error {
        let path = call.paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        let context = format!("{} {path} (injected)", call.verb.name());
        match self {
            Failure::Gone => Error::new(Kind::Unavailable, context),
            Failure::Errno(errno) => Error::storage(errno, context),
        }
    }
}

/// The effect of the rules on one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    pub stall: Duration,
    pub fail: Option<Failure>,
    pub moment: Moment,
}

/// The rules with their counts.
#[derive(Debug, Default)]
pub struct Active {
    rules: Vec<Counted>,
    random: u64,
}

#[derive(Debug)]
struct Counted {
    rule: FaultRule,
    /// The verb of the rule; `None` for any.
    verb: Option<Verb>,
    scope: Scope,
    matched: u64,
    fired: u64,
}

impl Active {
    pub fn new(rules: FaultRules) -> Result<Active> {
        let counted = rules.rules.into_iter().map(Counted::new).collect::<Result<_>>()?;
        Ok(Active { rules: counted, random: rules.seed })
    }

    pub fn decide(&mut self, call: &Call<'_>) -> Option<Hit> {
        let random = &mut self.random;
        self.rules.iter_mut().find_map(|counted| counted.decide(call, random))
    }
}

impl Counted {
    fn new(rule: FaultRule) -> Result<Counted> {
        let verb = match rule.op.as_str() {
            "any" => None,
            name => Some(Verb::from_name(name).ok_or_else(|| unknown(name))?),
        };
        let scope = Scope::of(&rule.path)?;
        Ok(Counted { rule, verb, scope, matched: 0, fired: 0 })
    }

    fn decide(&mut self, call: &Call<'_>, random: &mut u64) -> Option<Hit> {
        if !self.matches(call) {
            return None;
        }
        self.matched += 1;
        let spent = self.rule.count.is_some_and(|count| self.fired >= count);
        if spent || self.matched <= self.rule.skip || next(random) >= self.rule.probability {
            return None;
        }
        self.fired += 1;
        let stall = Duration::from_millis(self.rule.stall_ms);
        Some(Hit { stall, fail: self.rule.fail, moment: self.rule.moment })
    }

    fn matches(&self, call: &Call<'_>) -> bool {
        self.verb.is_none_or(|verb| verb == call.verb) && self.scope.covers(call.paths)
    }
}

fn unknown(op: &str) -> Error {
    let known: Vec<&str> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let message = format!("fault rules: `{op}` is no operation; use any, {}", known.join(", "));
    Error::new(Kind::Usage, message)
}

/// The paths that a rule is about.
#[derive(Debug)]
enum Scope {
    All,
    Fits(Pattern),
    Within(PathBuf),
}

impl Scope {
    fn of(path: &str) -> Result<Scope> {
        if path.contains(['*', '?']) {
            let wrong = |why| Error::new(Kind::Usage, format!("fault rules: `{path}`: {why}"));
            return path.parse().map(Scope::Fits).map_err(wrong);
        }
        Ok(if path.is_empty() { Scope::All } else { Scope::Within(path.into()) })
    }

    fn covers(&self, paths: &[&Path]) -> bool {
        match self {
            Scope::All => true,
            Scope::Fits(pattern) => paths.iter().any(|path| pattern.matches(path)),
            Scope::Within(tree) => paths.iter().any(|path| path.starts_with(tree)),
        }
    }
}

/// A number in [0, 1) by splitmix64.
fn next(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(verb: Verb, path: &str, active: &mut Active) -> Option<Hit> {
        active.decide(&Call { verb, paths: &[Path::new(path)], offset: 0, len: 0 })
    }

    fn active(json: &str) -> Active {
        Active::new(serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn patterns_match_whole_paths_and_plain_paths_match_trees() {
        for (pattern, path, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", true),
            ("a/b", "a/bc", false),
            ("*", "a/b", true),
            ("*.bin", "x/y.bin", true),
            ("*.bin", "x/y.bin.tmp", false),
            ("a?c*d", "abcxxd", true),
            ("a?c*d", "abcxxde", false),
            ("a*b*c", "a1b2b3c", true),
            ("??", "abc", false),
        ] {
            let scope = Scope::of(pattern).unwrap();
            assert_eq!(scope.covers(&[Path::new(path)]), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn skip_and_count_choose_the_nth_call() {
        let mut active =
            active(r#"{"rules": [{"op": "sync", "fail": "EIO", "skip": 1, "count": 2}]}"#);
        let fired: Vec<bool> =
            (0..5).map(|_| call(Verb::Sync, "f", &mut active).is_some()).collect();
        assert_eq!(fired, [false, true, true, false, false]);
        assert!(call(Verb::Stat, "f", &mut active).is_none());
    }

    #[test]
    fn probability_follows_the_seed() {
        let json = r#"{"seed": 3, "rules": [{"fail": "gone", "probability": 0.25}]}"#;
        let run = |mut active: Active| -> Vec<bool> {
            (0..1000).map(|_| call(Verb::Stat, "f", &mut active).is_some()).collect()
        };
        let fired = run(active(json));
        assert_eq!(fired, run(active(json)));
        let count = fired.iter().filter(|hit| **hit).count();
        assert!((200..300).contains(&count), "{count}");
    }

    #[test]
    fn wrong_rules_are_refused_by_name() {
        let parse = |json: &str| serde_json::from_str::<FaultRules>(json);
        assert!(parse(r#"{"rules": [{"fail": "EWHAT"}]}"#).is_err());
        assert!(parse(r#"{"rules": [{"operation": "stat"}]}"#).is_err());
        let rules = parse(r#"{"rules": [{"op": "frobnicate"}]}"#).unwrap();
        let error = Active::new(rules).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains("frobnicate"), "{error}");
    }

    #[test]
    fn rules_survive_the_way_through_json() {
        let fail = Some(Failure::Errno(libc::ENOSPC));
        let rule = FaultRule { fail, moment: Moment::After, ..FaultRule::default() };
        let rules = FaultRules { seed: 1, rules: vec![rule] };
        let text = serde_json::to_string(&rules).unwrap();
        assert_eq!(serde_json::from_str::<FaultRules>(&text).unwrap(), rules, "{text}");
    }
}
