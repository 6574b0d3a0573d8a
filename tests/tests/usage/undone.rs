//! The traces of a command that fails.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use forebay_tests::{
    Bed, PATIENCE, Proc, Tier, binary, images, is_alive, kill, needs_forebay, proof, text, within,
};

/// A failed mount removes everything that it has made; existing objects stay.
#[test]
fn a_mount_that_fails_leaves_no_new_tier_behind() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let fails: [&[&str]; 2] = [
        &["--metrics-listen", &address],
        &["--registry", "etcd://127.0.0.1:1/none", "--peer-listen", "127.0.0.1:0"],
    ];
    for flags in fails {
        let out = bed.try_mount(flags);
        assert!(out.code != Some(0) && !out.stderr.contains("stays"), "{flags:?}: {out:#?}");
        assert!(!bed.tier.exists(), "{flags:?}: its new tier is left");
        fs::create_dir(&bed.tier).unwrap();
        bed.try_mount(flags);
        assert!(bed.tier.join("forebay.json").exists(), "{flags:?}: it was there before");
        fs::remove_dir_all(&bed.tier).unwrap();
    }
    drop(taken);
    bed.mount(&[]).umount();
    proof!("{} ways to fail", fails.len());
}

/// A mount whose command ends before it serves is given up: by a key, by a signal, or by force.
#[test]
fn a_mount_that_nobody_waits_for_any_more_is_given_up() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let said = bed.root.join("said");
    let is_begun = |_: i32| true;
    let has_tier = |_: i32| bed.tier.join("run/forebay.log").exists();
    type IsFar<'a> = &'a dyn Fn(i32) -> bool;
    let cases: [(i32, &str, IsFar<'_>); 3] = [
        (libc::SIGINT, "20s", &is_begun),
        (libc::SIGINT, "1s", &has_tier),
        (libc::SIGKILL, "1s", &has_tier),
    ];
    for (signal, latency, is_far) in cases {
        let mut mount = Command::new(binary());
        mount.args(["mount", text(&bed.backing), text(&bed.mnt), "--tier", text(&bed.tier)]);
        mount.args(["--throttle", &format!("100MB,{latency}")]);
        mount.stderr(fs::File::create(&said).unwrap());
        let mut mount = Proc::spawn(&mut mount);
        within(PATIENCE, "the daemon has begun", || child_of(mount.pid()).is_some_and(is_far));
        let daemon = child_of(mount.pid()).unwrap();
        kill(mount.pid(), signal);
        let ended = mount.wait(PATIENCE).expect("the command ends").code();
        let said = fs::read_to_string(&said).unwrap();
        if signal == libc::SIGINT {
            assert_eq!(ended, Some(130), "{said}");
            assert!(said.contains("interrupted: nothing is mounted"), "{said}");
        }
        within(PATIENCE, "the daemon ends", || !is_alive(daemon));
        assert_eq!(images::mounted_at(&bed.mnt), None);
    }
    bed.mount(&[]).umount();
    proof!("{} ends", cases.len());
}

/// The first child of a process.
fn child_of(pid: i32) -> Option<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(Path::new(&path)).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
