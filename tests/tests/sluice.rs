//! Programs that write past the daemon into a full tier: the kernel asks before they write, and they
//! wait.
// S-2, S-7, S-9

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_tests::{
    Bed, Mounted, PATIENCE, Rng, Tier, eventually, needs_forebay, proof, sample, sys, text, within,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;

/// The tier's bytes besides shadow files, and the space that the file system reserves ahead of
/// writers.
const SLACK: u64 = 16 * MIB;

/// `None` where the kernel does not pass files through.
fn bed(flags: &[&str]) -> Option<(Bed, Mounted)> {
    let bed = Bed::new(Tier::Ext4(1024));
    let size = ["--passthrough", "always", "--tier-size", "256MiB"];
    let mounted = bed.mount(&[&size[..], flags].concat());
    let file = fs::File::create(mounted.at("first")).unwrap();
    let passes = mounted.number("passthrough_writers") > 0;
    drop(file);
    if !passes {
        println!("SKIPPED: the kernel passes no files through here");
    }
    passes.then_some((bed, mounted))
}

fn taken(tier: &Path) -> u64 {
    let said = sys::statvfs(tier);
    (said.f_blocks - said.f_bfree) * said.f_frsize
}

/// Runs `work` while watching the tier's use; returns the greatest increase over the beginning.
fn peak(bed: &Bed, work: impl FnOnce() + Send) -> u64 {
    let (before, most, done) = (taken(&bed.tier), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Relaxed) {
                most.fetch_max(taken(&bed.tier).saturating_sub(before), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let worked = threads.spawn(work).join();
        done.store(true, Relaxed);
        worked.unwrap();
    });
    most.into_inner()
}

fn write_and_close(path: &PathBuf, seed: u64, len: u64) {
    let bytes = Rng::new(seed).bytes(len as usize);
    let mut file = fs::File::create(path).unwrap();
    bytes.chunks(MIB as usize).for_each(|part| file.write_all(part).unwrap());
}

/// Files are written one after the other, three times as much as the tier may hold, faster than the
/// store takes them.
#[test]
fn writers_past_the_daemon_stay_within_the_size_of_the_tier() {
    needs_forebay!();
    let Some((bed, mounted)) = bed(&["--throttle", "150MB,1ms"]) else { return };
    const FILES: u64 = 8;
    const LEN: u64 = 24 * MIB;
    let path = |root: &Path, writer: u64, i: u64| root.join(format!("w{writer}-{i}"));
    let most = peak(&bed, || {
        std::thread::scope(|threads| {
            for writer in 0..4 {
                let root = &mounted.path;
                threads.spawn(move || {
                    for i in 0..FILES {
                        write_and_close(&path(root, writer, i), writer * 100 + i, LEN);
                    }
                });
            }
        });
    });
    assert!(most <= SIZE + SLACK, "{} MiB of {}", most / MIB, SIZE / MIB);
    assert!(most > SIZE / 2, "the tier was used: {} MiB", most / MIB);
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    let slowed = stats["counters"]["writers_slowed"].as_u64().unwrap();
    assert!(slowed > 0, "somebody waited");
    mounted.umount();
    for (writer, i) in (0..4).flat_map(|w| (0..FILES).map(move |i| (w, i))) {
        let found = fs::read(path(&bed.backing, writer, i)).unwrap();
        assert!(found == Rng::new(writer * 100 + i).bytes(LEN as usize), "w{writer}-{i}");
    }
    proof!(
        "{} MiB in files of 24 through {} MiB, {slowed} waits",
        4 * FILES * LEN / MIB,
        most / MIB
    );
}

/// By default programs may write past the daemon if the size of the tier bounds them.
#[test]
fn a_small_tier_is_written_past_the_daemon_where_its_writers_can_be_held() {
    needs_forebay!();
    if bed(&[]).is_none() {
        return;
    }
    for (tier, size, passes) in [
        (Tier::Ext4(3072), "2GiB", true),
        (Tier::Ext4(3072), "512MiB", true),
        (Tier::Ext4(3072), "511MiB", false),
        (Tier::Tmpfs(3072), "512MiB", true),
        (Tier::Tmpfs(3072), "511MiB", false),
    ] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(&["--tier-size", size]);
        let is_passed = || {
            let _file = fs::File::create(mounted.at("f")).unwrap();
            mounted.number("passthrough_writers") == 1
        };
        // Holds are tried while the mount serves.
        let patience = if passes { PATIENCE } else { Duration::from_secs(2) };
        assert_eq!(eventually(patience, is_passed), passes, "{tier:?}, {size}");
    }
}

