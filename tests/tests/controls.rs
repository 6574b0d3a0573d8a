//! An operator's changes while the mount is in use.
// S-1, S-2, S-5, S-13, S-14, S-15, S-16

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};

use forebay_tests::{
    Bed, Mounted, PATIENCE, Tier, drop_caches, needs_forebay, proof, sample, sys, text, within,
};

const MIB: usize = 1 << 20;

/// Nothing is flushed before a command asks for it.
const HOLD: &[&str] = &["--preset", "hold", "--max-age", "1h"];

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

fn set(mounted: &Mounted, pairs: &[&str]) -> serde_json::Value {
    let args: Vec<&str> = ["set", text(&mounted.path), "--json", "--background"]
        .iter()
        .chain(pairs)
        .copied()
        .collect();
    mounted.forebay(&args).ok().json()
}

fn get(mounted: &Mounted, key: &str) -> String {
    mounted.forebay(&["get", text(&mounted.path), key]).ok().stdout.trim().to_string()
}

#[test]
fn settings_are_read_and_changed_by_command_and_by_file() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--max-age", "7s"]);
    let mnt = text(&mounted.path);
    assert_eq!(get(&mounted, "max-age"), "7s");
    let answer = set(&mounted, &["max-age=9s", "eviction=fifo"]);
    assert_eq!(answer["changed"]["max-age"]["was"], "7s", "{answer}");
    assert_eq!(get(&mounted, "eviction"), "fifo");
    let file = mounted.at(".forebay/config/bypass-reads");
    fs::write(&file, "64MiB\n").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "64MiB\n");
    let all = mounted.forebay(&["get", mnt, "--json"]).ok().json();
    assert_eq!(all["bypass-reads"]["value"], "64MiB");
    assert_eq!(all["bypass-reads"]["origin"], "set at run time");
    // All settings or none, and every refusal has a remedy.
    for (pair, words) in [
        ("max-aeg=1s", &["max-aeg", "did you mean max-age?"][..]),
        ("policy=writeback", &["policy", "did you mean write-back?"]),
        ("threads=2", &["threads", "unmount"]),
        ("tier-size=1MiB", &["tier-size", "16MiB"]),
        ("dirty-low=70%", &["dirty-low", "dirty-high"]),
        ("max-age", &["KEY=VALUE"]),
    ] {
        let out = mounted.forebay(&["set", mnt, "settle=1s", pair]).expect(2);
        for word in words {
            assert!(out.stderr.contains(word), "{pair}: {word} is not in {}", out.stderr);
        }
    }
    assert_eq!(get(&mounted, "settle"), "5s");
    assert!(mounted.forebay(&["get", mnt, "polici"]).expect(2).stderr.contains("policy"));
    mounted.umount();
    proof!("settings");
}

#[test]
fn a_setting_is_a_file_to_write_and_nothing_else() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--max-age", "7s"]);
    let file = mounted.at(".forebay/config/max-age");
    let sh = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-ec").arg(script).current_dir(&mounted.path);
        assert!(shell.status().unwrap().success(), "{script}");
    };
    sh("echo 8s > .forebay/config/max-age; touch .forebay/config/max-age");
    assert_eq!(get(&mounted, "max-age"), "8s");
    sh("echo 9s > value; cp value .forebay/config/max-age");
    assert_eq!(get(&mounted, "max-age"), "9s");
    sh("echo 10s | tee .forebay/config/max-age > /dev/null");
    assert_eq!(get(&mounted, "max-age"), "10s");
    // A part that does not begin the file is no value.
    let open = File::options().write(true).truncate(true).open(&file).unwrap();
    open.write_all_at(b"11s\n", 0).unwrap();
    assert_eq!(sys::errno(open.write_all_at(b"12s\n", 4)), libc::EINVAL);
    drop(open);
    assert_eq!(get(&mounted, "max-age"), "11s");
    let before = fs::metadata(&file).unwrap().mode();
    let other = fs::Permissions::from_mode(before ^ 0o022);
    assert_eq!(sys::errno(fs::set_permissions(&file, other)), libc::EPERM);
    assert_eq!(fs::metadata(&file).unwrap().mode(), before);
    let refused = [
        chown(&file, Some(7), None),
        chown(&file, None, Some(7)),
        sys::utimens(&file, (1, 0), (1, 0)),
        sys::set_xattr(&file, "user.one", b"1", 0),
        sys::remove_xattr(&file, "user.one"),
        fs::hard_link(&file, mounted.at("link")),
    ];
    assert_eq!(refused.map(sys::errno), [libc::EPERM; 6]);
    assert!(!bed.backing.join("link").exists());
    mounted.umount();
    proof!("one setting");
}

