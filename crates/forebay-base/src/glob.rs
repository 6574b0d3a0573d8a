//! Patterns for names of files: `*` and `?` within one name, `**` across directories.
//!
//! A pattern without a slash is compared with the last component of a path, a pattern with a slash
//! with the whole path from the root of the mount.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    whole: bool,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let whole = text.contains('/');
        let text = text.trim_start_matches('/').to_string();
        match text.is_empty() {
            true => Err("a pattern needs a name, for example MANIFEST or *.index".into()),
            false => Ok(Pattern { text, whole }),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root = if self.whole && !self.text.contains('/') { "/" } else { "" };
        write!(f, "{root}{}", self.text)
    }
}

impl Pattern {
    pub fn matches(&self, path: &Path) -> bool {
        let text = match self.whole {
            true => path.as_os_str(),
            false => path.file_name().unwrap_or_default(),
        };
        covers(self.text.as_bytes(), text.as_bytes())
    }
}

/// Greedy, with one place to come back to for `*` and one for `**`.
fn covers(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut stars: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with(b"**") {
            // `**/` also covers no directory at all.
            p += if pattern[p + 2..].starts_with(b"/") && at_name(text, t) { 3 } else { 2 };
            (star, stars) = (None, Some((p, t)));
            continue;
        }
        match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            (Some(b'?'), Some(&c)) if c != b'/' => {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            (Some(&wanted), Some(&c)) if wanted == c => {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            _ => {}
        }
        match (&mut star, &mut stars) {
            (Some((at, from)), _) if text.get(*from).is_some_and(|&c| c != b'/') => {
                *from += 1;
                (p, t) = (*at, *from);
            }
            (_, Some((at, from))) if *from < text.len() => {
                *from += 1;
                // Behind `**/` a match begins with a name.
                let names = pattern[..*at].ends_with(b"/");
                while names && *from < text.len() && !at_name(text, *from) {
                    *from += 1;
                }
                star = None;
                (p, t) = (*at, *from);
            }
            _ => return false,
        }
    }
}

fn at_name(text: &[u8], at: usize) -> bool {
    at == 0 || text[at - 1] == b'/'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_match_as_people_expect() {
        for (pattern, path, expected) in [
            ("MANIFEST", "run/7/MANIFEST", true),
            ("MANIFEST", "MANIFEST.old", false),
            ("*.index", "a/b.index", true),
            ("*.index", "a.index/b", false),
            ("step-?/manifest", "step-1/manifest", true),
            ("step-?/manifest", "x/step-1/manifest", false),
            ("/manifest", "manifest", true),
            ("/manifest", "a/manifest", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/**", "a/b/c", true),
            ("**/done", "done", true),
            ("**/done", "a/b/done", true),
            ("**/done", "a/undone", false),
            ("a/**/z*", "a/b/c/zebra", true),
            ("a/**/z*", "a/zebra", true),
            ("a/**/z*", "a/b/zebra/c", false),
            ("*a*a", "banana", true),
            ("*a*b", "banana", false),
            ("*", "x", true),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(Path::new(path)), expected, "{pattern} {path}");
            assert_eq!(parsed.to_string().parse::<Pattern>().unwrap(), parsed);
        }
        assert!("/".parse::<Pattern>().is_err());
    }
}
