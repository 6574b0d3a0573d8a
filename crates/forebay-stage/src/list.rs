//! A list of files and trees: one per line, `SOURCE` or `SOURCE DESTINATION`.
//!
//! Sources are relative to the list's directory, destinations to the transfer's. As in DataWarp, names
//! may be whole instead: they begin with `/` or with an instance's variable (`$DW_JOB_STRIPED/name`), which
//! stand for the root of the source's or the destination's side. Then all sources of the list must be whole.
//! A whole source without a destination keeps its last name.
//!
//! White space separates the two. A name with a space, a line break or a backslash in it is written with
//! a backslash before it (`\ `, `\n`, `\\`) or in octal (`\040`). Empty lines and lines that begin
//! with `#` are ignored.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use forebay_base::Result;

use crate::spec::{inner, tidy, usage};

/// The longest list: it is held in memory.
pub const BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Absolute if it starts at the root of the source's side.
    pub from: PathBuf,
    /// Relative to the destination.
    pub to: PathBuf,
}

/// Reads a list. Its files go below `destination`, which is relative to its root.
pub fn parse(text: &[u8], name: &str, destination: &Path) -> Result<Vec<Item>> {
    let mut items: Vec<Item> = Vec::new();
    let mut taken = HashMap::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let faulty = |why| usage(format!("{name}, line {number}: {why}"));
        if let Some(item) = item(line, destination).map_err(faulty)? {
            if items
                .first()
                .is_some_and(|first| first.from.is_absolute() != item.from.is_absolute())
            {
                let why =
                    "names from the root on and names below the list are mixed: write all alike";
                return Err(faulty(why.into()));
            }
            taken.insert(item.to.clone(), number).map_or(Ok(()), |other| {
                Err(faulty(format!("line {other} has the same destination: remove one of them")))
            })?;
            items.push(item);
        }
    }
    match items.iter().find_map(|item| Some((item, above(item, &taken)?))) {
        Some((item, other)) => Err(usage(format!(
            "{name}, line {}: its destination is below that of line {other}: remove one of them",
            taken[&item.to]
        ))),
        None => Ok(items),
    }
}

/// The line whose destination is above this item's.
fn above(item: &Item, taken: &HashMap<PathBuf, usize>) -> Option<usize> {
    item.to.ancestors().skip(1).find_map(|path| taken.get(path).copied())
}

fn item(line: &[u8], destination: &Path) -> std::result::Result<Option<Item>, String> {
    if line.starts_with(b"#") {
        return Ok(None);
    }
    let mut words = words(line)?;
    let to = match words.len() {
        0 => return Ok(None),
        1 => match whole(&words[0]) {
            Some(from) => from.file_name().map(PathBuf::from).unwrap_or_default(),
            None => words[0].clone(),
        },
        2 => words.remove(1),
        n => return Err(format!("{n} words: write a space in a name as `\\ `")),
    };
    let from = words.remove(0);
    let from_root = whole(&from);
    inner(from_root.as_deref().unwrap_or(&from))?;
    let to = match whole(&to) {
        None => to,
        Some(path) => {
            inner(&path)?;
            let below = tidy(&path).strip_prefix(destination).map(PathBuf::from);
            below.map_err(|_| {
                let (path, destination) = (path.display(), destination.display());
                format!("{path:?} is not below the transfer's destination {destination:?}")
            })?
        }
    };
    inner(&to)?;
    let from = match &from_root {
        Some(path) if tidy(path).as_os_str().is_empty() => PathBuf::new(),
        Some(path) => Path::new("/").join(tidy(path)),
        None => tidy(&from),
    };
    let item = Item { from, to: tidy(&to) };
    match item.from.as_os_str().is_empty() || item.to.as_os_str().is_empty() {
        true => {
            Err("no name is left: to take the whole of a directory, stage that directory".into())
        }
        false => Ok(Some(item)),
    }
}

/// The path below the root, for a name that begins with `/` or with an instance's variable.
fn whole(name: &Path) -> Option<PathBuf> {
    if let Ok(path) = name.strip_prefix("/") {
        return Some(path.into());
    }
    let text = name.as_os_str().as_bytes();
    let rest = text.strip_prefix(b"$")?;
    let (variable, path) = match rest.strip_prefix(b"{") {
        Some(rest) => {
            let end = rest.iter().position(|&byte| byte == b'}')?;
            (&rest[..end], &rest[end + 1..])
        }
        None => rest.split_at(rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())),
    };
    let known = [&b"DW_JOB_"[..], b"DW_PERSISTENT_", b"FB_JOB_", b"FB_PERSISTENT_"];
    let ours = known.iter().any(|start| variable.starts_with(start));
    let path = path.strip_prefix(b"/").unwrap_or(path);
    ours.then(|| OsString::from_vec(path.to_vec()).into())
}

