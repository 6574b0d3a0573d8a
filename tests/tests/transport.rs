//! The transport of requests from the kernel: over io_uring or over /dev/fuse, and the properties
//! that must hold over io_uring.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_tests::{
    Bed, Faults, Mounted, Proc, Rng, Tier, images, is_alive, needs_forebay, needs_ring, proof,
    sample, skip, text, within,
};
use serde_json::json;

/// For events that happen at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every byte goes through the daemon.
const RING: [&str; 4] = ["--transport", "io-uring", "--passthrough", "off"];

fn with<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&RING[..], flags].concat()
}

fn transport(mounted: &Mounted) -> String {
    mounted.status()["transport"].as_str().expect("status has a transport").to_string()
}

/// Threads of the daemon that serve ring entries, idle or not.
fn ring_threads(mounted: &Mounted) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", mounted.pid)).expect("the daemon lives");
    tasks
        .flatten()
        .filter(|task| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.trim() == "fb-ring"
        })
        .count()
}

#[test]
fn status_says_that_requests_come_over_io_uring() {
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&RING);
    assert_eq!(transport(&mounted), "io-uring");
    let told = mounted.forebay(&["status", text(&bed.mnt)]).ok().stdout;
    assert!(told.contains("requests over io-uring"), "{told}");
    let bytes = sample::file(&bed.mnt.join("file"), 1, 300_000);
    assert!(fs::read(bed.mnt.join("file")).unwrap() == bytes);
    mounted.umount();
    assert!(fs::read(bed.backing.join("file")).unwrap() == bytes);
    proof!("300000 bytes over io_uring");
}

#[test]
fn times_of_birth_are_told_over_io_uring() {
    let switch = needs_ring!();
    switch.set("Y");
    times_of_birth(&RING);
}

#[test]
fn times_of_birth_are_told_over_dev_fuse() {
    needs_forebay!();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let number: Vec<u32> = release.split(['.', '-']).map_while(|n| n.trim().parse().ok()).collect();
    if number < vec![6, 6] {
        skip!("Linux {} asks for no time of birth", release.trim());
    }
    times_of_birth(&["--transport", "dev", "--passthrough", "off"]);
}

fn times_of_birth(flags: &[&str]) {
    let bed = Bed::new(Tier::Disk);
    let old = bed.backing.join("old");
    fs::create_dir(&old).unwrap();
    let mounted = bed.mount(flags);
    fs::write(bed.mnt.join("new"), b"bytes").unwrap();
    fs::hard_link(bed.mnt.join("new"), bed.mnt.join("link")).unwrap();
    for name in ["old", "new", "link"] {
        let (seen, there) = [&bed.mnt, &bed.backing].map(|root| root.join(name)).into();
        let (seen, there) = (fs::metadata(seen).unwrap(), fs::metadata(there).unwrap());
        assert_eq!(seen.created().unwrap(), there.created().unwrap(), "{name}");
        let all = |meta: &fs::Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.nlink());
        assert_eq!(all(&seen), all(&there), "{name}");
        assert_eq!(seen.len(), if name == "old" { there.len() } else { 5 });
    }
    mounted.umount();
    proof!("three names");
}

#[test]
fn io_uring_is_refused_with_the_remedy_where_it_is_off() {
    let switch = needs_ring!();
    switch.set("N");
    let bed = Bed::new(Tier::Disk);
    let out = bed.try_mount(&["--transport", "io-uring"]);
    assert_eq!(out.code, Some(2), "{out:#?}");
    for word in ["transport", "6.14", "echo Y >/sys/module/fuse/parameters/enable_uring"] {
        assert!(out.stderr.contains(word), "{word} is told: {out:#?}");
    }
    assert_eq!(images::mounted_at(&bed.mnt), None);
    proof!("refused: {}", out.stderr.trim());
}

#[test]
fn auto_takes_io_uring_where_the_kernel_allows_it() {
    let switch = needs_ring!();
    for (word, flag, expected) in
        [("Y", "auto", "io-uring"), ("Y", "dev", "dev"), ("N", "auto", "dev"), ("N", "dev", "dev")]
    {
        switch.set(word);
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&["--transport", flag]);
        assert_eq!(transport(&mounted), expected, "{flag} where the switch is {word}");
        // An existing mount keeps its transport.
        switch.set("N");
        let bytes = sample::file(&bed.mnt.join("file"), 1, 100_000);
        assert!(fs::read(bed.mnt.join("file")).unwrap() == bytes);
        mounted.umount();
    }
    proof!("four mounts");
}

