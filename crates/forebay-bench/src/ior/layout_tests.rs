//! Offsets per rank, by table (from IOR's documentation: segment, block and transfer of each rank)
//! and by property.

use super::*;

fn params(line: &str) -> Params {
    let mut params = Params::default();
    for pair in line.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        params.set(key, value).unwrap();
    }
    params
}

fn offsets(params: &Params, rank: usize) -> Vec<u64> {
    let layout = Layout::new(params, rank);
    (0..params.transfers_per_task()).map(|index| layout.offset(index)).collect()
}

/// Each line: the settings, then the offsets that each rank visits, in order.
#[test]
fn sequential_offsets_are_those_of_the_documentation() {
    let table: &[(&str, &[&[u64]])] = &[
        ("blockSize=4 transferSize=2", &[&[0, 2]]),
        ("blockSize=4 transferSize=4 numTasks=3", &[&[0], &[4], &[8]]),
        ("blockSize=4 transferSize=2 numTasks=2", &[&[0, 2], &[4, 6]]),
        (
            "blockSize=4 transferSize=2 numTasks=2 segmentCount=3",
            &[&[0, 2, 8, 10, 16, 18], &[4, 6, 12, 14, 20, 22]],
        ),
        ("blockSize=2 transferSize=2 numTasks=2 segmentCount=3", &[&[0, 4, 8], &[2, 6, 10]]),
        (
            "blockSize=4 transferSize=2 numTasks=2 segmentCount=3 filePerProc=1",
            &[&[0, 2, 4, 6, 8, 10], &[0, 2, 4, 6, 8, 10]],
        ),
        (
            "blockSize=6 transferSize=2 numTasks=3 segmentCount=2",
            &[&[0, 2, 4, 18, 20, 22], &[6, 8, 10, 24, 26, 28], &[12, 14, 16, 30, 32, 34]],
        ),
    ];
    for (line, ranks) in table {
        let params = params(line);
        assert_eq!(ranks.len(), params.tasks);
        for (rank, expected) in ranks.iter().enumerate() {
            assert_eq!(offsets(&params, rank), *expected, "{line}, rank {rank}");
        }
    }
}

