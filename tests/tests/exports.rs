//! Stock servers export the mount: NFS (nfs-ganesha) and SMB (Samba), with the kernel's caches
//! dropped in between, so that file handles must be found again.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Mounted, Out, PATIENCE, Proc, Rng, Tier, drop_caches, finish, free_port, needs_tools,
    proof, sample, text, within,
};

const BIG: usize = 40 << 20;

/// A server of its own process group, killed with its children.
struct Server {
    proc: Proc,
    log: PathBuf,
}

impl Server {
    fn start(command: &mut Command, log: PathBuf, port: u16) -> Server {
        let out = fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        // A group of its own: smbd kills its whole group when it ends.
        command.process_group(0);
        let mut server = Server { proc: Proc::spawn(command), log };
        within(PATIENCE, "the server listens", || {
            assert!(server.proc.running(), "the server ended: {}", server.log_text());
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: this process's own group, made with the child.
        unsafe { libc::kill(-self.proc.pid(), libc::SIGKILL) };
    }
}

/// A client's way to put and get files.
trait Client {
    fn put(&self, local: &Path, name: &str) -> Out;
    fn get(&self, name: &str, local: &Path) -> Out;
    fn list(&self) -> Out;
}

/// Reads and writes through the server while the mount flushes, evicts and loses its caches.
fn round_trips(bed: &Bed, mounted: &Mounted, client: &impl Client, sizes: (usize, usize)) {
    let local = bed.dir("local");
    let got = local.join("got");
    let check = |name: &str, want: &[u8]| {
        client.get(name, &got).ok();
        assert!(fs::read(&got).unwrap() == want, "{name} through the server");
        fs::remove_file(&got).unwrap();
    };
    let old = sample::file(&mounted.at("old"), 1, 3_000_000);
    check("old", &old);
    let mut kept = Vec::new();
    for round in 0..4u64 {
        let name = format!("put-{round}");
        let len = if round == 0 { sizes.0 } else { sizes.1 };
        let bytes = sample::file(&local.join(&name), 10 + round, len);
        client.put(&local.join(&name), &name).ok();
        assert!(fs::read(mounted.at(&name)).unwrap() == bytes, "{name} on the mount");
        kept.push((name, bytes));
        if round % 2 == 0 {
            mounted.flush();
            mounted.evict();
        }
        drop_caches();
        check("old", &old);
        for (name, bytes) in &kept {
            check(name, bytes);
        }
    }
    let list = client.list().ok().text();
    for name in ["old", "put-0", "put-3"] {
        assert!(list.contains(name), "{name} is not in the listing: {list}");
    }
    let changed = sample::file(&mounted.at("old"), 99, 100_000);
    drop_caches();
    within(PATIENCE, "the server sees the change", || {
        let ok = client.get("old", &got).code == Some(0);
        ok && fs::read(&got).is_ok_and(|now| now == changed)
    });
}

fn finish_bed(bed: &Bed, mounted: Mounted) {
    let seen = Tree::read(&bed.mnt);
    mounted.umount();
    seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
    proof!(
        "{} files, {} bytes through the server and on the backing store",
        seen.files(),
        seen.bytes()
    );
}

struct Nfs {
    port: u16,
}

impl Nfs {
    fn url(&self, name: &str) -> String {
        format!("nfs://127.0.0.1/fbb/{name}?version=4&nfsport={}", self.port)
    }
}

impl Client for Nfs {
    fn put(&self, local: &Path, name: &str) -> Out {
        let url = self.url(name);
        finish(Command::new("nfs-cp").args([text(local), &url]), PATIENCE)
    }

    fn get(&self, name: &str, local: &Path) -> Out {
        let url = self.url(name);
        finish(Command::new("nfs-cp").args([&url, text(local)]), PATIENCE)
    }

    fn list(&self) -> Out {
        finish(Command::new("nfs-ls").arg(self.url("")), PATIENCE)
    }
}

#[test]
fn nfs_ganesha_exports_the_mount() {
    needs_tools!("ganesha.nfsd", "nfs-cp");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let port = free_port();
    let dir = bed.dir("ganesha");
    let config = dir.join("ganesha.conf");
    fs::write(&config, ganesha_config(&dir, &bed.mnt, port)).unwrap();
    let mut command = Command::new("ganesha.nfsd");
    command.args(["-F", "-f", text(&config), "-L", text(&dir.join("log"))]);
    command.args(["-N", "NIV_EVENT", "-p", text(&dir.join("pid"))]);
    let server = Server::start(&mut command, dir.join("out"), port);
    let client = Nfs { port };
    within(PATIENCE, "the export is up", || client.list().code == Some(0));
    // libnfs 4 cannot write a page or more by NFSv4, whatever the export: small puts here, large
    // ones through Samba.
    round_trips(&bed, &mounted, &client, (3000, 1000));
    drop(server);
    finish_bed(&bed, mounted);
}

fn ganesha_config(dir: &Path, mnt: &Path, port: u16) -> String {
    format!(
        "NFS_CORE_PARAM {{ Bind_addr = 127.0.0.1; NFS_Port = {port}; Protocols = 4; Enable_NLM = false; \
         Enable_RQUOTA = false; fsid_device = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryRoot = {dir}; Only_Numeric_Owners = true; }}\n\
         EXPORT {{ Export_Id = 7; Path = {mnt}; Pseudo = /fbb; Filesystem_id = 152.152; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}\n",
        dir = dir.display(),
        mnt = mnt.display(),
    )
}

struct Smb {
    port: u16,
    config: PathBuf,
}

impl Smb {
    fn run(&self, commands: &str) -> Out {
        let mut client = Command::new("smbclient");
        client.args(["-s", text(&self.config), "-p", &self.port.to_string(), "-N"]);
        client.args(["-U", "nobody%", "//127.0.0.1/fbb", "-c", commands]);
        finish(&mut client, PATIENCE)
    }
}

impl Client for Smb {
    fn put(&self, local: &Path, name: &str) -> Out {
        self.run(&format!("put {} {name}", local.display()))
    }

    fn get(&self, name: &str, local: &Path) -> Out {
        self.run(&format!("get {name} {}", local.display()))
    }

    fn list(&self) -> Out {
        self.run("ls")
    }
}

#[test]
fn samba_exports_the_mount() {
    needs_tools!("smbd", "smbclient");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let port = free_port();
    let dir = bed.dir("samba");
    let config = dir.join("smb.conf");
    fs::write(&config, samba_config(&dir, &bed.mnt, port)).unwrap();
    let mut command = Command::new("smbd");
    command.args(["--foreground", "--no-process-group", "-s", text(&config), "--debug-stdout"]);
    let server = Server::start(&mut command, dir.join("out"), port);
    let client = Smb { port, config };
    within(PATIENCE, "the share is up", || client.list().code == Some(0));
    round_trips(&bed, &mounted, &client, (BIG, 20_000));
    rename_and_remove(&client, &mounted);
    drop(server);
    finish_bed(&bed, mounted);
}

fn rename_and_remove(client: &Smb, mounted: &Mounted) {
    client.run("mkdir d; rename put-1 d/renamed; rm put-2").ok();
    drop_caches();
    assert!(fs::read(mounted.at("d/renamed")).unwrap() == Rng::new(11).bytes(20_000));
    assert!(!mounted.at("put-2").exists() && !mounted.at("put-1").exists());
}

fn samba_config(dir: &Path, mnt: &Path, port: u16) -> String {
    let dir = dir.display();
    format!(
        "[global]\n interfaces = 127.0.0.1\n bind interfaces only = yes\n smb ports = {port}\n \
         private dir = {dir}\n lock directory = {dir}\n state directory = {dir}\n cache directory = {dir}\n \
         pid directory = {dir}\n ncalrpc dir = {dir}/ncalrpc\n server role = standalone server\n \
         map to guest = Bad User\n guest account = root\n disable netbios = yes\n load printers = no\n\
         [fbb]\n path = {mnt}\n read only = no\n guest ok = yes\n force user = root\n",
        mnt = mnt.display(),
    )
}

/// The basis of every server, without one: a handle of a file finds it again after the kernel
/// forgot it.
#[test]
fn file_handles_outlive_the_kernels_caches() {
    needs_tools!("sh");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let mut handles = Vec::new();
    for i in 0..50u64 {
        let path = mounted.at(format!("d{}/e{}/f{i}", i % 3, i % 2));
        sample::file(&path, i, 5000);
        handles.push(handle_of(&path));
    }
    let root = fs::File::open(&bed.mnt).unwrap();
    for evict in [false, true] {
        if evict {
            mounted.flush();
            mounted.evict();
        }
        drop_caches();
        for (i, handle) in handles.iter().enumerate() {
            let mut file = open_handle(&root, handle);
            let mut now = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut now).unwrap();
            assert!(now == Rng::new(i as u64).bytes(5000), "handle of file {i}");
        }
    }
    drop(root);
    fs::remove_file(mounted.at("d0/e0/f0")).unwrap();
    finish_bed(&bed, mounted);
}

#[repr(C)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { len: 128, kind: 0, bytes: [0; 128] };
    let mut mount_id = 0;
    let path = forebay_tests::sys::c(path);
    // SAFETY: the structure has the layout of file_handle with room for the 128 bytes it claims.
    let done = unsafe {
        let handle = (&raw mut handle).cast::<libc::file_handle>();
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle, &mut mount_id, 0)
    };
    forebay_tests::sys::check(done).expect("name_to_handle_at");
    handle
}

fn open_handle(root: &fs::File, handle: &Handle) -> fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: as above; the call does not change the handle.
    let fd = unsafe {
        let handle = (&raw const *handle).cast_mut().cast::<libc::file_handle>();
        libc::open_by_handle_at(root.as_raw_fd(), handle, libc::O_RDONLY | libc::O_CLOEXEC)
    };
    let fd = forebay_tests::sys::check(fd).expect("open_by_handle_at");
    // SAFETY: a new descriptor without another owner.
    unsafe { fs::File::from_raw_fd(fd as i32) }
}
