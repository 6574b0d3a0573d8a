//! Programs that write past the daemon into a full tier whose file system does not let the kernel ask, such as
//! tmpfs: their files are held.
// S-2, S-7, S-9

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_tests::{
    Bed, Faults, Mounted, PATIENCE, Rng, Tier, eventually, images, kill, needs_forebay, proof,
    sample, sys, text, within,
};
use serde_json::json;

const MIB: u64 = 1 << 20;
const TMPFS: u64 = 1024 * MIB;
const SIZE: u64 = 640 * MIB;

/// Less than the patience of a mount with its store.
const SOON: Duration = Duration::from_secs(20);

fn bed() -> Bed {
    let mut bed = Bed::new(Tier::Tmpfs(TMPFS / MIB));
    bed.backing_in_memory(3 * TMPFS / MIB);
    bed
}

/// `None` where the kernel does not pass files through.
fn mount(bed: &Bed, flags: &[&str]) -> Option<Mounted> {
    let mounted = bed.mount(&[&["--tier-size", "640MiB"], flags].concat());
    // Holds are tried while the mount serves.
    let passes = || {
        let _file = fs::File::create(mounted.at("first")).unwrap();
        mounted.number("passthrough_writers") > 0
    };
    if !eventually(Duration::from_secs(10), passes) {
        println!("SKIPPED: the kernel passes no files through here");
        return None;
    }
    mounted.hear_closes();
    Some(mounted)
}

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
}

fn taken(tier: &Path) -> u64 {
    let said = sys::statvfs(tier);
    (said.f_blocks - said.f_bfree) * said.f_frsize
}

/// Runs `work` while watching the tier; returns the greatest use.
fn peak(bed: &Bed, work: impl FnOnce() + Send) -> u64 {
    let (most, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Relaxed) {
                most.fetch_max(taken(&bed.tier), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let worked = threads.spawn(work).join();
        done.store(true, Relaxed);
        worked.unwrap();
    });
    most.into_inner()
}

fn write_and_close(path: &Path, seed: u64, len: u64) {
    let bytes = Rng::new(seed).bytes(len as usize);
    let mut file = fs::File::create(path).unwrap();
    bytes.chunks(MIB as usize).for_each(|part| file.write_all(part).unwrap());
}

/// The processes that make the requests of a mount's holds.
fn holders(mounted: &Mounted) -> Vec<i32> {
    let all = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok());
        parent == Some(mounted.pid)
    };
    let holds = |pid: &i32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("hold-writers")
    };
    all.filter_map(|name| name.parse().ok()).filter(is_child).filter(holds).collect()
}