/// No file can be flushed while it is open, and all writers wait for each other in the middle: one
/// goes on at a time, and closed files make room.
#[test]
fn files_that_are_open_together_and_do_not_fit_are_written_one_after_the_other() {
    needs_forebay!();
    let Some((bed, mounted)) = bed(&[]) else { return };
    const LEN: u64 = 80 * MIB;
    let (meet, path) = (Barrier::new(4), |root: &Path, i: u64| root.join(format!("f{i}")));
    let most = peak(&bed, || {
        std::thread::scope(|threads| {
            for i in 0..4 {
                let (meet, at) = (&meet, path(&mounted.path, i));
                threads.spawn(move || {
                    let bytes = Rng::new(i).bytes(LEN as usize);
                    let mut file = fs::File::create(at).unwrap();
                    for (part, chunk) in bytes.chunks(MIB as usize).enumerate() {
                        if part == 32 {
                            meet.wait();
                        }
                        file.write_all(chunk).unwrap();
                    }
                });
            }
        });
    });
    assert!(most <= SIZE + LEN - SIZE / 4 + SLACK, "{} MiB of {}", most / MIB, SIZE / MIB);
    mounted.umount();
    for i in 0..4 {
        assert!(
            fs::read(path(&bed.backing, i)).unwrap() == Rng::new(i).bytes(LEN as usize),
            "f{i}"
        );
    }
    proof!("320 MiB in four open files through {} MiB", most / MIB);
}

/// A thread that writes several files by turns closes none before it has written all: it goes on with all of
/// them, and hardly waits.
#[test]
fn files_that_one_thread_writes_by_turns_go_on_together() {
    needs_forebay!();
    let Some((bed, mounted)) = bed(&[]) else { return };
    const FILES: u64 = 4;
    const LEN: u64 = 80 * MIB;
    let slowed = || {
        let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
        stats["counters"]["writers_slowed"].as_u64().unwrap()
    };
    let before = slowed();
    let bytes: Vec<Vec<u8>> = (0..FILES).map(|i| Rng::new(i).bytes(LEN as usize)).collect();
    let open = |i| fs::File::create(mounted.at(format!("f{i}"))).unwrap();
    let mut files: Vec<fs::File> = (0..FILES).map(open).collect();
    let most = peak(&bed, || {
        for part in 0..(LEN / MIB) as usize {
            for (file, bytes) in files.iter_mut().zip(&bytes) {
                file.write_all(&bytes[part * MIB as usize..][..MIB as usize]).unwrap();
            }
        }
    });
    assert!(most > SIZE, "the tier was full: {} MiB", most / MIB);
    let waits = slowed() - before;
    assert!(waits < (FILES * LEN - SIZE) / MIB / 4, "{waits} waits");
    drop(files);
    mounted.umount();
    for (i, bytes) in bytes.iter().enumerate() {
        assert!(fs::read(bed.backing.join(format!("f{i}"))).unwrap() == *bytes, "f{i}");
    }
    proof!("{FILES} files of {} MiB by turns through 256 MiB: {waits} waits", LEN / MIB);
}

/// Accesses by a mapping or a reader to a range full of bytes never wait, and waiting programs survive
/// the daemon.
#[test]
fn only_growth_waits_and_waiting_programs_go_on_when_the_daemon_dies() {
    needs_forebay!();
    let Some((bed, mounted)) = bed(&["--max-age", "1h", "--throttle", "1MB,1ms"]) else {
        return;
    };
    const LEN: u64 = 300 * MIB;
    // A dirty, closed file whose flush is slow.
    sample::file(&mounted.at("slow"), 1, 128 << 20);
    mounted.hear_closes();
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mounted.at("held"))
        .unwrap();
    let (written, other) = (AtomicU64::new(0), file.try_clone().unwrap());
    let bytes = Rng::new(7).bytes(LEN as usize);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for part in bytes.chunks(MIB as usize) {
                file.write_all(part).unwrap();
                written.fetch_add(MIB, Relaxed);
            }
        });
        let stands = |at: u64| {
            std::thread::sleep(Duration::from_secs(2));
            // The drain flushes a megabyte a second.
            written.load(Relaxed) <= at + 16 * MIB
        };
        let is_held = || {
            let at = written.load(Relaxed);
            at > 32 * MIB && stands(at)
        };
        assert!(eventually(PATIENCE, is_held), "{} MiB", written.load(Relaxed) / MIB);
        assert!(written.load(Relaxed) < 200 * MIB, "{} MiB", written.load(Relaxed) / MIB);
        let began = Instant::now();
        let mut found = vec![0; MIB as usize];
        std::os::unix::fs::FileExt::read_exact_at(&other, &mut found, 5 * MIB).unwrap();
        assert!(found == bytes[5 * MIB as usize..6 * MIB as usize]);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        mounted.kill9();
        within(PATIENCE, "the writer ends", || written.load(Relaxed) == LEN);
    });
    drop((file, other));
    mounted.crash();
    let mounted = bed.mount(&["--preset", "hold"]);
    assert!(fs::read(mounted.at("held")).unwrap() == bytes, "what was written is there");
    mounted.forebay(&["umount", "--keep-dirty", text(&mounted.path)]).ok();
    proof!("held, and let go on");
}
