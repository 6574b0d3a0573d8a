//! Daemons that drain after their mount is gone, that end, or that do not answer.
// S-12

use std::fs;
use std::time::{Duration, Instant};

use forebay_tests::{
    Bed, Mounted, PATIENCE, Tier, images, is_alive, kill, needs_forebay, proof, sample, stop, text,
    within,
};

const BYTES: usize = 12_000_000;

/// A mount that was removed by umount(2) while its daemon has a drain of 12 s before it.
fn unmounted(bed: &Bed) -> Mounted {
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "1MB,1ms"]);
    sample::file(&mounted.at("f"), 1, BYTES);
    within(PATIENCE, "it is unmounted", || images::unmount(&bed.mnt, false).is_ok());
    mounted
}

#[test]
fn a_daemon_that_drains_after_its_mount_is_found_by_all_its_names() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = unmounted(&bed);
    let (mnt, tier) = (text(&bed.mnt).to_string(), text(&bed.tier).to_string());
    let status = bed.forebay(&["status"]);
    assert!(status.stdout.contains(&format!("{mnt} is unmounted: ")), "{status:#?}");
    let all = bed.forebay(&["status", "--json"]).json();
    let listed = all.as_array().unwrap().iter().find(|one| one["tier"] == tier.as_str());
    assert_eq!(listed.expect("it is in the list")["phase"], "unmounted", "{all:#}");
    for name in [&mnt, &tier] {
        let status = bed.forebay(&["status", "--json", name]).ok().json();
        assert_eq!(status["pid"], mounted.pid, "{name}: {status:#}");
        let out = bed.forebay(&["umount", name, "--timeout", "1ms"]).expect(4);
        assert!(out.stderr.contains("the time is up: "), "{out:#?}");
    }
    let named = format!("is still drained by the daemon of the former mount {mnt} ");
    let way = format!("`forebay umount {tier}` waits for its end");
    for out in [bed.forebay(&["check", &tier]), bed.try_mount(&[])] {
        let said = out.expect(2).stderr;
        assert!(said.contains(&named) && said.contains(&way), "{said}");
    }
    assert!(is_alive(mounted.pid), "it drains all the while");
    let out = bed.forebay(&["flush", "--wait", &tier]).ok();
    assert!(out.stdout.contains("nothing is dirty in the tier"), "{out:#?}");
    assert_eq!(fs::metadata(bed.backing.join("f")).unwrap().len(), BYTES as u64);
    bed.forebay(&["umount", &mnt]).expect(3);
    proof!("found by its mount point and by its tier");
}

#[test]
fn a_drain_without_a_mount_is_cut_short_by_a_tier_s_name() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = unmounted(&bed);
    let out = bed.forebay(&["umount", "--keep-dirty", "--json", text(&bed.tier)]).ok().json();
    assert_eq!((&out["daemon"], &out["dirty"]), (&"ended".into(), &true.into()), "{out:#}");
    assert_eq!(out["mountpoint"], text(&bed.mnt), "{out:#}");
    assert!(!is_alive(mounted.pid), "the command waits for its end");
    bed.forebay(&["check", text(&bed.tier)]).ok();
}

#[test]
fn a_daemon_that_is_ending_says_so() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "1MB,1ms"]);
    sample::file(&mounted.at("f"), 1, 5_000_000);
    kill(mounted.pid, libc::SIGTERM);
    within(PATIENCE, "it says so", || mounted.status()["phase"] == "leaving");
    let said = mounted.forebay(&["status", text(&bed.mnt)]).ok().stdout;
    assert!(said.contains("is ending: it drains, then unmounts"), "{said}");
    within(PATIENCE, "it ends", || !is_alive(mounted.pid));
}

/// A daemon that does not answer is waited for once, and not once for each.
#[test]
fn daemons_that_hang_keep_a_command_no_longer_than_one_of_them() {
    needs_forebay!();
    let beds = [Bed::new(Tier::Disk), Bed::new(Tier::Disk)];
    let mounts = beds.each_ref().map(|bed| bed.mount(&[]));
    mounts.iter().for_each(|mounted| stop(mounted.pid));
    let began = Instant::now();
    let said = beds[0].forebay(&["status"]).expect(3).stderr;
    let took = began.elapsed();
    for bed in &beds {
        assert!(said.contains(text(&bed.mnt)), "{said}");
    }
    assert!(took < Duration::from_secs(35), "{took:?}");
    let began = Instant::now();
    mounts[0].try_umount(&["--timeout", "2s"]).expect(3);
    let umount_took = began.elapsed();
    assert!(umount_took < Duration::from_secs(18), "{umount_took:?}");
    mounts.iter().for_each(|mounted| kill(mounted.pid, libc::SIGCONT));
    mounts.into_iter().for_each(|mounted| drop(mounted.umount()));
    proof!("status took {took:?}, umount {umount_took:?}");
}
