use std::collections::VecDeque;

use super::*;

const RECIPE: Recipe = Recipe { scale: 10, edge_factor: 8, seed: 11 };

/// Levels by the textbook's queue.
fn plain_levels(offsets: &[u64], words: &[u32], root: u32) -> Vec<Option<u32>> {
    let mut levels = vec![None; offsets.len() - 1];
    levels[root as usize] = Some(0);
    let mut queue = VecDeque::from([root as usize]);
    while let Some(vertex) = queue.pop_front() {
        for &other in &words[offsets[vertex] as usize..offsets[vertex + 1] as usize] {
            if levels[other as usize].is_none() {
                levels[other as usize] = levels[vertex].map(|level: u32| level + 1);
                queue.push_back(other as usize);
            }
        }
    }
    levels
}

fn level_in(parents: &[u32], mut vertex: usize) -> Option<u32> {
    let mut level = 0;
    while parents[vertex] != vertex as u32 {
        if parents[vertex] == search::NONE {
            return None;
        }
        vertex = parents[vertex] as usize;
        level += 1;
    }
    Some(level)
}

/// From memory and from a file, with one thread and with three, with reads shorter than the longest
/// row: every vertex is at the level a plain search gives it.
#[test]
fn levels_agree_with_a_plain_search() {
    let mut bytes = Vec::new();
    let offsets = graph::write(RECIPE, 1 << 30, &mut bytes, |_| true).unwrap();
    let words: Vec<u32> = graph::words(&bytes).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edges");
    std::fs::write(&path, &bytes).unwrap();
    let longest = offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest * 4 > 600, "a row of {longest} words");
    let mut rng = Rng::new(2);
    for threads in [1, 3] {
        for rows in [Rows::Memory(&bytes), Rows::File(&path, How::default())] {
            for read in [4096, 16 << 10] {
                let root = draw_root(&offsets, &mut rng);
                let search = Search::new(&offsets, root);
                let team = crate::team::Team::new(threads, Kind::Threads);
                let outcome = team.run(|task: &Task<'_>, (): &()| search.work(task, &rows, read));
                assert_eq!(outcome.check(), Ok(()));
                assert!(Total::of(outcome.meters()).ops > 0);
                let (parents, depth) = search.finish();
                let expected = plain_levels(&offsets, &words, root);
                for (vertex, level) in expected.iter().enumerate() {
                    assert_eq!(level_in(&parents, vertex), *level, "vertex {vertex}");
                }
                let deepest = expected.iter().flatten().max().unwrap();
                assert_eq!(depth, u64::from(*deepest) + 1);
                let tree = verify(&offsets, &bytes[..], &parents, root, || true).unwrap();
                assert_eq!(tree.edges, reached_words(&offsets, &parents) / 2);
            }
        }
    }
}

#[test]
fn rows_longer_than_the_buffer_are_read_in_pieces() {
    // A star: the first row has 5000 words, five pages.
    let leaves = 5000u32;
    let mut offsets = vec![0, u64::from(leaves)];
    let mut words: Vec<u32> = (1..=leaves).collect();
    for leaf in 1..=u64::from(leaves) {
        words.push(0);
        offsets.push(u64::from(leaves) + leaf);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let search = Search::new(&offsets, 7);
    let rows = Rows::Memory(&bytes);
    let outcome = crate::team::Team::new(2, Kind::Threads)
        .run(|task: &Task<'_>, (): &()| search.work(task, &rows, 4096));
    assert_eq!(outcome.check(), Ok(()));
    let (parents, levels) = search.finish();
    assert_eq!((levels, parents[0], parents[7]), (3, 7, 7));
    assert!(parents[1..].iter().enumerate().all(|(i, p)| i == 6 || *p == 0));
}

#[test]
fn limits_are_checked_by_name() {
    for (line, says) in [
        ("--scale 40", "--scale"),
        ("--scale 20 --memory 1m", "vertices and buffers"),
        ("--scale 10 --memory 1g", "fits"),
        ("--read 1000", "--read"),
        ("--roots 0", "--roots"),
    ] {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let parsed = crate::workloads::base::Base::options(spec()).parse(&words).unwrap();
        let error = plan(&parsed).err().unwrap();
        assert!(error.exit_code() == 2 && error.to_string().contains(says), "{line}: {error}");
    }
}
