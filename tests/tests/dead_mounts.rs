//! `umount` removes the mount of a daemon that died, and leaves the mount of a living one alone,
//! whatever the state of the tier and the control socket; and a daemon whose mount was removed while
//! it stood still.
// S-12

use std::fs::{self, File};
use std::io::Write;

use forebay_tests::{
    Bed, Mounted, Out, PATIENCE, Tier, drop_caches, eventually, images, is_alive, kill,
    needs_forebay, proof, stop, sys, text, within,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

fn dirty_mount(bed: &Bed) -> Mounted {
    let mounted = bed.mount(&["--passthrough", "off", "--preset", "hold"]);
    fs::write(mounted.at("dirty"), vec![7; 300_000]).unwrap();
    mounted
}

fn assert_cleared(bed: &Bed, out: &Out) {
    assert_eq!(images::mounted_at(&bed.mnt), None, "{out:#?}");
    assert!(out.stdout.contains("had died"), "{out:#?}");
}

/// The tier's file system is shut down, and every access to it is EIO: whether it holds dirty bytes is
/// unknown, and the exit code does not claim that it holds none.
#[test]
fn a_dead_mount_is_cleared_though_its_tier_cannot_be_read() {
    needs_forebay!();
    for flags in [&[][..], &["--keep-dirty"]] {
        let bed = Bed::new(Tier::Xfs(512));
        let mounted = dirty_mount(&bed);
        mounted.kill9();
        shut_down(&bed);
        drop_caches();
        assert!(fs::metadata(bed.tier.join("run/control.sock")).is_err(), "the tier can be read");
        let out = mounted.try_umount(flags).expect(4);
        assert_cleared(&bed, &out);
        assert!(out.stdout.contains("cannot be checked"), "{out:#?}");
    }
    proof!("cleared twice");
}

/// Shuts the file system down as a failing device does: nothing is written or read any more.
fn shut_down(bed: &Bed) {
    let root = fs::File::open(bed.root.join("fast")).unwrap();
    sys::shut_down(&root).expect("root may shut XFS down");
}

/// The socket of a dying daemon takes a connection and drops it.
#[test]
fn a_mount_is_cleared_in_the_moment_its_daemon_dies() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mut dying = 0;
    for round in 0..12 {
        let mounted = dirty_mount(&bed);
        kill(mounted.pid, libc::SIGKILL);
        dying += usize::from(is_alive(mounted.pid));
        if round == 0 {
            // The next mount names the obstacle, and the remedy.
            within(PATIENCE, "it is dead", || !is_alive(mounted.pid));
            let (slow, mnt, tier) = (text(&bed.backing), text(&bed.mnt), text(&bed.tier));
            let remedy = format!("`forebay umount --keep-dirty {mnt}` clears it, then mount again");
            // Its last thread closes the device a moment after the process is no more.
            within(PATIENCE, "the next mount names the remedy", || {
                let said = bed.forebay(&["mount", slow, mnt, "--tier", tier]).expect(2).stderr;
                said.contains("daemon has died") && said.contains(&remedy)
            });
        }
        let (flags, code) = if round % 2 == 0 { (&[][..], 4) } else { (&["--keep-dirty"][..], 0) };
        let out = mounted.try_umount(flags).expect(code);
        assert_cleared(&bed, &out);
        assert!(out.stdout.contains("1 file are dirty and safe"), "{out:#?}");
    }
    proof!("{dying} of 12 were not dead yet");
}

#[test]
fn a_mount_whose_daemon_lives_is_left_alone_without_socket_or_descriptors() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = dirty_mount(&bed);
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(3), ..limit };
    let before = prlimit(Pid::from_raw(mounted.pid), Resource::Nofile, few).unwrap();
    let out = mounted.try_umount(&["--keep-dirty"]).expect(3);
    assert!(out.stderr.contains(&format!("(pid {})", mounted.pid)), "{out:#?}");
    prlimit(Pid::from_raw(mounted.pid), Resource::Nofile, before).unwrap();
    assert!(fs::read(mounted.at("dirty")).unwrap() == vec![7; 300_000]);

    let socket = bed.tier.join("run/control.sock");
    let aside = bed.tier.join("run/aside.sock");
    fs::rename(&socket, &aside).unwrap();
    mounted.try_umount(&["--keep-dirty"]).expect(3);
    assert!(images::mounted_at(&bed.mnt).is_some() && is_alive(mounted.pid));
    assert!(fs::read(mounted.at("dirty")).unwrap() == vec![7; 300_000]);
    fs::rename(&aside, &socket).unwrap();
    let out = eventually(PATIENCE, || mounted.try_umount(&[]).code == Some(0));
    assert!(out, "it is unmounted when it can be asked: {}", text(&bed.mnt));
    proof!("left alone twice");
}

/// The kernel removes a mount without reporting the last closes, if the daemon could not be told.
/// Bytes that were written and closed are flushed, and unlinked files are gone.
#[test]
fn closes_that_the_daemon_never_heard_of_leave_nothing_dirty() {
    needs_forebay!();
    for passthrough in ["auto", "off"] {
        let bed = Bed::new(Tier::Disk);
        let mut daemon = bed.mount_foreground(&["--passthrough", passthrough]);
        let file = |name: &str| File::create(daemon.mounted.at(name)).unwrap();
        let (mut kept, mut removed) = (file("kept"), file("removed"));
        for file in [&mut kept, &mut removed] {
            file.write_all(&[7; 300_000]).unwrap();
        }
        fs::remove_file(daemon.mounted.at("removed")).unwrap();
        stop(daemon.mounted.pid);
        drop((kept, removed));
        within(PATIENCE, "nothing is open", || images::unmount(&bed.mnt, false).is_ok());
        kill(daemon.mounted.pid, libc::SIGCONT);
        let status = daemon.child.wait(PATIENCE).expect("the daemon ends");
        assert_eq!(status.code(), Some(0), "{passthrough}: {}", bed.daemon_log());
        assert!(fs::read(bed.backing.join("kept")).unwrap() == vec![7; 300_000]);
        assert!(!bed.backing.join("removed").exists());
    }
    proof!("two mounts went while their daemons stood still");
}