/// Each line: the settings, then for each rank whose data it reads, and where these lie: the
/// combined effect of `-b`, `-t`, `-s`, `-F`, `-C`, `-Q` and `-N`.
#[test]
fn reads_go_where_the_documentation_says() {
    type Read = (usize, &'static [u64]);
    let table: &[(&str, &[Read])] = &[
        (
            "blockSize=4 transferSize=2 numTasks=2 segmentCount=2 reorderTasks=1",
            &[(1, &[4, 6, 12, 14]), (0, &[0, 2, 8, 10])],
        ),
        (
            "blockSize=4 transferSize=2 numTasks=2 segmentCount=2 reorderTasks=1 filePerProc=1",
            &[(1, &[0, 2, 4, 6]), (0, &[0, 2, 4, 6])],
        ),
        (
            "blockSize=3 transferSize=3 numTasks=4 reorderTasks=1 taskPerNodeOffset=3",
            &[(3, &[9]), (0, &[0]), (1, &[3]), (2, &[6])],
        ),
        (
            "blockSize=4 transferSize=4 numTasks=3 segmentCount=2 reorderTasks=1 \
             taskPerNodeOffset=2",
            &[(2, &[8, 20]), (0, &[0, 12]), (1, &[4, 16])],
        ),
        (
            "blockSize=4 transferSize=2 numTasks=3 reorderTasks=1 taskPerNodeOffset=2 \
             filePerProc=1",
            &[(2, &[0, 2]), (0, &[0, 2]), (1, &[0, 2])],
        ),
        // A single task can only read its own data, whatever the reordering.
        ("blockSize=4 transferSize=2 reorderTasks=1 taskPerNodeOffset=5", &[(0, &[0, 2])]),
        ("blockSize=4 transferSize=2 reorderTasksRandom=1", &[(0, &[0, 2])]),
        ("blockSize=4 transferSize=2 reorderTasksRandom=2", &[(0, &[0, 2])]),
        // Of two tasks at least one apart, each reads the other's, whatever the seed.
        (
            "blockSize=4 transferSize=2 numTasks=2 segmentCount=2 reorderTasksRandom=1 \
             reorderTasksRandomSeed=77",
            &[(1, &[4, 6, 12, 14]), (0, &[0, 2, 8, 10])],
        ),
    ];
    for (line, ranks) in table {
        let params = params(line);
        assert_eq!(ranks.len(), params.tasks, "{line}");
        for (rank, (owner, expected)) in ranks.iter().enumerate() {
            assert_eq!(readers(&params, 0)[rank], *owner, "{line}, rank {rank}");
            assert_eq!(offsets(&params, *owner), *expected, "{line}, rank {rank}");
        }
    }
}

/// The random orders themselves, computed independently of this code: a seed means the same
/// accesses on every machine and in every version. Settings, rank, offsets.
#[test]
fn a_seed_means_the_same_order_for_ever() {
    let table: &[(&str, usize, [u64; 10])] = &[
        ("randomOffset=1", 0, [3, 2, 6, 1, 8, 13, 12, 18, 17, 19]),
        ("randomOffset=1", 1, [0, 5, 7, 4, 9, 15, 16, 10, 14, 11]),
        ("randomOffset=1 random-offset-seed=9", 0, [2, 1, 5, 3, 7, 13, 14, 18, 12, 17]),
        ("randomOffset=1 filePerProc=1", 1, [4, 3, 1, 2, 0, 5, 6, 8, 7, 9]),
        ("randomOffset=2", 1, [5, 7, 17, 15, 18, 17, 17, 15, 9, 16]),
    ];
    for (line, rank, expected) in table {
        let all = format!("numTasks=2 transferSize=1 blockSize=5 segmentCount=2 {line}");
        assert_eq!(offsets(&params(&all), *rank), expected, "{line}, rank {rank}");
    }
    for (line, expected) in [
        ("reorderTasksRandom=1", [5, 2, 4, 4, 5, 2]),
        ("reorderTasksRandom=1 reorderTasksRandomSeed=7", [2, 2, 1, 1, 5, 2]),
        ("reorderTasksRandom=1 reorderTasksRandomSeed=7 taskPerNodeOffset=3", [3, 4, 1, 2, 1, 3]),
        ("reorderTasksRandom=2", [4, 2, 1, 0, 5, 3]),
        ("reorderTasksRandom=2 reorderTasksRandomSeed=7", [0, 5, 2, 3, 1, 4]),
    ] {
        assert_eq!(readers(&params(&format!("numTasks=6 {line}")), 0), expected, "{line}");
    }
}

/// Every combination of `-N`, `-b` in transfers, `-s`, `-F`, `-z`, and `-C`, `-Z`, `-ZZ` with `-Q`,
/// against the documentation's formula.
#[test]
fn every_combination_follows_the_formula() {
    let mut combinations = 0;
    for (tasks, each, segments) in sizes() {
        for (per_task, order) in (0..2u64).flat_map(|f| (0..3u64).map(move |z| (f, z))) {
            for (constant, random) in [(0, 0), (1, 0), (0, 1), (0, 2)] {
                for away in 1..=tasks {
                    let mut params = params(&format!("filePerProc={per_task} transferSize=3"));
                    (params.tasks, params.block, params.segments) = (tasks, 3 * each, segments);
                    (params.constant, params.random_tasks) = (constant, random);
                    (params.random_offset, params.task_offset) = (order, away);
                    if crate::ior::check::settings(&params).is_ok() {
                        follows_the_formula(&params);
                        combinations += 1;
                    }
                }
            }
        }
    }
    // Per order and kind of file: -Q up to the tasks without -Z, with -ZZ and with -C, and below
    // them with -Z, which a single task has too.
    let reorders: usize = (1..=4).map(|tasks| 3 * tasks + (tasks - 1).max(1)).sum();
    assert_eq!(combinations, reorders * 9 * 3 * 2 * 3);
}

fn follows_the_formula(params: &Params) {
    let read = readers(params, 0);
    assert_eq!(read, readers(params, 0), "a seed means the same every time");
    for (rank, &owner) in read.iter().enumerate() {
        let apart = (owner + params.tasks - rank) % params.tasks;
        match params.reorder() {
            Reorder::Off => assert_eq!(apart, 0),
            Reorder::Constant => assert_eq!(apart, params.task_offset % params.tasks),
            Reorder::Random => assert!(apart >= params.task_offset.min(params.tasks - 1)),
            Reorder::Shuffle => (),
        }
        visits_its_blocks(params, rank);
    }
    if params.reorder() == Reorder::Shuffle {
        let all: std::collections::BTreeSet<_> = read.into_iter().collect();
        assert_eq!(all.len(), params.tasks);
    }
}

/// Segment by segment, the transfers of the rank's block: in order, in some order, or any of them;
/// in some order in a shared file, those of all ranks.
fn visits_its_blocks(params: &Params, rank: usize) {
    let each = params.transfers_per_block();
    let visited = offsets(params, rank);
    assert_eq!(visited, offsets(params, rank), "a seed means the same every time");
    let formula = |segment: u64, transfer: u64| match params.file_per_task {
        true => segment * params.block + transfer * params.transfer,
        false => {
            let of_all = segment * params.tasks as u64 * params.block;
            of_all + rank as u64 * params.block + transfer * params.transfer
        }
    };
    let block = |segment| (0..each).map(move |transfer| formula(segment, transfer));
    let whole: Vec<u64> = (0..params.segments).flat_map(block).collect();
    for (segment, found) in (0..).zip(visited.chunks(each as usize)) {
        let expected: Vec<u64> = block(segment).collect();
        let mut sorted = found.to_vec();
        sorted.sort_unstable();
        match params.order() {
            Order::Sequential => assert_eq!(found, expected, "{params:?}"),
            Order::Shuffled if !params.file_per_task => {
                let len = params.tasks as u64 * params.block;
                let within = |at: &u64| (segment * len..(segment + 1) * len).contains(at);
                assert!(found.iter().all(within), "{params:?}: {found:?}");
                assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "{params:?}: {found:?}");
            }
            Order::Shuffled => assert_eq!(sorted, expected, "{params:?}"),
            Order::Random => assert!(found.iter().all(|at| whole.contains(at)), "{params:?}"),
        }
    }
}

