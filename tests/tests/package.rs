//! The Debian package in a clean root: installed, used, replaced by a newer one, removed.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::images::unmount;
use forebay_tests::{Bed, Out, Tier, finish, needs_forebay, needs_tools, proof, text, tool};

/// The time to fetch and unpack a minimal Debian.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(900);

/// A Debian below a test's directory; mounts in it are removed when it is dropped.
struct Root {
    path: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Root {
    fn lay(path: PathBuf) -> Root {
        let mut bootstrap = Command::new("debootstrap");
        bootstrap.args(["--variant=minbase", "--include=fuse3,e2fsprogs", "bookworm"]).arg(&path);
        bootstrap.args(mirror());
        finish(&mut bootstrap, LONGEST).ok();
        let mut root = Root { path, mounted: Vec::new() };
        for (kind, name) in [("proc", "proc"), ("sysfs", "sys"), ("devtmpfs", "dev")] {
            let at = root.path.join(name);
            tool("mount", &["-t", kind, "none", text(&at)]).ok();
            root.mounted.push(at);
        }
        root
    }

    fn run(&self, script: &str) -> Out {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "chroot", text(&self.path)]);
        command.args(["/bin/sh", "-euc", script]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        finish(&mut command, LONGEST)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for at in self.mounted.iter().rev() {
            let _ = unmount(at, true);
        }
    }
}

/// The source of this machine's packages.
fn mirror() -> Option<String> {
    let out = tool("apt-get", &["indextargets", "--format", "$(REPO_URI)", "Codename: bookworm"]);
    out.stdout.lines().next().map(|line| line.trim_end_matches('/').to_string())
}

fn package(at: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/build-deb");
    let binary = forebay_tests::binary();
    let built = tool("sh", &[text(&script), text(binary), text(at)]).ok();
    PathBuf::from(built.stdout.trim())
}

/// A program built according to the package finds the library, and the library finds no daemon.
fn speaks_datawarp(root: &Root, library: &str) {
    let pkgconfig = root.path.join(library.trim_start_matches('/'));
    let pkgconfig = pkgconfig.with_file_name("pkgconfig");
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "cray-datawarp"]).env("PKG_CONFIG_PATH", pkgconfig);
    ask.env("PKG_CONFIG_SYSROOT_DIR", &root.path);
    // By default pkg-config omits paths that a compiler knows, and these are in another root.
    ask.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1").env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    let flags = finish(&mut ask, LONGEST).ok().stdout;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/datawarp.c");
    let mut cc = Command::new("cc");
    cc.arg(source).arg("-o").arg(root.path.join("tmp/datawarp"));
    finish(cc.args(flags.split_whitespace()), LONGEST).ok();
    let ran = root.run("/tmp/datawarp away /").ok();
    assert!(ran.stdout.contains("3 checks") && ran.stderr.is_empty(), "{ran:?}");
}

#[test]
fn the_package_is_installed_used_and_removed_in_a_clean_root() {
    needs_forebay!();
    needs_tools!("debootstrap", "dpkg-deb", "unshare", "cc", "pkg-config");
    let bed = Bed::new(Tier::Disk);
    let root = Root::lay(bed.root.join("debian"));
    let deb = package(&bed.root.join("deb"));
    std::fs::copy(&deb, root.path.join("tmp/forebay.deb")).unwrap();

    let lists = "dpkg-query -L forebay | sort";
    root.run("dpkg -i /tmp/forebay.deb").ok();
    let files = root.run(lists).ok().stdout;
    for file in [
        "/usr/bin/forebay",
        "/usr/sbin/mount.forebay",
        "/usr/share/man/man1/forebay-node.1.gz",
        "/usr/share/bash-completion/completions/forebay",
        "/usr/share/zsh/vendor-completions/_forebay",
        "/usr/share/fish/vendor_completions.d/forebay.fish",
        "/lib/systemd/system/forebay-node.service",
        "/lib/systemd/system/forebay@.service",
        "/usr/include/datawarp.h",
        "/usr/share/forebay/slurm/burst_buffer.lua",
        "/usr/share/forebay/slurm/job_submit.lua",
        "/usr/libexec/forebay/dw_wlm_cli",
        "/usr/share/lua/5.1/burst_buffer_forebay.lua",
    ] {
        assert!(files.lines().any(|line| line == file), "{file} is not in {files}");
    }
    let library = files.lines().find(|line| line.ends_with("/libdatawarp.so")).unwrap();
    speaks_datawarp(&root, library);
    // A mount made by mount(8), and the node daemon, using nothing from outside the root.
    let used = root.run(
        "mkdir -p /slow /mnt/fast
         mount -t forebay -o tier=/var/lib/tier /slow /mnt/fast
         echo words > /mnt/fast/file
         forebay umount /mnt/fast
         cat /slow/file
         forebay node --config /dev/null 2>/tmp/node.log & pid=$!
         trap 'kill $pid' EXIT
         for n in $(seq 100); do forebay node health >/dev/null 2>&1 && break; sleep 0.1; done
         forebay pools
         at=$(forebay instance create private s --capacity 16MiB)
         echo more > $at/file
         ! dpkg -r forebay >/tmp/refused 2>&1
         grep -q 'forebay instance list' /tmp/refused
         forebay instance destroy s
         trap - EXIT
         kill $pid; wait $pid
         cat /tmp/node.log",
    );
    let used = used.ok();
    assert!(used.stdout.lines().any(|line| line == "words"), "{used:?}");
    assert!(used.stdout.contains("s is gone"), "{used:?}");
    root.run("dpkg -r forebay && dpkg -P forebay").ok();
    let left =
        root.run("find / -xdev -name '*forebay*' -not -path '/tmp/*' -not -path '/proc/*'").ok();
    let left: Vec<&str> =
        left.stdout.lines().filter(|line| !line.starts_with("/var/lib/")).collect();
    assert!(left.iter().all(|line| line.starts_with("/run/forebay")), "{left:?}");
    proof!("{} files were installed and removed", files.lines().count());
}