#[test]
fn the_write_policy_changes_under_open_files() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(HOLD);
    let (behind, front) = (bed.backing.join("f"), mounted.at("f"));
    // Made through another handle, so that this one goes through the daemon.
    fs::write(&front, b"old").unwrap();
    mounted.flush();
    let file = File::options().read(true).write(true).open(&front).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    assert_eq!(fs::read(&behind).unwrap(), b"old");
    // To write-through: dirty bytes arrive before the answer, later ones with each close.
    let out = mounted.forebay(&["set", text(&mounted.path), "policy=write-through"]).ok();
    assert!(out.stdout.contains("waits for 3"), "{}", out.stdout);
    assert_eq!(fs::read(&behind).unwrap(), b"new");
    let mut other = File::options().append(true).open(&front).unwrap();
    other.write_all(b"er").unwrap();
    drop(other);
    assert_eq!(fs::read(&behind).unwrap(), b"newer");
    file.write_all_at(b"N", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&behind).unwrap(), b"Newer");
    // To write-around: bytes arrive at once.
    set(&mounted, &["policy=write-around"]);
    file.write_all_at(b"fewer", 0).unwrap();
    assert_eq!(fs::read(&behind).unwrap(), b"fewer");
    // And back: bytes arrive later.
    set(&mounted, &["policy=write-back"]);
    file.write_all_at(b"s", 5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&behind).unwrap(), b"fewer");
    assert_eq!(fs::read(&front).unwrap(), b"fewers");
    drop(file);
    mounted.flush();
    assert_eq!(fs::read(&behind).unwrap(), b"fewers");
    assert_eq!(counter(&mounted, "conflicts"), 0);
    mounted.umount();
    proof!("four policies");
}

#[test]
fn the_tier_grows_and_shrinks_while_mounted() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--max-age", "1h", "--tier-size", "64MiB"]);
    for n in 0..2 {
        sample::file(&bed.backing.join(format!("clean{n}")), n, 12 * MIB);
        fs::read(mounted.at(format!("clean{n}"))).unwrap();
    }
    fs::write(mounted.at("dirty"), vec![7; 24 * MIB]).unwrap();
    mounted.hear_closes();
    mounted.keeps(48 * MIB as u64);
    // Clean bytes make room first: nothing is flushed.
    let answer = set(&mounted, &["tier-size=32MiB"]);
    within(PATIENCE, "clean bytes to go", || mounted.number("used_bytes") < 32 * MIB as u64);
    assert_eq!(counter(&mounted, "flushed_bytes"), 0, "{answer}");
    assert_eq!(mounted.number("tier_bytes"), 32 * MIB as u64);
    // A size below the dirty bytes waits for the drain, and the command says so.
    let out = mounted.forebay(&["set", text(&mounted.path), "tier-size=16MiB"]).ok();
    assert!(out.stdout.contains("more than fit"), "{}", out.stdout);
    within(PATIENCE, "the rest to go", || mounted.number("used_bytes") <= 16 * MIB as u64);
    assert_eq!(fs::read(bed.backing.join("dirty")).unwrap(), vec![7; 24 * MIB]);
    // A size that the file system lacks is not granted.
    let out = mounted.forebay(&["set", text(&mounted.path), "tier-size=100000TiB"]).ok();
    assert!(out.stdout.contains("tier-size: gets "), "{}", out.stdout);
    set(&mounted, &["tier-size=auto"]);
    assert!(mounted.number("tier_bytes") > 64 * MIB as u64);
    fs::write(mounted.at("more"), vec![8; 48 * MIB]).unwrap();
    assert_eq!(fs::read(mounted.at("more")).unwrap(), vec![8; 48 * MIB]);
    mounted.umount();
    proof!("two sizes");
}

#[test]
fn a_long_sequential_reader_leaves_the_tier_alone() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let long = sample::file(&bed.backing.join("long"), 1, 32 * MIB);
    let mounted = bed.mount(&["--bypass-reads", "4MiB"]);
    drop_caches();
    assert!(fs::read(mounted.at("long")).unwrap() == long);
    let used = mounted.number("used_bytes");
    assert!(used < 16 * MIB as u64, "{used} bytes of a stream stayed");
    assert!(counter(&mounted, "read_bypass_sequential") > 0);
    // Off again: all bytes are admitted.
    set(&mounted, &["bypass-reads=off"]);
    drop_caches();
    assert!(fs::read(mounted.at("long")).unwrap() == long);
    mounted.keeps(32 * MIB as u64);
    mounted.umount();
    proof!("a stream");
}

