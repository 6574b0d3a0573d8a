//! One file that describes several mounts, lines of fstab, and stored rules.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::{
    Bed, PATIENCE, Tier, binary, finish, forebay, forebay_env, images, is_root, needs_forebay,
    proof, skip, text,
};

/// The directories for a mount of some name.
struct Spot {
    backing: PathBuf,
    tier: PathBuf,
    at: PathBuf,
}

fn spot(bed: &Bed, name: &str) -> Spot {
    let tier = bed.root.join(format!("fast/tier-{name}"));
    Spot { backing: bed.dir(&format!("{name}/slow")), tier, at: bed.dir(&format!("{name}/at")) }
}

fn section(name: &str, spot: &Spot, more: &str) -> String {
    let Spot { backing, tier, at } = spot;
    format!("[mount.{name}]\nbacking = {backing:?}\ntier = {tier:?}\nat = {at:?}\n{more}\n")
}

fn write_config(bed: &Bed, text_of: &str) -> PathBuf {
    let path = bed.root.join("forebay.toml");
    fs::write(&path, text_of).unwrap();
    path
}

fn is_mounted(at: &Path) -> bool {
    images::mounted_at(at).is_some()
}

/// Removes the mounts that a failed test leaves.
struct Cleared<'a>(Vec<&'a Path>);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        for at in self.0.iter().filter(|at| is_mounted(at)) {
            let out = forebay(&["umount", text(at)]);
            if out.code != Some(0) {
                eprintln!("{out:#?}");
            }
        }
    }
}

#[test]
fn one_file_describes_several_mounts() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (one, two) = (spot(&bed, "one"), spot(&bed, "two"));
    let _cleared = Cleared(vec![&one.at, &two.at]);
    let rule = "[[mount.two.rule]]\nname = \"logs\"\naction = \"deny\"\npath = \"*.log\"\n";
    let config = format!(
        "max-age = \"50s\"\n{}{}{rule}",
        section("one", &one, ""),
        section("two", &two, "max-age = \"7s\"")
    );
    let config = write_config(&bed, &config);
    let mount =
        |words: &[&str]| forebay(&[&["mount"], words, &["--config", text(&config)]].concat());
    let show = ["config", "show", "--mount", "two", "--json", "--config", text(&config)];
    let shown = forebay(&show).ok().json();
    assert_eq!(shown["max-age"]["value"], "7s", "{shown:#}");
    mount(&["two"]).ok();
    assert!(is_mounted(&two.at) && !is_mounted(&one.at));
    assert!(mount(&["two"]).code != Some(0), "it is mounted");
    let out = mount(&["--all"]).ok();
    assert!(out.stdout.contains("two: ") && out.stdout.contains("is mounted"), "{out:#?}");
    assert!(is_mounted(&one.at));
    let age = |spot: &Spot| forebay(&["get", text(&spot.at), "max-age"]).ok().stdout;
    assert_eq!((age(&one).trim(), age(&two).trim()), ("50s", "7s"));
    let rules = forebay(&["rules", "list", "--json", text(&two.at)]).ok().json();
    assert_eq!(rules[0]["name"], "logs", "{rules:#}");
    fs::write(one.at.join("f"), "bytes").unwrap();
    forebay(&["umount", "one", "--config", text(&config)]).ok();
    assert!(!is_mounted(&one.at) && is_mounted(&two.at));
    let env = [("FOREBAY_CONFIG".to_string(), text(&config).to_string())];
    forebay_env(&["umount", "two"], &env).ok();
    assert!(!is_mounted(&two.at));
    forebay_env(&["umount", "two"], &env).expect(3);
    assert_eq!(fs::read(one.backing.join("f")).unwrap(), b"bytes");
    proof!("two mounts of one file");
}

