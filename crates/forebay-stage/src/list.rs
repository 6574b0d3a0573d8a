//! A list of files and trees: one a line, `SOURCE` or `SOURCE DESTINATION` as DataWarp has it.
//!
//! White space parts the two. A name with a space, a line break or a backslash in it is written with
//! a backslash before it (`\ `, `\n`, `\\`) or in octal (`\040`). Empty lines and lines that begin
//! with `#` say nothing.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use forebay_base::Result;

use crate::spec::{inner, tidy, usage};

/// A list is held in memory.
pub const BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub from: PathBuf,
    pub to: PathBuf,
}

pub fn parse(text: &[u8], name: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut taken = HashMap::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let faulty = |why| usage(format!("{name}, line {number}: {why}"));
        if let Some(item) = item(line).map_err(faulty)? {
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

/// The line whose destination this item's is below.
fn above(item: &Item, taken: &HashMap<PathBuf, usize>) -> Option<usize> {
    item.to.ancestors().skip(1).find_map(|path| taken.get(path).copied())
}

fn item(line: &[u8]) -> std::result::Result<Option<Item>, String> {
    if line.starts_with(b"#") {
        return Ok(None);
    }
    let mut words = words(line)?;
    let to = match words.len() {
        0 => return Ok(None),
        1 => words[0].clone(),
        2 => words.remove(1),
        n => return Err(format!("{n} words: write a space in a name as `\\ `")),
    };
    let from = words.remove(0);
    inner(&from)?;
    inner(&to)?;
    let item = Item { from: tidy(&from), to: tidy(&to) };
    match item.from.as_os_str().is_empty() || item.to.as_os_str().is_empty() {
        true => {
            Err("no name is left: to take the whole of a directory, stage that directory".into())
        }
        false => Ok(Some(item)),
    }
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

/// The byte that stands for what follows a backslash, and how long that is.
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
        let items = parse(text, "list").map_err(|e| e.to_string())?;
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
    fn a_bad_line_is_named() {
        for (text, words) in [
            (&b"ok\na b c"[..], "list, line 2: 3 words"),
            (b"/abs", "line 1: \"/abs\" is absolute"),
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
