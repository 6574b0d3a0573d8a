//! Private spaces on real mounts: made, found again, full, busy, removed.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forebay_base::mounts;
use forebay_node::space::{Means, Offer, Pool, Settings, SpaceSpec, State, Why};
use support::{ALICE, BOB, Kind, MIB, Place, id, is_ready, mode_and_owner, run_as};

/// Puts something foreign into a pool.
type Put = fn(&Place);

/// Ends a process, also when the test fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper(command: &mut Command) -> Ended {
    Ended(command.spawn().unwrap())
}

/// An old tier on a busy machine deletes some thousand files a second.
fn waited(what: &str, mut until: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(180);
    while !until() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_space_is_made_used_found_again_and_removed() {
    for kind in Kind::ALL {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("job-1", kind, kind.mib());
        let at = &spec.mount_at;
        let space = pool.make(&spec).unwrap();
        assert_eq!((space.means, space.capacity), (kind.means(), spec.capacity), "{kind:?}");
        assert!(space.room >= space.capacity);
        assert_eq!(space.room, pool.room(&spec).unwrap());
        assert_eq!(mode_and_owner(at), (0o700, ALICE.uid, ALICE.gid));
        assert_eq!(fs::read_dir(at).unwrap().count(), 0, "a fresh space is empty");
        let mounts = place.mounts();
        let options = &mounts::at(&mounts, at).expect("it is mounted").options;
        for option in ["nosuid", "nodev"] {
            assert!(options.split(',').any(|o| o == option), "{kind:?}: {options}");
        }
        let (file, words) = (at.join("file"), at.display());
        assert!(run_as(ALICE, &format!("echo mine > {words}/file")).status.success());
        for line in ["ls MOUNT", "cat MOUNT/file", "echo > MOUNT/other", "cd MOUNT"] {
            let line = line.replace("MOUNT", at.to_str().unwrap());
            assert!(!run_as(BOB, &line).status.success(), "{kind:?}: {line}");
        }
        assert_eq!(pool.make(&spec).unwrap(), space, "made again, it is the same");
        assert_eq!(place.mounts().len(), 1, "and mounted once");
        drop(pool);

        let pool = place.pool();
        assert_eq!(pool.adopt(&id("job-1")).unwrap(), State::Ready(space), "{kind:?}");
        assert_eq!(fs::read(&file).unwrap(), b"mine\n");
        let removal = pool.remove(&id("job-1")).unwrap();
        assert!(removal.holders.is_empty());
        assert!(!at.exists(), "its mount point goes with it");
        assert_eq!(pool.adopt(&id("job-1")).unwrap(), State::Absent);
        place.assert_empty(&pool);
        pool.remove(&id("job-1")).unwrap();
    }
}

/// A restart of the machine takes mounts and devices away: unmounting stands for it.
#[test]
fn an_image_is_mounted_again_after_a_restart_with_what_was_in_it() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Directory] {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("a", kind, kind.mib());
        pool.make(&spec).unwrap();
        fs::write(spec.mount_at.join("kept"), "kept").unwrap();
        rustix::fs::chmod(&spec.mount_at, 0o711.into()).unwrap();
        rustix::mount::unmount(&spec.mount_at, rustix::mount::UnmountFlags::empty()).unwrap();
        waited("the device is let go", || place.loops().is_empty());
        assert!(is_ready(&pool, "a"), "{kind:?}");
        assert_eq!(fs::read(spec.mount_at.join("kept")).unwrap(), b"kept");
        assert_eq!(mode_and_owner(&spec.mount_at).0, 0o711, "what its owner set stays");
        pool.remove(&id("a")).unwrap();
        place.assert_empty(&pool);
    }
    let place = Place::new();
    let pool = place.pool();
    let spec = place.spec("memory", Kind::Tmpfs, 8);
    pool.make(&spec).unwrap();
    rustix::mount::unmount(&spec.mount_at, rustix::mount::UnmountFlags::empty()).unwrap();
    let gone = pool.make(&spec).unwrap_err().to_string();
    assert!(gone.contains("restart") && place.mounts().is_empty(), "no empty one: {gone}");
    assert_eq!(pool.adopt(&id("memory")).unwrap(), State::Lost);
    pool.remove(&id("memory")).unwrap();
    place.assert_empty(&pool);
}