fn words(line: &[u8]) -> std::result::Result<Vec<PathBuf>, String> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        at += 1;
        match byte {
            b' ' | b'\t' | b'\r' => close(&mut word, &mut words),
            b'\\' => {
                let (byte, len) = escaped(&line[at..])?;
                word.push(byte);
                at += len;
            }
            _ => word.push(byte),
        }
    }
    close(&mut word, &mut words);
    Ok(words)
}

fn close(word: &mut Vec<u8>, words: &mut Vec<PathBuf>) {
    if !word.is_empty() {
        words.push(OsString::from_vec(std::mem::take(word)).into());
    }
}

/// The byte that an escape stands for, and the escape's length.
fn escaped(rest: &[u8]) -> std::result::Result<(u8, usize), String> {
    let octal = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(text, 8).ok().filter(|&byte| byte != 0)
    };
    match rest {
        [b'n', ..] => Ok((b'\n', 1)),
        [b't', ..] => Ok((b'\t', 1)),
        [byte @ (b' ' | b'\\' | b'#'), ..] => Ok((*byte, 1)),
        [b'0'..=b'3', b'0'..=b'7', b'0'..=b'7', ..] => octal(&rest[..3])
            .map(|byte| (byte, 3))
            .ok_or_else(|| "`\\000` is in no name: remove it".to_string()),
        _ => Err("a backslash before nothing it could mean: write it twice".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8]) -> std::result::Result<Vec<(String, String)>, String> {
        let shown = |path: PathBuf| path.into_os_string().into_vec().escape_ascii().to_string();
        let items = parse(text, "list", Path::new("in")).map_err(|e| e.to_string())?;
        Ok(items.into_iter().map(|item| (shown(item.from), shown(item.to))).collect())
    }

    #[test]
    fn lines_have_one_name_or_two() {
        let text = b"# comment\n\na/b\n./c//d  x/y\r\nwith\\ space\nline\\nbreak \\377\\\\\n\\#x";
        let wanted = [
            ("a/b", "a/b"),
            ("c/d", "x/y"),
            ("with space", "with space"),
            ("line\\nbreak", "\\xff\\\\"),
            ("#x", "#x"),
        ];
        assert_eq!(of(text).unwrap(), wanted.map(|(a, b)| (a.to_string(), b.to_string())));
    }

    #[test]
    fn datawarps_lists_have_whole_names() {
        let text =
            b"/pfs/a $DW_JOB_STRIPED/in/x/a\n//pfs/./b ${DW_JOB_STRIPED}in/b\n/pfs/c c\n/pfs/d\n\
            $FB_JOB_SCRATCH/e /in/e";
        let wanted =
            [("/pfs/a", "x/a"), ("/pfs/b", "b"), ("/pfs/c", "c"), ("/pfs/d", "d"), ("/e", "e")];
        assert_eq!(of(text).unwrap(), wanted.map(|(a, b)| (a.to_string(), b.to_string())));
        // A file's name may begin with a dollar sign, too.
        let plain = ("$HOME/a".to_string(), "$HOME/a".to_string());
        assert_eq!(of(b"$HOME/a").unwrap(), [plain]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, words) in [
            (&b"ok\na b c"[..], "list, line 2: 3 words"),
            (b"/a\nb", "line 2: names from the root on and names below the list are mixed"),
            (b"/a/../b", "goes up"),
            (b"/", "no name is left"),
            (
                b"/a $DW_JOB_STRIPED/out/a",
                "\"out/a\" is not below the transfer's destination \"in\"",
            ),
            (b"/a $DW_JOB_STRIPED/in", "no name is left"),
            (b"/a/x\n/b/x", "line 2: line 1 has the same destination"),
            (b"a ../b", "goes up"),
            (b"a\\", "backslash"),
            (b"a\\000", "no name"),
            (b".", "no name is left"),
            (b"a x\nb\nc x", "line 3: line 1 has the same destination"),
            (b"a/b\na", "line 1: its destination is below that of line 2"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