#[test]
fn a_long_sequential_writer_goes_to_the_backing_store() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mut flags = HOLD.to_vec();
    flags.extend(["--bypass-writes", "4MiB"]);
    let mounted = bed.mount(&flags);
    let bytes: Vec<u8> = (0..32 * MIB).map(|n| (n / 4096) as u8).collect();
    let file = File::create(mounted.at("long")).unwrap();
    for (n, piece) in bytes.chunks(MIB).enumerate() {
        file.write_all_at(piece, (n * MIB) as u64).unwrap();
    }
    assert!(counter(&mounted, "write_bypass_sequential") > 0);
    assert!(mounted.number("dirty_bytes") < 8 * MIB as u64);
    // A small write into the middle is dirty in the tier as before, and wins.
    fs::write(mounted.at("other"), b"x").unwrap();
    file.write_all_at(b"middle", 10 << 20).unwrap();
    file.sync_all().unwrap();
    let mut want = bytes;
    want[10 << 20..(10 << 20) + 6].copy_from_slice(b"middle");
    assert!(fs::read(mounted.at("long")).unwrap() == want);
    drop(file);
    mounted.flush();
    assert!(fs::read(bed.backing.join("long")).unwrap() == want);
    assert_eq!(counter(&mounted, "conflicts"), 0);
    mounted.umount();
    proof!("a stream");
}

#[test]
fn rules_say_which_files_come_into_the_tier() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Disk);
    let config = bed.root.join("forebay.toml");
    let rule = "[[rule]]\nname = \"logs\"\naction = \"deny\"\npath = \"*.log\"\n";
    fs::write(&config, format!("preset = \"hold\"\nmax-age = \"1h\"\n{rule}")).unwrap();
    bed.env("FOREBAY_CONFIG", text(&config));
    sample::file(&bed.backing.join("d/in.log"), 1, MIB);
    sample::file(&bed.backing.join("d/in.txt"), 2, MIB);
    let mounted = bed.mount(&[]);
    let mnt = text(&mounted.path);
    // Bytes read from the denied file are not kept, those of the other file are.
    assert_eq!(fs::read(mounted.at("d/in.log")).unwrap().len(), MIB);
    assert_eq!(mounted.number("used_bytes"), 0);
    fs::read(mounted.at("d/in.txt")).unwrap();
    mounted.keeps(MIB as u64);
    assert_eq!(mounted.number("used_bytes"), MIB as u64);
    // Writes of the denied file are on the backing store at once.
    let log = File::create(mounted.at("out.log")).unwrap();
    log.write_all_at(b"line", 0).unwrap();
    assert_eq!(fs::read(bed.backing.join("out.log")).unwrap(), b"line");
    assert_eq!(mounted.number("dirty_bytes"), 0);
    let window = ["rules", "list", mnt, "--json", "--window"];
    let told = mounted.forebay(&[&window[..], &["1min"]].concat()).ok().json();
    assert_eq!(told[0]["requests"]["write"]["bytes"], 4, "{told}");
    assert!(mounted.forebay(&[&window[..], &["2min"]].concat()).expect(2).stderr.contains("5min"));
    // A process, whose rule ends with it.
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = child.id().to_string();
    mounted.forebay(&["rules", "add", mnt, "job", "deny", "--pid", &pid]).ok();
    let list = || mounted.forebay(&["rules", "list", mnt, "--json"]).ok().json();
    assert_eq!(list().as_array().unwrap().len(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    within(PATIENCE, "the rule to go", || list().as_array().unwrap().len() == 1);
    let log_path = mounted.at("x/y.log");
    let test = ["rules", "test", text(&log_path)];
    let told = mounted.forebay(&test).ok().stdout;
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(told.trim(), format!("deny (logs) for user {uid}"));
    let told = mounted.forebay(&[&test[..], &["--uid", "7"]].concat()).ok().stdout;
    assert_eq!(told.trim(), "deny (logs)");
    mounted.forebay(&["rules", "remove", mnt, "logs"]).ok();
    drop(log);
    fs::read(mounted.at("d/in.log")).unwrap();
    assert!(
        mounted.forebay(&["rules", "remove", mnt, "logs"]).expect(2).stderr.contains("not known")
    );
    let told = mounted.forebay(&["rules", "list", mnt]).ok().stdout;
    assert_eq!(told.trim(), "no rules: everything is allowed");
    mounted.umount();
    proof!("rules");
}

#[test]
fn a_rule_denies_one_way_and_a_dirty_file_stays_in_the_tier() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let large = sample::file(&bed.backing.join("large"), 1, 2 * MIB);
    sample::file(&bed.backing.join("small"), 2, 4096);
    sample::file(&bed.backing.join("w/a"), 3, 4096);
    let mounted = bed.mount(HOLD);
    fs::write(mounted.at("early"), b"first").unwrap();
    mounted.hear_closes();
    let add = |rule: &[&str]| {
        mounted.forebay(&[&["rules", "add", text(&mounted.path)], rule].concat()).ok();
    };
    add(&["large", "deny-reads", "--size-min", "1MiB"]);
    add(&["w", "deny-writes", "--path", "w/*"]);
    add(&["early", "deny", "--path", "early"]);
    let used = || mounted.number("used_bytes");
    let before = used();
    assert!(fs::read(mounted.at("large")).unwrap() == large);
    assert_eq!(used(), before, "a denied read is not kept");
    fs::read(mounted.at("small")).unwrap();
    assert_eq!(used(), before + 4096, "another one is");
    // Only the writes go around.
    let open = |name: &str| File::options().write(true).open(mounted.at(name)).unwrap();
    open("w/a").write_all_at(b"new", 0).unwrap();
    assert_eq!(&fs::read(bed.backing.join("w/a")).unwrap()[..3], b"new");
    assert_eq!(counter(&mounted, "write_bypass_rule"), 1);
    fs::read(mounted.at("w/a")).unwrap();
    assert_eq!(used(), before + 2 * 4096, "its reads are kept");
    // Bytes that are dirty already are written in the tier, and flushed by close.
    let early = open("early");
    early.write_all_at(b"again", 0).unwrap();
    assert_eq!(fs::read(bed.backing.join("early")).unwrap(), b"");
    drop(early);
    assert_eq!(fs::read(bed.backing.join("early")).unwrap(), b"again");
    assert_eq!(counter(&mounted, "write_bypass_rule"), 1);
    mounted.umount();
    proof!("one way and the other");
}