/// Writes until the file system says ENOSPC.
fn fill(spec: &SpaceSpec) -> u64 {
    let mut file = fs::File::create(spec.mount_at.join("fill")).unwrap();
    let block = vec![7u8; MIB as usize];
    loop {
        match file.write(&block).and_then(|_| file.sync_data()) {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                return file.metadata().unwrap().len();
            }
        }
    }
}

#[test]
fn a_space_is_full_at_its_capacity_and_its_neighbor_is_not() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Tmpfs] {
        let place = Place::new();
        let pool = place.pool();
        let capacity = kind.mib().max(64);
        let [one, two] = ["one", "two"].map(|name| place.spec(name, kind, capacity));
        pool.make(&one).unwrap();
        pool.make(&two).unwrap();
        let filled = fill(&one);
        assert!(filled >= one.capacity, "{kind:?}: full after {filled}");
        assert!(filled <= one.capacity + one.capacity / 10 + 64 * MIB, "{kind:?}: {filled}");
        assert!(fill(&two) >= two.capacity, "{kind:?}: the neighbor has its own");
        let usage = pool.usage(&id("one")).unwrap();
        assert!(usage.used.unwrap() >= one.capacity && usage.bytes >= usage.used.unwrap());
        for name in ["one", "two"] {
            pool.remove(&id(name)).unwrap();
        }
        place.assert_empty(&pool);
    }
}

/// Writes, deletions, trims and allocations inside an image change nothing outside.
#[test]
fn an_image_has_all_its_blocks_from_first_to_last() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("a", kind, 400);
        let space = pool.make(&spec).unwrap();
        let image = place.at("pool/spaces/a.img");
        let whole = || fs::metadata(&image).unwrap().blocks() * 512 >= space.room;
        assert!(whole(), "{kind:?}: when made");
        let device = place.loops().pop().expect("one device");
        let read = |name: &str| fs::read_to_string(format!("/sys/block/{device}/{name}")).unwrap();
        assert_eq!(read("loop/dio").trim(), "1", "direct-io");
        assert_eq!(read("loop/autoclear").trim(), "1");
        assert_eq!(read("queue/discard_max_bytes").trim(), "0");
        let at = spec.mount_at.display();
        fill(&spec);
        fs::remove_file(spec.mount_at.join("fill")).unwrap();
        let lines = [
            format!("cd {at} && fallocate -l 200M f && sync f"),
            format!("cd {at} && dd if=/dev/zero of=f bs=4k count=1 seek=77 conv=notrunc"),
            format!("cd {at} && fallocate -z -l 100M f && fallocate -p -l 50M f && sync f"),
            format!("rm {at}/f && sync"),
        ];
        for line in lines {
            let output = run_as(forebay_node::space::Owner::ROOT, &line);
            assert!(output.status.success(), "{output:?}");
        }
        let trimmed = Command::new("fstrim").arg(&spec.mount_at).output().unwrap();
        assert!(!trimmed.status.success(), "{kind:?}: trimmed");
        assert!(whole(), "{kind:?}: afterwards");
        // A hole that is punched all the same is closed by the sweep.
        let file = fs::File::options().write(true).open(&image).unwrap();
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, space.room / 2, MIB).unwrap();
        assert!(!whole());
        pool.sweep().unwrap();
        assert!(whole(), "{kind:?}: after a sweep");
        pool.remove(&id("a")).unwrap();
        place.assert_empty(&pool);
        // The kernel would keep "never discard" for the next user of the device.
        pool.sweep().unwrap();
        let left = std::path::Path::new("/sys/block").join(&device);
        // The number may be another space's by now, or about to be.
        let anew = || fs::read_to_string(left.join("loop/backing_file")).is_ok();
        let began = Instant::now();
        while left.exists() && !anew() {
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(5), "{device} is left behind with our limits");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_number_of_files_is_limited_too() {
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let place = Place::new();
        let pool = place.pool();
        let spec = SpaceSpec { inodes: Some(2000), ..place.spec("a", kind, 32) };
        pool.make(&spec).unwrap();
        let mut made = 0u64;
        let error = loop {
            match fs::File::create(spec.mount_at.join(made.to_string())) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!((1980..2300).contains(&made), "{kind:?}: {made}");
        let usage = pool.usage(&id("a")).unwrap();
        assert!(usage.used_inodes.unwrap() >= made);
        pool.remove(&id("a")).unwrap();
        place.assert_empty(&pool);
    }
}