/// The version that the binary under test prints.
fn version() -> String {
    let said = forebay_tests::forebay(&["--version"]).ok().stdout;
    said.split_whitespace().nth(1).expect("a version").to_string()
}

/// A higher version of the same length.
fn raised(version: &str) -> String {
    let (rest, last) = version.split_at(version.len() - 1);
    assert_ne!(last, "9", "a version that can be raised in its last digit");
    format!("{rest}9")
}

/// The package with a version that the next release could have: its binary prints it everywhere.
fn next_package(deb: &Path, at: &Path) -> PathBuf {
    let (old, new) = (version(), raised(&version()));
    let tree = at.join("tree");
    std::fs::create_dir_all(at).unwrap();
    tool("dpkg-deb", &["-R", text(deb), text(&tree)]).ok();
    let control = tree.join("DEBIAN/control");
    let there = std::fs::read_to_string(&control).unwrap();
    let newer = there.replace(&format!("Version: {old}"), &format!("Version: {new}"));
    assert_ne!(there, newer);
    std::fs::write(&control, newer).unwrap();
    let program = tree.join("usr/bin/forebay");
    let mut bytes = std::fs::read(&program).unwrap();
    let mut at_byte = 0;
    while let Some(found) = find(&bytes[at_byte..], old.as_bytes()) {
        at_byte += found;
        bytes[at_byte..at_byte + new.len()].copy_from_slice(new.as_bytes());
    }
    std::fs::write(&program, bytes).unwrap();
    let built = at.join(format!("forebay_{new}.deb"));
    tool("dpkg-deb", &["--root-owner-group", "-Znone", "-b", text(&tree), text(&built)]).ok();
    built
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The steps of a node's administrator: `dpkg -i` of the next version while jobs run, then the new
/// daemon, as the package's script starts it where systemd runs.
const UPGRADE: &str = r#"
    up() { # starts a node daemon and waits for it
        forebay node --config /dev/null 2>>/tmp/node.log & pid=$!
        for n in $(seq 300); do forebay node health >/dev/null 2>&1 && return; sleep 0.1; done
        echo "no daemon"; cat /tmp/node.log; exit 1
    }
    end() { kill $pid; wait $pid || true; }
    trap 'touch /tmp/go-on; end; cat /tmp/node.log >&2' EXIT
    mounts() { grep -E ' /run/forebay/mnt' /proc/self/mountinfo | cut -d' ' -f1,3,5 | sort; }
    workers() { # of this root
        for p in /proc/[0-9]*; do
            [ $p/root -ef / ] || continue
            tr '\0' ' ' 2>/dev/null <$p/cmdline | grep -q '^forebay stage-worker' && echo ${p#/proc/}
        done
        true
    }
    serves() { # the daemon that was started, with a program of that version
        forebay nodes --json | grep -q "\"pid\": $pid,"
        /proc/$pid/exe --version | grep -q " $1"
    }

    dpkg -i /tmp/old.deb
    # A mount of its own: the root of a chroot is none.
    mkdir -p /slow
    mount -t tmpfs slow /slow
    mkdir /slow/home
    head -c 25165824 /dev/urandom >/slow/big
    head -c 100000 /dev/urandom >/slow/little
    up
    serves $OLD
    at=$(forebay instance create private s --capacity 64MiB)
    cache=$(forebay instance create cache c --backing /slow/home --capacity 64MiB \
        --set preset=hold --set max-age=1h)
    for dir in $at $cache; do
        # A program of a job: it has a file open, and goes on when it is told to.
        sh -c 'exec 3>"$0/open"; echo before >&3
            while ! [ -e /tmp/go-on ]; do sleep 0.1; done; echo after >&3' $dir &
    done
    head -c 3000000 /dev/urandom >$cache/unflushed
    sum=$(md5sum <$cache/unflushed)
    for n in $(seq 50); do [ -s $at/open ] && [ -s $cache/open ] && break; sleep 0.1; done
    id=$(forebay stage in /slow/big $at/big --rate-max 2MiB/s --no-wait)
    for n in $(seq 100); do [ -n "$(workers)" ] && break; sleep 0.1; done
    mounts >/tmp/mounts.old; workers >/tmp/workers.old

    dpkg -i /tmp/new.deb
    forebay --version | grep -q $NEW
    # Until it is replaced, the old daemon serves with the program that it was started as.
    serves $OLD
    forebay stage in /slow/little $at/little
    cmp /slow/little $at/little
    forebay instance create private between --capacity 16MiB
    end
    up
    serves $NEW

    workers >/tmp/workers.new
    mounts | grep -v between >/tmp/mounts.new
    echo "one worker: $(cat /tmp/workers.old) $(cat /tmp/workers.new)"
    for what in workers mounts; do
        [ -s /tmp/$what.old ]
        cmp /tmp/$what.old /tmp/$what.new
    done
    forebay instance list
    [ "$(forebay instance list --json | grep -c '"state": "ready"')" = 3 ]
    # The names are home, the bytes are not.
    for file in open unflushed; do [ ! -s /slow/home/$file ]; done
    [ "$(md5sum <$cache/unflushed)" = "$sum" ]
    touch /tmp/go-on
    forebay stage wait $id
    cmp /slow/big $at/big
    for dir in $at $cache; do
        for n in $(seq 50); do grep -q after $dir/open && break; sleep 0.1; done
        [ "$(cat $dir/open)" = "$(printf 'before\nafter')" ]
    done
    for one in between s c; do forebay instance destroy $one --timeout 60s; done
    [ "$(cat /slow/home/open)" = "$(printf 'before\nafter')" ]
    [ "$(md5sum </slow/home/unflushed)" = "$sum" ]
    [ -z "$(mounts)" ]
    trap - EXIT
    end
    dpkg -r forebay
"#;

/// A newer package replaces an older one while a program has files open on a private space and on a
/// cache with dirty bytes, and a transfer runs: all of it goes on.
#[test]
fn a_newer_package_takes_over_from_an_older_one_under_running_jobs() {
    needs_forebay!();
    needs_tools!("debootstrap", "dpkg-deb", "unshare");
    let bed = Bed::new(Tier::Disk);
    let root = Root::lay(bed.root.join("debian"));
    let deb = package(&bed.root.join("deb"));
    let newer = next_package(&deb, &bed.root.join("newer"));
    std::fs::copy(&deb, root.path.join("tmp/old.deb")).unwrap();
    std::fs::copy(&newer, root.path.join("tmp/new.deb")).unwrap();
    let (old, new) = (version(), raised(&version()));
    let used = root.run(&format!("OLD={old} NEW={new}\n{UPGRADE}")).ok();
    let line = used.stdout.lines().find(|line| line.starts_with("one worker")).unwrap();
    proof!("{old} to {new}, {line}");
}

/// systemd's messages about a unit: it ignores lines that it does not know.
#[test]
fn systemd_understands_every_line_of_the_units() {
    needs_forebay!();
    needs_tools!("systemd-analyze");
    let bed = Bed::new(Tier::Disk);
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    // The program of the unit is not installed here.
    let unit = |from: &str, to: &str, more: &str| {
        let unit = std::fs::read_to_string(units.join(from)).unwrap();
        let at = bed.root.join(to);
        std::fs::write(&at, unit.replace("/usr/bin/forebay", "/bin/true") + more).unwrap();
        let out = tool("systemd-analyze", &["verify", "--man=no", text(&at)]);
        // A message about a part missing from this machine is not about the unit.
        let said = out.stderr.lines().filter(|line| line.contains(to)).map(str::to_string);
        said.collect::<Vec<_>>()
    };
    let bad = unit("forebay-node.service", "bad.service", "KillMode=process\n");
    assert!(bad.iter().any(|line| line.contains("KillMode")), "a mistake is told: {bad:?}");
    let node = unit("forebay-node.service", "forebay-node.service", "");
    // Versions before 254 do not know this setting.
    let old = |line: &&String| line.contains("DelegateSubgroup");
    assert_eq!(node.iter().find(|line| !old(line)), None, "{node:?}");
    assert_eq!(unit("forebay@.service", "forebay@fast.service", ""), [""; 0]);
}
