//! Ranges of bytes as plain pairs: half-open, in order, and apart from each other.

/// The number of bytes.
pub fn sum<'a>(spans: impl IntoIterator<Item = &'a (u64, u64)>) -> u64 {
    spans.into_iter().map(|(start, end)| end - start).sum()
}

/// The ranges that are in both.
pub fn common(spans: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut from = 0;
    for &(start, end) in others {
        from += spans[from..].partition_point(|span| span.1 <= start);
        let within = spans[from..].iter().take_while(|span| span.0 < end);
        found.extend(within.map(|span| (span.0.max(start), span.1.min(end))));
    }
    merge(found)
}

/// Joins neighbors.
fn merge(spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Cuts the ranges to their first `most` bytes. Returns where the rest begins, if any is left.
pub fn keep_first(spans: &mut Vec<(u64, u64)>, most: u64) -> Option<u64> {
    let mut room = most;
    for n in 0..spans.len() {
        let (start, end) = spans[n];
        if end - start > room {
            spans[n].1 = start + room;
            spans.truncate(n + usize::from(room > 0));
            return Some(start + room);
        }
        room -= end - start;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_end_within_a_range_or_between_two() {
        let all = [(0, 10), (20, 30)];
        let kept = |most| {
            let mut spans = all.to_vec();
            let rest = keep_first(&mut spans, most);
            (spans, rest)
        };
        assert_eq!(kept(0), (vec![], Some(0)));
        assert_eq!(kept(7), (vec![(0, 7)], Some(7)));
        assert_eq!(kept(10), (vec![(0, 10)], Some(20)));
        assert_eq!(kept(15), (vec![(0, 10), (20, 25)], Some(25)));
        assert_eq!(kept(20), (all.to_vec(), None));
    }

    #[test]
    fn what_two_lists_have_in_common_is_in_both() {
        let found = common(&[(0, 10), (10, 20), (30, 40)], &[(5, 15), (18, 35), (50, 60)]);
        assert_eq!(found, [(5, 15), (18, 20), (30, 35)]);
        assert_eq!(sum(&found), 17);
        assert!(common(&[(0, 5)], &[(5, 9)]).is_empty());
    }
}