#[test]
fn a_hundred_thousand_files_are_removed_within_a_second() {
    for kind in [Kind::Ext4, Kind::Directory, Kind::Tmpfs] {
        let place = Place::new();
        let pool = place.pool();
        let mut spec = place.spec("many", kind, 1024);
        spec.inodes = Some(110_000);
        pool.make(&spec).unwrap();
        for dir in 0..100 {
            let dir = spec.mount_at.join(dir.to_string());
            fs::create_dir(&dir).unwrap();
            for file in 0..1000 {
                fs::File::create(dir.join(file.to_string())).unwrap();
            }
        }
        let begun = Instant::now();
        pool.remove(&id("many")).unwrap();
        let took = begun.elapsed();
        println!("{kind:?}: removal of 100,000 files answered after {took:?}");
        assert!(took < Duration::from_secs(1), "{kind:?}: {took:?}");
        assert!(!spec.mount_at.exists());
        pool.make(&spec).unwrap();
        assert_eq!(fs::read_dir(&spec.mount_at).unwrap().count(), 0, "the name is free at once");
        pool.remove(&id("many")).unwrap();
        waited("all is deleted", || pool.sweep().unwrap().left.is_empty());
        place.assert_empty(&pool);
    }
}

#[test]
fn a_busy_space_is_taken_away_and_its_holder_named() {
    for kind in Kind::ALL {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("busy", kind, kind.mib());
        pool.make(&spec).unwrap();
        let open = fs::File::create(spec.mount_at.join("open")).unwrap();
        let mut holder = sleeper(Command::new("sleep").arg("60").stdin(open));
        let pid = holder.0.id();
        let begun = Instant::now();
        let removal = pool.remove(&id("busy")).unwrap();
        assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
        assert!(removal.holders.iter().any(|h| h.pid == pid), "{kind:?}: {removal:?}");
        assert!(!spec.mount_at.exists(), "{kind:?}: its place is free");
        let mut left = removal.left.expect("it still holds its room");
        if kind == Kind::Directory {
            // Names go while a process has a file open, which still takes its room.
            waited("it is deleted", || place.names("trash").len() == 1);
            left = pool.sweep().unwrap().left.pop().expect("it still holds its room");
        }
        assert_eq!((left.why, left.room >= spec.capacity), (Why::Held, true));
        assert!(left.holders.iter().any(|h| h.pid == pid), "{kind:?}: {left}");
        assert_eq!(pool.sweep().unwrap().left.len(), 1, "a sweep waits for the holder");
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        waited("it is gone", || pool.sweep().unwrap().left.is_empty());
        place.assert_empty(&pool);
    }
}

/// The next mount gets the number of a mount that has ended; its users hold nothing of the first one.
#[test]
fn a_directory_that_was_held_is_gone_though_others_are_used() {
    let place = Place::new();
    let pool = place.pool();
    let spec = place.spec("held", Kind::Directory, 4);
    let sleeps = |at: &std::path::Path| sleeper(Command::new("sleep").arg("60").current_dir(at));
    pool.make(&spec).unwrap();
    let holder = sleeps(&spec.mount_at);
    pool.remove(&id("held")).unwrap();
    waited("it is deleted", || place.names("trash").len() == 1);
    drop(holder);
    let others: Vec<_> = (0..8)
        .map(|number| {
            let spec = place.spec(&format!("other-{number}"), Kind::Directory, 4);
            pool.make(&spec).unwrap();
            sleeps(&spec.mount_at)
        })
        .collect();
    assert_eq!(pool.sweep().unwrap().left, []);
    drop(others);
    for id in pool.ids().unwrap() {
        pool.remove(&id).unwrap();
    }
    place.assert_empty(&pool);
}