#[test]
fn readers_are_those_of_the_documentation() {
    let table: &[(&str, &[usize])] = &[
        ("numTasks=4", &[0, 1, 2, 3]),
        ("numTasks=4 reorderTasks=1", &[1, 2, 3, 0]),
        ("numTasks=4 reorderTasks=1 taskPerNodeOffset=2", &[2, 3, 0, 1]),
        ("numTasks=4 reorderTasks=1 tasksPerNode=2", &[2, 3, 0, 1]),
        ("numTasks=6 reorderTasks=1 tasksPerNode=2 taskPerNodeOffset=2", &[4, 5, 0, 1, 2, 3]),
        ("numTasks=4 reorderTasks=1 taskPerNodeOffset=5", &[1, 2, 3, 0]),
        ("numTasks=1 reorderTasks=1", &[0]),
    ];
    for (line, expected) in table {
        assert_eq!(readers(&params(line), 0), *expected, "{line}");
    }
}

/// O1 for every small combination of sizes, orders and files.
#[test]
fn all_ranks_together_touch_each_byte_once() {
    let mut combinations = 0;
    for (tasks, each, segments) in sizes() {
        for (per_task, random) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
            let mut params = params(&format!("filePerProc={per_task} randomOffset={random}"));
            params.transfer = 3;
            (params.tasks, params.block, params.segments) = (tasks, 3 * each, segments);
            covers_once(&params);
            combinations += 1;
        }
    }
    assert_eq!(combinations, 4 * 4 * 9 * 3);
}