/// Many processes on all processors, whose files are read back by others, cached and uncached.
#[test]
fn many_processes_get_their_own_bytes() {
    const WRITERS: u64 = 16;
    const FILES: u64 = 6;
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    let made = bed.dir("made");
    let len = |n: u64| [1, 4096, 70_001, 1 << 20, 2_500_000, 128 << 10][(n % 6) as usize];
    for n in 0..WRITERS * FILES {
        sample::file(&made.join(format!("{}/{n}", n % WRITERS)), n, len(n));
    }
    let mounted = bed.mount(&RING);
    let copy = format!("cp -r \"$0\"/$1 \"$2\"/$1 && {COMPARE}");
    in_parallel(WRITERS, &copy, &made, &bed.mnt);
    mounted.flush();
    mounted.evict();
    in_parallel(WRITERS, COMPARE, &made, &bed.mnt);
    mounted.umount();
    for n in 0..WRITERS * FILES {
        let found = fs::read(bed.backing.join(format!("{}/{n}", n % WRITERS))).unwrap();
        assert!(found == Rng::new(n).bytes(len(n)), "file {n}");
    }
    proof!("{WRITERS} processes, {} files", WRITERS * FILES);
}

const COMPARE: &str = "for f in \"$0\"/$1/*; do cmp \"$f\" \"$2\"/$1/${f##*/} || exit 9; done";

fn in_parallel(count: u64, script: &str, from: &Path, to: &Path) {
    let start = |n: u64| {
        let mut command = Command::new("sh");
        command.args(["-c", script, text(from), &n.to_string(), text(to)]);
        Proc::spawn(&mut command)
    };
    let mut all: Vec<Proc> = (0..count).map(start).collect();
    for (n, one) in all.iter_mut().enumerate() {
        let status = one.wait(5 * PATIENCE).unwrap_or_else(|| panic!("process {n} hangs"));
        assert!(status.success(), "process {n}: {status}");
    }
}

/// Looks `count` names up at once, each in a thread of its own.
fn look_up(root: &Path, count: usize) -> (Vec<JoinHandle<bool>>, Arc<AtomicUsize>) {
    let answered: Arc<AtomicUsize> = Arc::default();
    let start = |n: usize| {
        let (path, answered) = (root.join(format!("nothing-{n}")), answered.clone());
        std::thread::spawn(move || {
            let found = fs::metadata(path).is_ok();
            answered.fetch_add(1, SeqCst);
            found
        })
    };
    ((0..count).map(start).collect(), answered)
}

/// A buffer as O_DIRECT needs it.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// More requests than any fixed number of threads could take, on both sides.
#[test]
fn hundreds_of_requests_that_hang_do_not_stop_others_and_are_answered() {
    const HUNG: usize = 320;
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("old"), 1, 1 << 20);
    let faults = Faults::none(&bed);
    let mounted = bed.mount(&with(&["--fault", faults.path(), "--backing-timeout", "10min"]));
    let want = fs::read(bed.mnt.join("old")).unwrap();
    // Past the kernel's cache, so that each read is a request, without a request for attributes,
    // which would be a call to the store.
    let direct =
        fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(bed.mnt.join("old"));
    let direct = direct.unwrap();
    faults.stalled();
    let (threads, answered) = look_up(&bed.mnt, HUNG);
    within(PATIENCE, "each request that hangs has a thread", || ring_threads(&mounted) > HUNG);
    let reads = std::thread::spawn(move || {
        let mut page = Aligned([0; 4096]);
        for n in 0..200_u64 {
            let at = (n * 37 % 255) << 12;
            direct.read_exact_at(&mut page.0, at).unwrap();
            assert!(page.0 == want[at as usize..at as usize + 4096], "page at {at}");
        }
    });
    within(PATIENCE, "what is in the tier is read meanwhile", || reads.is_finished());
    reads.join().unwrap();
    assert_eq!(answered.load(SeqCst), 0, "they hang all the while");
    mounted.forebay(&["set", text(&bed.mnt), "backing-timeout=1s"]).ok();
    within(PATIENCE, "all of them are answered", || answered.load(SeqCst) == HUNG);
    assert!(threads.into_iter().all(|thread| !thread.join().unwrap()), "nothing was found");
    faults.clear();
    within(PATIENCE, "the store is back", || mounted.status()["backing_available"] == true);
    // The hung entries are free again, and all entries work.
    let (threads, _) = look_up(&bed.mnt, HUNG);
    assert!(threads.into_iter().all(|thread| !thread.join().unwrap()));
    let bytes = sample::file(&bed.mnt.join("new"), 2, 3 << 20);
    assert!(fs::read(bed.mnt.join("new")).unwrap() == bytes);
    mounted.umount();
    proof!("{HUNG} requests hung at once");
}