/// A copy of the mount in another namespace goes with the mount point, which the kernel removes
/// everywhere. A mount point that existed before stays, and so does the copy.
#[test]
fn a_mount_namespace_that_still_has_it_is_a_holder() {
    for (kind, made) in [(Kind::Ext4, true), (Kind::Ext4, false), (Kind::Tmpfs, false)] {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("elsewhere", kind, kind.mib());
        if !made {
            fs::create_dir(&spec.mount_at).unwrap();
        }
        pool.make(&spec).unwrap();
        let arguments = ["-m", "--propagation", "private", "sleep", "60"];
        let mut holder = sleeper(Command::new("unshare").args(arguments));
        let pid = holder.0.id();
        waited("it has mounts of its own", || {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
            of(&pid.to_string()).is_some_and(|ns| Some(ns) != of("self"))
                && fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n"
        });
        let removal = pool.remove(&id("elsewhere")).unwrap();
        let held = |left: &forebay_node::space::Leftover| left.holders.iter().any(|h| h.pid == pid);
        match made {
            true => {
                assert!(!removal.left.as_ref().is_some_and(held), "{kind:?}: {removal:?}");
                waited("it is gone", || pool.sweep().unwrap().left.is_empty());
            }
            // One look takes a fifth of a second at most, whether it has seen all processes or not.
            false => waited("its holder is named", || {
                let left = pool.sweep().unwrap().left;
                assert!(!left.is_empty(), "{kind:?}: it is held");
                removal.left.iter().chain(&left).any(held)
            }),
        }
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        waited("it is gone", || pool.sweep().unwrap().left.is_empty());
        if !made {
            fs::remove_dir(&spec.mount_at).unwrap();
        }
        place.assert_empty(&pool);
    }
}

#[test]
fn what_somebody_mounted_over_a_space_is_not_ended() {
    let place = Place::new();
    let pool = place.pool();
    let spec = place.spec("under", Kind::Ext4, 32);
    pool.make(&spec).unwrap();
    let at = spec.mount_at.to_str().unwrap().to_string();
    assert!(Command::new("mount").args(["-t", "tmpfs", "over", &at]).status().unwrap().success());
    let error = pool.remove(&id("under")).unwrap_err().to_string();
    assert!(error.contains("over is mounted over"), "{error}");
    rustix::mount::unmount(&spec.mount_at, rustix::mount::UnmountFlags::empty()).unwrap();
    pool.remove(&id("under")).unwrap();
    place.assert_empty(&pool);
}

#[test]
fn what_is_no_image_of_ours_is_refused_and_left_alone() {
    let foreign: [(&str, Put); 4] = [
        ("symbolic link", |place| {
            fs::write(place.at("target"), "target").unwrap();
            let link = place.at("pool/spaces/a.img");
            std::os::unix::fs::symlink(place.at("target"), link).unwrap();
        }),
        ("FIFO", |place| {
            let fifo = place.at("pool/spaces/a.img");
            assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
        }),
        ("hard link", |place| {
            fs::write(place.at("target"), "target").unwrap();
            fs::hard_link(place.at("target"), place.at("pool/spaces/a.img")).unwrap();
        }),
        ("directory", |place| fs::create_dir(place.at("pool/spaces/a.img")).unwrap()),
    ];
    for (what, put) in foreign {
        let place = Place::new();
        let pool = place.pool();
        put(&place);
        let error = pool.make(&place.spec("a", Kind::Ext4, 32)).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("a.img"), "{what}: {error}");
        if place.at("target").exists() {
            assert_eq!(fs::read(place.at("target")).unwrap(), b"target");
        }
        assert!(place.mounts().is_empty() && place.loops().is_empty());
    }
}