fn sizes() -> impl Iterator<Item = (usize, u64, u64)> {
    (1..=4).flat_map(|tasks| (1..=9).flat_map(move |each| (1..=3).map(move |s| (tasks, each, s))))
}

fn covers_once(params: &Params) {
    let mut touched = std::collections::BTreeSet::new();
    for rank in 0..params.tasks {
        let name = file(params, rank, 0);
        for offset in offsets(params, rank) {
            assert!(offset + params.transfer <= file_size(params));
            assert!(touched.insert((name.clone(), offset)), "{offset} twice: {params:?}");
        }
    }
    assert_eq!(touched.len() as u64 * params.transfer, params.aggregate());
}

/// O3: a random order stays in its segment, in which each rank has places among those of the other
/// rank.
#[test]
fn a_random_order_is_one_of_the_whole_segment() {
    let random = params("blockSize=64 transferSize=1 numTasks=2 segmentCount=2 randomOffset=1");
    let first = offsets(&random, 0);
    assert!(first[..64].iter().all(|&offset| offset < 128));
    assert!(first[64..].iter().all(|&offset| (128..256).contains(&offset)));
    assert!(first[..64].windows(2).any(|pair| pair[0] + 1 != pair[1]), "not shuffled");
    let beyond = first[..64].iter().filter(|&&offset| offset >= 64).count();
    assert!((16..48).contains(&beyond), "{beyond} of 64 in the other half");
    assert_eq!(first, offsets(&random, 0), "O2");
}

#[test]
fn random_offsets_are_aligned_own_and_may_repeat() {
    let random = params("blockSize=64 transferSize=2 numTasks=2 segmentCount=2 randomOffset=2");
    let offsets = offsets(&random, 1);
    let own = |&offset: &u64| offset % 128 >= 64 && offset < 256 && offset % 2 == 0;
    assert!(offsets.iter().all(own), "{offsets:?}");
    let distinct: std::collections::BTreeSet<_> = offsets.iter().collect();
    assert!(distinct.len() < offsets.len());
}

#[test]
fn random_readers_keep_their_distance() {
    let mut random = params("numTasks=8 reorderTasksRandom=1 taskPerNodeOffset=3");
    for seed in 0..50 {
        random.random_seed = seed;
        for (rank, read) in readers(&random, 0).into_iter().enumerate() {
            assert!((read + 8 - rank) % 8 >= 3, "seed {seed}");
        }
    }
    random.random_seed = -1;
    assert_ne!(readers(&random, 0), readers(&random, 1), "a negative seed is new every time");
    random.random_seed = 1;
    assert_eq!(readers(&random, 0), readers(&random, 1));
}

#[test]
fn a_shuffle_reads_every_rank_once() {
    let mut shuffle = params("numTasks=9 reorderTasksRandom=2");
    for seed in 0..50 {
        shuffle.random_seed = seed;
        let mut ranks = readers(&shuffle, 0);
        ranks.sort_unstable();
        assert_eq!(ranks, (0..9).collect::<Vec<_>>());
    }
}

#[test]
fn files_are_named_as_ior_names_them() {
    let name = |line: &str, rank, repetition| {
        file(&params(line), rank, repetition).to_string_lossy().into_owned()
    };
    assert_eq!(name("testFile=/d/f numTasks=2", 1, 2), "/d/f");
    assert_eq!(name("testFile=/d/f filePerProc=1", 3, 0), "/d/f.00000003");
    assert_eq!(name("testFile=/d/f filePerProc=1 multiFile=1", 3, 2), "/d/f.00000003.2");
    assert_eq!(name("testFile=/d/f filePerProc=1 uniqueDir=1", 3, 0), "/d/3/f.00000003");
    assert_eq!(name("testFile=/a/f@/b/f filePerProc=1", 3, 0), "/b/f.00000003");
    assert_eq!(files(&params("testFile=f numTasks=3"), 0).len(), 1);
}
