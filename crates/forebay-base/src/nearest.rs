//! The known name that a typo probably meant.

/// The candidate with the fewest edits, if they are few enough for a guess. Neither case nor `_`
/// for `-` counts as an edit.
pub fn nearest<Name: AsRef<str> + Ord>(
    typed: &str,
    candidates: impl Iterator<Item = Name>,
) -> Option<Name> {
    let plain = |name: &str| name.replace('_', "-").to_ascii_lowercase();
    let typed = plain(typed);
    let (edits, name) =
        candidates.map(|name| (distance(&typed, &plain(name.as_ref())), name)).min()?;
    (edits <= 1 + name.as_ref().len().min(typed.len()) / 3).then_some(name)
}

/// Levenshtein's distance over bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, edits) in [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!(distance(a, b), edits);
            assert_eq!(distance(b, a), edits);
        }
    }

    #[test]
    fn a_near_name_is_offered_and_a_far_one_is_not() {
        let names = ["max-age", "tier-size", "dirty-low", "dirty-high"];
        assert_eq!(nearest("max_age", names.into_iter()), Some("max-age"));
        assert_eq!(nearest("maxage", names.into_iter()), Some("max-age"));
        assert_eq!(nearest("dirty-hgih", names.into_iter()), Some("dirty-high"));
        assert_eq!(nearest("colour", names.into_iter()), None);
    }
}
