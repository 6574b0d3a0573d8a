//! The Debian package in a clean root: installed, used, removed.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::images::unmount;
use forebay_tests::{Bed, Out, Tier, finish, needs_forebay, needs_tools, proof, text, tool};

/// Fetching and unpacking a minimal Debian.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(900);

/// A Debian of its own below a test's directory; mounts in it are gone when it is dropped.
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

/// Where this machine gets its packages from.
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

/// A program built as the package says finds the library, and the library that nobody answers.
fn speaks_datawarp(root: &Root, library: &str) {
    let pkgconfig = root.path.join(library.trim_start_matches('/'));
    let pkgconfig = pkgconfig.with_file_name("pkgconfig");
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "cray-datawarp"]).env("PKG_CONFIG_PATH", pkgconfig);
    ask.env("PKG_CONFIG_SYSROOT_DIR", &root.path);
    // Paths that a compiler knows are left out else, and these are of another root.
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
    // A mount as mount(8) makes it, and the node daemon, without anything of the outside.
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
