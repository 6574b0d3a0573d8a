//! docs/DIRECTIVES.md: its scripts have no problems, and it names every word.

use forebay_job::{Job, Severity, read, vocabulary};

const DOCUMENT: &str = include_str!("../../../docs/DIRECTIVES.md");

/// Blocks without a language.
fn scripts() -> Vec<String> {
    let mut scripts: Vec<String> = Vec::new();
    let mut block: Option<(bool, String)> = None;
    for line in DOCUMENT.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(language)) => block = Some((language.is_empty(), String::new())),
            (Some((plain, text)), Some(_)) => {
                if *plain {
                    scripts.push(std::mem::take(text));
                }
                block = None;
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    scripts
}

#[test]
fn every_script_is_sound_and_asks_for_something() {
    let scripts = scripts();
    assert!(scripts.len() >= 10, "{}", scripts.len());
    for script in scripts {
        let found = read(&script, &Job::default());
        let told: Vec<String> = found
            .problems
            .iter()
            .filter(|problem| problem.severity != Severity::Remark)
            .map(|problem| problem.shown("DIRECTIVES.md", &script))
            .collect();
        assert!(told.is_empty(), "{}", told.join("\n"));
        assert!(found.directives > 0, "{script}");
        // The variables that a script uses are given to it.
        for (name, value) in
            script.match_indices("$FB_JOB_").map(|(at, _)| variable(&script[at + 1..]))
        {
            let given = found.plan.instances.iter().any(|space| space.variables.contains(&name));
            assert!(given, "{name} in {value}");
        }
    }
}

fn variable(text: &str) -> (String, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (text[..end].to_string(), text)
}

#[test]
fn every_directive_and_word_is_named() {
    for (directive, words) in vocabulary() {
        assert!(DOCUMENT.contains(&format!("`{directive}`")), "{directive}");
        for word in words {
            let named =
                DOCUMENT.contains(&format!("`{word}=`")) || DOCUMENT.contains(&format!("`{word}`"));
            assert!(named, "{word} of {directive}");
        }
    }
}

/// A row of a table names only words that its directive takes.
#[test]
fn no_word_is_named_that_is_not_there() {
    let vocabulary = vocabulary();
    let mut directive = None;
    let mut checked = 0;
    for line in DOCUMENT.lines() {
        let Some(cells) = line.strip_prefix('|') else {
            directive = None;
            continue;
        };
        let mut cells = cells.split('|').map(str::trim);
        let (first, words) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        if let Some(name) = first.strip_prefix('`').and_then(|name| name.strip_suffix('`')) {
            directive = vocabulary.iter().find(|(known, _)| known == name);
            assert!(directive.is_some() || !name.starts_with('#'), "{name}");
        }
        let Some((name, known)) = directive else { continue };
        for word in words.split('`').skip(1).step_by(2) {
            let word = word.trim_end_matches('=');
            checked += 1;
            assert!(known.contains(&word) || word == "2GiB", "{word} of {name}");
        }
    }
    assert!(checked > 40, "{checked}");
}
