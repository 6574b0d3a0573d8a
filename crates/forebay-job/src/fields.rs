//! The words of one directive: `WORD=VALUE`, words alone, and values alone, each read once.

use forebay_base::nearest::nearest;

use crate::problem::{Problems, Span};
use crate::script::{Directive, Word};
use crate::verbs::{Bare, Verb};

/// The longest part of a user's word that is repeated in a message.
const CLIP: usize = 48;

/// A longer word is no misspelling of a known word.
const NEAR_MAX: usize = 40;

#[derive(Debug, Clone)]
pub struct Field<'d> {
    word: &'d Word,
    /// The length of the key in characters, with the `=`.
    key: usize,
    pub value: &'d str,
}

#[derive(Debug)]
pub struct Fields<'d> {
    pub verb: &'d Word,
    keyed: Vec<(&'static str, Field<'d>)>,
    /// The values of the one word that may be repeated.
    last: Vec<Field<'d>>,
    flags: Vec<&'static str>,
    bare: Option<Field<'d>>,
    /// A word was refused: it may be a misspelling of a missing one.
    refused: bool,
}

impl Field<'_> {
    /// The place of the value; of the whole word if there is no value.
    pub fn at(&self) -> Span {
        self.part(0, self.value.chars().count())
    }

    /// The place of some characters of the value.
    pub fn part(&self, from: usize, to: usize) -> Span {
        match from < to {
            true => self.word.span(self.key + from, self.key + to),
            false => self.word.whole(),
        }
    }

    pub fn whole(&self) -> Span {
        self.word.whole()
    }
}

impl<'d> Fields<'d> {
    /// Sorts the words after a verb.
    pub fn of(
        directive: &'d Directive,
        verb: &'static Verb,
        problems: &mut Problems,
    ) -> Fields<'d> {
        let (first, rest) = directive.words.split_first().expect("a verb was found");
        let (keyed, last, flags) = (Vec::new(), Vec::new(), Vec::new());
        let mut fields = Fields { verb: first, keyed, last, flags, bare: None, refused: false };
        let errors = problems.errors();
        for word in rest {
            fields.sort(word, verb, problems);
        }
        fields.refused = problems.errors() > errors;
        fields
    }

    fn sort(&mut self, word: &'d Word, verb: &'static Verb, problems: &mut Problems) {
        let Some((key, value)) = word.text.split_once('=') else {
            return self.sort_alone(word, verb, problems);
        };
        let length = key.chars().count();
        let field = Field { word, key: length + 1, value };
        let key_at = word.span(0, length);
        if let Some(known) = verb.takes.iter().find(|known| **known == key) {
            let again = self.keyed.iter().any(|(other, _)| other == known);
            match (again, value.is_empty()) {
                (true, _) => problems.error(key_at, format!("{key} is said twice"), "say it once"),
                (_, true) if !matches!(*known, "source" | "destination") => {
                    problems.error(
                        word.whole(),
                        format!("{key}= is empty"),
                        "write a value behind it",
                    );
                }
                _ if *known == "last" => self.last.push(field),
                _ => self.keyed.push((known, field)),
            }
        } else if verb.ignores.contains(&key) {
            problems.warning(key_at, format!("{key} does nothing here"), "");
        } else if verb.flags.contains(&key) {
            problems.error(key_at, format!("{key} takes no value"), format!("write {key} alone"));
        } else {
            unknown(key_at, key, verb, problems);
        }
    }

    fn sort_alone(&mut self, word: &'d Word, verb: &'static Verb, problems: &mut Problems) {
        let text = word.text.as_str();
        if let Some(flag) = verb.flags.iter().find(|flag| **flag == text) {
            self.flags.push(flag);
        } else if verb.takes.contains(&text) || verb.ignores.contains(&text) {
            problems.error(
                word.whole(),
                format!("{text} has no value"),
                format!("write {text}=VALUE"),
            );
        } else if verb.bare == Bare::Size && self.bare.is_none() {
            self.bare = Some(Field { word, key: 0, value: text });
        } else {
            unknown(word.whole(), text, verb, problems);
        }
    }

    pub fn get(&self, key: &str) -> Option<&Field<'d>> {
        self.keyed.iter().find(|(known, _)| *known == key).map(|(_, field)| field)
    }

    pub fn last(&self) -> &[Field<'d>] {
        &self.last
    }

    pub fn value(&self, key: &str) -> Option<&'d str> {
        self.get(key).map(|field| field.value)
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub fn bare(&self) -> Option<&Field<'d>> {
        self.bare.as_ref()
    }

    /// A value that must be present; if it is missing, the problem is already reported.
    pub fn need(&self, key: &str, example: &str, problems: &mut Problems) -> Option<&Field<'d>> {
        let found = self.get(key);
        if found.is_none() && !self.refused {
            let verb = &self.verb.text;
            problems.error(
                self.verb.whole(),
                format!("{verb} needs {key}="),
                format!("write {example}"),
            );
        }
        found
    }

    /// One of some allowed words, if there is one.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
        problems: &mut Problems,
    ) -> Option<T> {
        let field = self.get(key)?;
        let found = words.iter().find(|(word, _)| *word == field.value);
        if found.is_none() {
            let names = || words.iter().map(|(word, _)| *word);
            not_one_of(field.at(), field.value, names(), problems);
        }
        found.map(|(_, value)| *value)
    }
}

/// Reports a word that is not one of those allowed here.
pub fn not_one_of<'w>(
    at: Span,
    typed: &str,
    words: impl Iterator<Item = &'w str> + Clone,
    problems: &mut Problems,
) {
    let remedy = match near(typed, words.clone()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("write {}", words.collect::<Vec<_>>().join("|")),
    };
    problems.error(at, format!("{} is not known here", clip(typed)), remedy);
}

fn unknown(at: Span, typed: &str, verb: &'static Verb, problems: &mut Problems) {
    let keys = verb.takes.iter().chain(verb.ignores).chain(verb.flags).copied();
    let remedy = match near(typed, keys) {
        Some(near) => format!("did you mean {near}?"),
        None => {
            let keys: Vec<String> = verb.takes.iter().map(|key| format!("{key}=")).collect();
            let all: Vec<&str> =
                keys.iter().map(String::as_str).chain(verb.flags.iter().copied()).collect();
            format!("{} takes {}", verb.name, all.join(", "))
        }
    };
    problems.error(at, format!("{} is no word of {}", clip(typed), verb.name), remedy);
}

pub fn near<'w>(typed: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    (typed.len() <= NEAR_MAX && !typed.is_empty()).then(|| nearest(typed, words)).flatten()
}

/// A user's word, shortened for a message.
pub fn clip(text: &str) -> String {
    match text.char_indices().nth(CLIP) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