#[test]
fn a_mount_that_fails_does_not_keep_the_others_from_being_made() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (bad, good) = (spot(&bed, "a-bad"), spot(&bed, "good"));
    let _cleared = Cleared(vec![&good.at]);
    fs::remove_dir(&bad.at).unwrap();
    let config = section("a-bad", &bad, "") + &section("good", &good, "");
    let config = write_config(&bed, &config);
    let out = forebay(&["mount", "--all", "--config", text(&config)]).expect(2);
    assert!(out.stderr.contains("a-bad: mount point"), "{out:#?}");
    assert!(is_mounted(&good.at));
    let unknown = forebay(&["mount", "god", "--config", text(&config)]).expect(2);
    assert!(unknown.stderr.contains("did you mean good?"), "{unknown:#?}");
}

/// In a mount namespace of its own, without the mounts of others: the command must not reach them.
#[test]
fn umount_all_takes_every_mount_of_the_caller() {
    needs_forebay!();
    if !is_root() {
        skip!("needs root for a mount namespace");
    }
    let bed = Bed::new(Tier::Disk);
    let spots = ["one", "two"].map(|name| spot(&bed, name));
    let places = spots.iter().flat_map(|s| [text(&s.backing), text(&s.at), text(&s.tier)]);
    let script = r#"
        fb=$0
        awk '/forebay.043/ { print $5 }' /proc/self/mountinfo | tac | xargs -r -n 1 umount -l
        ! grep -q forebay.043 /proc/self/mountinfo || exit 77
        "$fb" mount "$1" "$2" --tier "$3"
        "$fb" mount "$4" "$5" --tier "$6"
        echo one > "$2/f"
        echo two > "$5/f"
        ( cd "$2" && sleep 60 ) & sleeper=$!
        while ! readlink /proc/$sleeper/cwd | grep -q "$2"; do :; done
        worst=0; "$fb" umount --all --json > "$7" || worst=$?
        kill $sleeper; wait $sleeper || true
        "$fb" umount --all
        "$fb" umount --all
        exit $worst
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-euc", script, text(binary())]);
    let json = bed.root.join("all.json");
    let out = finish(command.args(places).arg(&json), PATIENCE);
    if out.code == Some(77) {
        skip!("mounts of others could not be taken out of the namespace");
    }
    let out = out.expect(1);
    let documents: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).expect("one document");
    // The newest mount comes first.
    let ended = [(&spots[1], 0), (&spots[0], 1)];
    for (document, (spot, exit_code)) in documents.as_array().unwrap().iter().zip(ended) {
        assert_eq!(document["mountpoint"], text(&spot.at), "{documents:#}");
        assert_eq!(document["exit_code"], exit_code, "{documents:#}");
    }
    assert_eq!(documents.as_array().unwrap().len(), 2, "{documents:#}");
    assert_eq!(out.stdout.matches("nothing of yours is mounted").count(), 1, "{out:#?}");
    for (spot, bytes) in spots.iter().zip(["one\n", "two\n"]) {
        assert_eq!(fs::read_to_string(spot.backing.join("f")).unwrap(), bytes);
    }
    proof!("two mounts, of which one was in use");
}

/// As mount(8) calls a helper by its name, and as fuse3's helper calls the program.
#[test]
fn mount_calls_are_understood() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let spot = spot(&bed, "one");
    let _cleared = Cleared(vec![&spot.at]);
    for name in ["mount.fuse.forebay", "umount.fuse.forebay"] {
        symlink(binary(), bed.root.join(name)).unwrap();
    }
    let run = |name: &str, words: &[&str]| {
        let program = if name.is_empty() { binary().to_path_buf() } else { bed.root.join(name) };
        finish(Command::new(program).args(words), PATIENCE)
    };
    let (backing, at) = (text(&spot.backing), text(&spot.at));
    let ours = format!("max-age=9s,noexec,tier={}", text(&spot.tier));
    let options = format!("rw,_netdev,nofail,x-systemd.automount,{ours}");
    for helper in ["mount.fuse.forebay", ""] {
        run(helper, &[backing, at, "-o", &options]).ok();
        let age = forebay(&["get", at, "max-age"]).ok().stdout;
        assert_eq!(age.trim(), "9s", "{helper}");
        fs::write(spot.at.join("f"), helper).unwrap();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(at)).expect("a line of its own");
        assert!(line.contains("noexec"), "{line}");
        run("umount.fuse.forebay", &[at]).ok();
        assert_eq!(fs::read_to_string(spot.backing.join("f")).unwrap(), helper);
    }
    // The exit codes of mount(8): 1 for a mistake, 32 for a mount that failed.
    let wrong = run("mount.fuse.forebay", &[backing, at, "-o", "tier=/x,sync"]).expect(1);
    assert!(wrong.stderr.contains("sync"), "{wrong:#?}");
    run("mount.fuse.forebay", &[backing, at, "-f", "-o", "tier=/nowhere"]).ok();
    assert!(!is_mounted(&spot.at), "a fake one");
}