/// The store is slow: many more simultaneous requests than there are entries at first, again and
/// again; each is answered by itself, without needing the next one to be noticed.
#[test]
fn a_burst_beyond_the_entries_is_drained() {
    const BURST: usize = 150;
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    let mounted = bed.mount(&with(&["--fault", faults.path(), "--backing-timeout", "10min"]));
    faults.set(json!([{ "op": "stat", "stall_ms": 100 }]));
    for round in 0..5 {
        let (threads, answered) = look_up(&bed.mnt.join("."), BURST);
        within(2 * PATIENCE, "a burst is drained", || answered.load(SeqCst) == BURST);
        assert!(threads.into_iter().all(|thread| !thread.join().unwrap()), "round {round}");
    }
    faults.clear();
    mounted.umount();
    proof!("5 bursts of {BURST}");
}

/// A write hangs with its bytes in the entry's buffer; the watchdog answers, and others use the
/// entry, before the write goes on.
#[test]
fn a_write_that_hung_lands_with_its_own_bytes() {
    const LEN: usize = 512 << 10;
    const HUNG: usize = 4;
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    let flags = ["--fault", faults.path(), "--backing-timeout", "1s", "--policy", "write-around"];
    let mounted = bed.mount(&with(&flags));
    let make = |name: String| fs::File::create(bed.mnt.join(name)).unwrap();
    let files: Vec<fs::File> = (0..HUNG).map(|n| make(format!("hung-{n}"))).collect();
    let others: Vec<fs::File> = (0..8).map(|n| make(format!("other-{n}"))).collect();
    faults.set(json!([{ "op": "write_at", "stall_ms": 3_600_000 }]));
    let own = |n: usize| vec![b'a' + n as u8; LEN];
    let writers: Vec<JoinHandle<bool>> = files
        .into_iter()
        .enumerate()
        .map(|(n, file)| {
            let bytes = own(n);
            std::thread::spawn(move || file.write_all_at(&bytes, 0).is_ok())
        })
        .collect();
    for writer in writers {
        assert!(!writer.join().unwrap(), "the watchdog answered the writes that hang");
    }
    // These writes fail at once, but their bytes reach the entries.
    let others: Vec<JoinHandle<usize>> = others
        .into_iter()
        .map(|file| {
            let bytes = vec![b'Z'; LEN];
            std::thread::spawn(move || {
                (0..20).filter(|_| file.write_at(&bytes, 0).is_err()).count()
            })
        })
        .collect();
    let refused: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
    assert!(refused > 0, "the store is away meanwhile");
    faults.clear();
    // A write that came only when the store counted as away did not hang, and never lands.
    let path = |n: usize| bed.backing.join(format!("hung-{n}"));
    let landed = || (0..HUNG).filter(|n| fs::metadata(path(*n)).unwrap().len() > 0).count();
    within(PATIENCE, "a write that hung lands", || landed() > 0);
    within(PATIENCE, "the store is back", || mounted.status()["backing_available"] == true);
    mounted.umount();
    for n in 0..HUNG {
        let found = fs::read(path(n)).unwrap();
        assert!(found == own(n)[..found.len()], "hung-{n} has foreign bytes");
    }
    let landed = landed();
    proof!("{landed} writes hung and landed, {refused} others used the entries");
}

/// Whichever program unmounts, and also while requests hang.
#[test]
fn nothing_is_left_after_the_unmount() {
    let switch = needs_ring!();
    switch.set("Y");
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    let mounted = bed.mount(&with(&["--fault", faults.path()]));
    sample::file(&bed.mnt.join("file"), 1, 2 << 20);
    let pid = mounted.pid;
    mounted.umount();
    within(PATIENCE, "the daemon ends", || !is_alive(pid));

    let mounted = bed.mount(&with(&["--fault", faults.path()]));
    within(PATIENCE, "somebody else unmounts", || images::unmount(&bed.mnt, false).is_ok());
    within(PATIENCE, "the daemon ends by itself", || !is_alive(mounted.pid));

    let mounted = bed.mount(&with(&["--fault", faults.path(), "--backing-timeout", "10min"]));
    faults.stalled();
    let (threads, answered) = look_up(&bed.mnt, 20);
    within(PATIENCE, "they hang", || ring_threads(&mounted) > 20);
    assert_eq!(answered.load(SeqCst), 0);
    mounted.kill9();
    within(PATIENCE, "the kernel answers for the daemon", || answered.load(SeqCst) == 20);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    images::unmount(&bed.mnt, true).unwrap();
    faults.clear();
    let mounted = bed.mount(&with(&["--fault", faults.path()]));
    assert!(fs::read(bed.mnt.join("file")).unwrap() == Rng::new(1).bytes(2 << 20));
    mounted.umount();
    proof!("four daemons ended");
}