#[test]
fn a_space_whose_bytes_are_gone_is_not_replaced_by_an_empty_one() {
    for kind in [Kind::Ext4, Kind::Directory] {
        let place = Place::new();
        let pool = place.pool();
        let spec = place.spec("a", kind, 32);
        pool.make(&spec).unwrap();
        rustix::mount::unmount(&spec.mount_at, rustix::mount::UnmountFlags::empty()).unwrap();
        for entry in fs::read_dir(place.at("pool/spaces")).unwrap() {
            let entry = entry.unwrap().path();
            fs::rename(&entry, place.at("elsewhere")).unwrap();
        }
        for error in [pool.make(&spec).unwrap_err(), pool.adopt(&id("a")).unwrap_err()] {
            assert!(error.to_string().contains("is gone: remove the instance"), "{error}");
        }
        assert!(place.names("spaces").is_empty());
        pool.remove(&id("a")).unwrap();
        place.assert_empty(&pool);
    }
}

/// A space of many files is deleted while others come and go.
#[test]
fn a_long_deletion_holds_nobody_up() {
    let place = Place::new();
    let pool = place.pool();
    let big = SpaceSpec { inodes: Some(50_000), ..place.spec("big", Kind::Directory, 64) };
    pool.make(&big).unwrap();
    for file in 0..30_000 {
        fs::File::create(big.mount_at.join(file.to_string())).unwrap();
    }
    pool.remove(&id("big")).unwrap();
    let begun = Instant::now();
    let small = place.spec("small", Kind::Ext4, 32);
    pool.make(&small).unwrap();
    let removal = pool.remove(&id("small")).unwrap();
    println!("small one made and removed in {:?}: {removal:?}", begun.elapsed());
    waited("all is deleted", || pool.sweep().unwrap().left.is_empty());
    place.assert_empty(&pool);
}

#[test]
fn a_pool_tells_what_it_has_and_why_not() {
    let place = Place::new();
    let pool = Pool::open(&place.at("pool"), Settings::default()).unwrap();
    let offers = pool.probe();
    let offer = |means| -> &Offer { offers.iter().find(|o| o.means == means).unwrap() };
    assert_eq!(offer(Means::Image).missing, None);
    assert_eq!(offer(Means::Tmpfs).missing, None);
    assert!(offer(Means::Directory).missing.as_ref().unwrap().contains("enforce = false"));
    let quota = offer(Means::ProjectQuota).missing.as_ref();
    println!("project quota: {quota:?}");
    let error = pool.make(&place.spec("a", Kind::Directory, 32)).unwrap_err().to_string();
    assert!(error.contains("no directory") && error.contains("enforce"), "{error}");
    let mut spec = place.spec("b", Kind::Ext4, 32);
    spec.means = forebay_node::space::Choice::Exactly(Means::ProjectQuota);
    match quota {
        Some(why) => {
            let error = pool.make(&spec).unwrap_err().to_string();
            assert!(error.contains(why.as_str()), "{error}");
        }
        None => {
            pool.make(&spec).unwrap();
            pool.remove(&id("b")).unwrap();
        }
    }
    spec.means = forebay_node::space::Choice::Auto;
    let best = if quota.is_some() { Means::Image } else { Means::ProjectQuota };
    assert_eq!(pool.make(&spec).unwrap().means, best);
    pool.remove(&id("b")).unwrap();
    place.assert_empty(&pool);
}

#[test]
fn a_space_is_made_in_half_a_second() {
    let place = Place::new();
    let pool = place.pool();
    for kind in Kind::ALL {
        let spec = place.spec("quick", kind, 4096);
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let begun = Instant::now();
            pool.make(&spec).unwrap();
            best = best.min(begun.elapsed());
            pool.remove(&id("quick")).unwrap();
            waited("it is gone", || pool.sweep().unwrap().left.is_empty());
        }
        println!("{kind:?}: 4 GiB made in {best:?} (best of 5)");
        assert!(best < Duration::from_millis(500), "{kind:?}: {best:?}");
    }
    place.assert_empty(&pool);
}