/// mount(8) and umount(8) themselves, with the helpers in their places.
#[test]
fn a_line_of_fstab_is_mounted_and_unmounted() {
    needs_forebay!();
    if !is_root() {
        skip!("needs root for a mount namespace");
    }
    let bed = Bed::new(Tier::Disk);
    let spot = spot(&bed, "one");
    let links = bed.dir("sbin");
    for name in ["mount.fuse.forebay", "umount.fuse.forebay"] {
        symlink(binary(), links.join(name)).unwrap();
    }
    let fstab = bed.root.join("fstab");
    let (backing, at, tier) = (text(&spot.backing), text(&spot.at), text(&spot.tier));
    let line = format!("{backing} {at} fuse.forebay tier={tier},noauto,_netdev,max-age=1h 0 0\n");
    fs::write(&fstab, line).unwrap();
    let script = r#"
        mount -t overlay none -o "lowerdir=$0:/usr/sbin" /usr/sbin || exit 77
        mount -T "$1" "$2"
        echo bytes > "$2/f"
        umount "$2"
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-euc", script]);
    let out = finish(command.args([text(&links), text(&fstab), at]), PATIENCE);
    if out.code == Some(77) {
        skip!("no overlay to put the helpers where mount(8) looks");
    }
    out.ok();
    // The second command waits for the drain, which umount(2) would not do.
    assert_eq!(fs::read(spot.backing.join("f")).unwrap(), b"bytes\n");
    proof!("a line of fstab");
}

#[test]
fn rules_of_run_time_can_be_kept() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let mnt = text(&mounted.path).to_string();
    let add = |words: &[&str]| mounted.forebay(&[&["rules", "add", &mnt], words].concat()).ok();
    add(&["models", "allow", "--path", "models/**", "--quota", "50GiB", "--pin"]);
    add(&["scans", "deny-reads", "--path", "a \"b\"", "--uid", "7", "--size-min", "1MiB"]);
    add(&["job", "deny", "--pid", &std::process::id().to_string()]);
    let saved = mounted.forebay(&["rules", "save", &mnt]).ok();
    assert!(saved.stderr.contains("left out"), "{saved:#?}");
    assert!(saved.stderr.contains("for every mount") && saved.stderr.contains("not saved yet"));
    let alone = mounted.forebay(&["rules", "save", &mnt, "--mount", "project"]).ok();
    assert!(alone.stdout.starts_with("[[mount.project.rule]]"), "{alone:#?}");
    assert!(alone.stderr.contains("for the mount project alone"), "{alone:#?}");
    let list = |mounted: &forebay_tests::Mounted| {
        let mut rules = mounted.forebay(&["rules", "list", "--json", &mnt]).ok().json();
        let rules = rules.as_array_mut().unwrap();
        rules.retain(|rule| rule["pid"].is_null());
        rules.iter().map(|rule| (rule["name"].clone(), rule["path"].clone())).collect::<Vec<_>>()
    };
    let before = list(&mounted);
    mounted.umount();
    let config = write_config(&bed, &saved.stdout);
    let mounted = bed.mount(&["--config", text(&config)]);
    assert_eq!((list(&mounted), before.len()), (before, 2));
    mounted.umount();
    proof!("{}", saved.stdout.lines().next().unwrap_or_default());
}