/// A program that writes a file that does not fit beside what the tier holds and the store does not take.
struct Writer {
    path: PathBuf,
    file: fs::File,
    bytes: Arc<Vec<u8>>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Writer {
    const LEN: u64 = 640 * MIB;

    /// Returns when the writer is held.
    fn held(mounted: &Mounted) -> Writer {
        // A dirty, closed file: the writer can wait for its flush.
        sample::file(&mounted.at("slow"), 1, 128 << 20);
        mounted.hear_closes();
        let (path, written) = (mounted.at("held"), Arc::new(AtomicU64::new(0)));
        let bytes = Arc::new(Rng::new(7).bytes(Writer::LEN as usize));
        let file = fs::File::create(&path).unwrap();
        assert_eq!(mounted.number("passthrough_writers"), 1, "it is passed through");
        let (all, at, to) = (bytes.clone(), written.clone(), file.try_clone().unwrap());
        let thread = std::thread::spawn(move || {
            for part in all.chunks(MIB as usize) {
                (&to).write_all(part).unwrap();
                at.fetch_add(part.len() as u64, Relaxed);
            }
        });
        let writer = Writer { path, file, bytes, written, thread };
        within(PATIENCE, "the writer is held", || writer.is_held());
        writer
    }

    /// A held writer makes one call in a while.
    fn is_held(&self) -> bool {
        let at = self.written.load(Relaxed);
        std::thread::sleep(Duration::from_secs(2));
        at > 0 && at < Writer::LEN && self.written.load(Relaxed) <= at + 8 * MIB
    }

    #[track_caller]
    fn ends(self) -> Arc<Vec<u8>> {
        within(PATIENCE, "the writer goes on", || self.thread.is_finished());
        self.thread.join().unwrap();
        self.bytes
    }
}

/// A mount that is patient with a store that takes no bytes, but serves names, and a program that is held in it.
fn held_in(bed: &Bed, faults: &Faults) -> Option<(Mounted, Writer)> {
    let flags = ["--max-age", "1h", "--backing-timeout", "1h", "--fault", faults.path()];
    let mounted = mount(bed, &flags)?;
    faults.set(json!([{ "op": "write_at", "stall_ms": 3_600_000 }]));
    let writer = Writer::held(&mounted);
    Some((mounted, writer))
}

/// Files are written one after the other, three times as much as the tier may hold and twice as much as its file
/// system has room for, faster than the store takes them.
#[test]
fn writers_past_the_daemon_stay_within_a_tier_in_memory() {
    needs_forebay!();
    const FILES: u64 = 11;
    const LEN: u64 = 64 * MIB;
    let bed = bed();
    let flags = ["--passthrough", "always", "--throttle", "200MB,1ms"];
    let Some(mounted) = mount(&bed, &flags) else { return };
    let before = counter(&mounted, "passthrough_writes");
    let path = |root: &Path, writer: u64, i: u64| root.join(format!("w{writer}-{i}"));
    let most = peak(&bed, || {
        std::thread::scope(|threads| {
            for writer in 0..3 {
                let root = &mounted.path;
                threads.spawn(move || {
                    for i in 0..FILES {
                        write_and_close(&path(root, writer, i), writer * 100 + i, LEN);
                    }
                });
            }
        });
    });
    assert!(most > SIZE / 2, "the tier was used: {} MiB", most / MIB);
    assert!(most < SIZE + SIZE / 4, "{} MiB of {}", most / MIB, SIZE / MIB);
    assert_eq!(counter(&mounted, "passthrough_writes") - before, 3 * FILES, "all were passed");
    let slowed = counter(&mounted, "writers_slowed");
    assert!(slowed > 0, "somebody was held");
    mounted.umount();
    for (writer, i) in (0..3).flat_map(|w| (0..FILES).map(move |i| (w, i))) {
        let found = fs::read(path(&bed.backing, writer, i)).unwrap();
        assert!(found == Rng::new(writer * 100 + i).bytes(LEN as usize), "w{writer}-{i}");
    }
    proof!(
        "{} MiB in files of 64 through {} MiB, held {slowed} times",
        3 * FILES * LEN / MIB,
        most / MIB
    );
}

/// No file can be flushed while it is open, and all writers wait for each other in the middle: one goes on at a
/// time, beyond the size of the tier.
#[test]
fn files_that_are_open_together_and_do_not_fit_are_let_go_on_in_turn() {
    needs_forebay!();
    const LEN: u64 = 200 * MIB;
    let bed = bed();
    let Some(mounted) = mount(&bed, &["--passthrough", "always"]) else { return };
    let (meet, path) = (Barrier::new(4), |root: &Path, i: u64| root.join(format!("f{i}")));
    let began = Instant::now();
    std::thread::scope(|threads| {
        for i in 0..4 {
            let (meet, at) = (&meet, path(&mounted.path, i));
            threads.spawn(move || {
                let bytes = Rng::new(i).bytes(LEN as usize);
                let mut file = fs::File::create(at).unwrap();
                for (part, chunk) in bytes.chunks(MIB as usize).enumerate() {
                    if part == 64 {
                        meet.wait();
                    }
                    file.write_all(chunk).unwrap();
                }
            });
        }
    });
    let took = began.elapsed();
    assert!(counter(&mounted, "writers_slowed") > 0, "somebody was held");
    mounted.umount();
    for i in 0..4 {
        let found = fs::read(path(&bed.backing, i)).unwrap();
        assert!(found == Rng::new(i).bytes(LEN as usize), "f{i}");
    }
    proof!("800 MiB in four open files through 640, in {took:?}");
}

/// The program that makes the requests is started again, and ends with the daemon; the held program goes on.
#[test]
fn a_held_program_goes_on_when_the_daemon_dies() {
    needs_forebay!();
    let bed = bed();
    let faults = Faults::none(&bed);
    let Some((mounted, writer)) = held_in(&bed, &faults) else { return };
    let synced = writer.written.load(Relaxed);
    writer.file.sync_all().unwrap();
    let first = holders(&mounted);
    assert_eq!(first.len(), 1, "one for the mount");
    kill(first[0], libc::SIGKILL);
    let another = || matches!(holders(&mounted)[..], [next] if next != first[0]);
    within(PATIENCE, "another one is started", another);
    within(PATIENCE, "the writer is held again", || writer.is_held());
    let last = holders(&mounted)[0];
    mounted.kill9();
    within(PATIENCE, "it ends with the daemon", || !forebay_tests::is_alive(last));
    let bytes = writer.ends();
    mounted.crash();
    faults.clear();
    let mounted = bed.mount(&["--preset", "hold"]);
    let found = fs::read(mounted.at("held")).unwrap();
    assert!(synced > 0 && found == **bytes, "what was written is there");
    mounted.forebay(&["umount", "--keep-dirty", text(&mounted.path)]).ok();
    proof!("held at {} MiB, and let go on", synced / MIB);
}

/// Whatever else needs the file in the kernel has its turn while a hold is renewed.
#[test]
fn a_held_file_is_synced_and_unlinked_soon() {
    needs_forebay!();
    let bed = bed();
    let faults = Faults::none(&bed);
    let Some((mounted, writer)) = held_in(&bed, &faults) else { return };
    let soon = |what: &str, work: &dyn Fn()| {
        let began = Instant::now();
        work();
        assert!(began.elapsed() < SOON, "{what} took {:?}", began.elapsed());
        began.elapsed()
    };
    let synced = soon("an fsync", &|| writer.file.sync_all().unwrap());
    let unlinked = soon("an unlink", &|| fs::remove_file(&writer.path).unwrap());
    faults.clear();
    writer.ends();
    mounted.umount();
    proof!("fsync {synced:?}, unlink {unlinked:?}");
}

#[test]
fn a_mount_with_a_held_file_is_in_use_until_the_file_is_closed() {
    needs_forebay!();
    let bed = bed();
    let faults = Faults::none(&bed);
    let Some((mounted, writer)) = held_in(&bed, &faults) else { return };
    assert!(images::unmount(&mounted.path, false).is_err(), "it is in use");
    // It may have grown up to the mark, once its pace was forgotten.
    within(PATIENCE, "the writer is still held", || writer.is_held());
    faults.clear();
    let bytes = writer.ends();
    mounted.umount();
    assert!(fs::read(bed.backing.join("held")).unwrap() == **bytes);
    proof!("held through an attempt to unmount");
}

/// A lazy unmount takes the mount out of the holder's sight: the writer goes on.
#[test]
fn a_held_program_goes_on_after_a_lazy_unmount() {
    needs_forebay!();
    let bed = bed();
    let faults = Faults::none(&bed);
    let Some((mounted, writer)) = held_in(&bed, &faults) else { return };
    images::unmount(&mounted.path, true).unwrap();
    let bytes = writer.ends();
    faults.clear();
    within(PATIENCE, "the daemon ends", || !forebay_tests::is_alive(mounted.pid));
    assert!(fs::read(bed.backing.join("held")).unwrap() == **bytes);
    proof!("held, and let go on");
}