#[test]
fn a_quota_evicts_the_oldest_of_its_own_and_bypasses_only_beside_dirty_bytes() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for n in 0..8 {
        sample::file(&bed.backing.join(format!("q/{n}")), n, 2 * MIB);
    }
    sample::file(&bed.backing.join("other"), 9, 2 * MIB);
    let mounted = bed.mount(HOLD);
    let mnt = text(&mounted.path);
    let add = ["rules", "add", mnt, "some", "allow", "--path", "q/**", "--quota", "8MiB"];
    mounted.forebay(&add).ok();
    let used = || {
        let rules = mounted.forebay(&["rules", "list", mnt, "--json"]).ok().json();
        rules[0]["used_bytes"].as_u64().unwrap()
    };
    fs::read(mounted.at("other")).unwrap();
    for n in 0..8 {
        assert_eq!(fs::read(mounted.at(format!("q/{n}"))).unwrap().len(), 2 * MIB);
        assert!(used() <= 8 * MIB as u64, "{}", used());
    }
    assert_eq!(counter(&mounted, "read_bypass_rule"), 0);
    mounted.keeps_of("q/7", 2 * MIB as u64);
    mounted.keeps_of("q/0", 0);
    mounted.keeps_of("other", 2 * MIB as u64);
    // Dirty bytes evict the clean ones, and are not evicted themselves.
    fs::write(mounted.at("q/dirty"), vec![7; 8 * MIB]).unwrap();
    mounted.hear_closes();
    assert_eq!((mounted.cached("q/7"), mounted.number("dirty_bytes")), (0, 8 * MIB as u64));
    fs::write(mounted.at("q/more"), vec![8; MIB]).unwrap();
    assert_eq!(fs::read(bed.backing.join("q/more")).unwrap(), vec![8; MIB]);
    assert!(counter(&mounted, "write_bypass_rule") > 0);
    assert_eq!(counter(&mounted, "flushed_bytes"), 0);
    // The file with the dirty bytes is flushed when it grows.
    let file = File::options().append(true).open(mounted.at("q/dirty")).unwrap();
    (&file).write_all(&[9; 4096]).unwrap();
    assert_eq!(fs::metadata(bed.backing.join("q/dirty")).unwrap().len(), 8 * MIB as u64 + 4096);
    drop(file);
    fs::write(mounted.at("q/last"), vec![5; MIB]).unwrap();
    mounted.hear_closes();
    assert_eq!(mounted.number("dirty_bytes"), MIB as u64);
    assert!(used() <= 8 * MIB as u64, "{}", used());
    mounted.umount();
    let dirty = fs::read(bed.backing.join("q/dirty")).unwrap();
    assert!(dirty[..8 * MIB] == vec![7; 8 * MIB] && dirty[8 * MIB..] == [9; 4096]);
    assert_eq!(fs::read(bed.backing.join("q/last")).unwrap(), vec![5; MIB]);
    proof!("a quota");
}
