//! The first program of a test's own machine (see `forebay_tests::uml`): mounts the usual file systems, loads
//! modules, runs one command, records its exit status, and switches the machine off.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;

use forebay_tests::uml::{BED, Job, TOP};
use rustix::mount::{MountFlags, mount};

fn main() {
    if std::process::id() != 1 {
        eprintln!("guest: it is the first program of a machine, and of nothing else");
        std::process::exit(2);
    }
    match prepared() {
        Ok(job) => {
            let limit = job.limit();
            thread::spawn(move || {
                thread::sleep(limit);
                leave("it took too long");
            });
            leave(&run(&job).unwrap_or_else(|e| format!("cannot be run: {e}")));
        }
        Err(why) => leave(&why),
    }
}

fn prepared() -> Result<Job, String> {
    let bed = std::env::var("FBT_BED").map_err(|e| format!("FBT_BED: {e}"))?;
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")] {
        put(kind, kind, at, "")?;
    }
    put("cgroup2", "cgroup2", "/sys/fs/cgroup", "")?;
    std::fs::create_dir_all("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
    put("tmpfs", "tmpfs", "/dev/shm", "")?;
    for at in [BED, "/run/tmp"] {
        std::fs::create_dir(at).map_err(|e| format!("{at}: {e}"))?;
    }
    put("hostfs", "none", BED, &bed)?;
    Job::read(Path::new(BED))
}

fn put(kind: &str, source: &str, at: &str, data: &str) -> Result<(), String> {
    let data = std::ffi::CString::new(data).expect("no NUL in the names of tests");
    mount(source, at, kind, MountFlags::empty(), data.as_c_str()).map_err(|e| format!("{at}: {e}"))
}

fn run(job: &Job) -> io::Result<String> {
    for module in &job.modules {
        load(module).map_err(|e| io::Error::other(format!("{module}: {e}")))?;
    }
    std::fs::write(Path::new(BED).join("up"), "")?;
    let file = |name: &str| std::fs::File::create(Path::new(BED).join(name));
    let mut command = Command::new(&job.program);
    command.args(&job.args).envs(&job.env).env("TMPDIR", "/run/tmp").env("HOME", "/run");
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env(TOP, "1");
    let child = command.stdout(file("out")?).stderr(file("err")?).spawn()?;
    Ok(ended(child.id() as i32)?.to_string())
}

/// Waits for the command; processes whose parent has ended belong to this one, and are reaped too.
fn ended(pid: i32) -> io::Result<ExitStatus> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        match unsafe { libc::waitpid(-1, &raw mut status, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            who if who == pid => return Ok(ExitStatus::from_raw(status)),
            _ => {}
        }
    }
}

fn load(module: &str) -> io::Result<()> {
    let file = std::fs::File::open(module)?;
    // SAFETY: an open file, and an empty string that ends in NUL.
    let done = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn leave(how: &str) -> ! {
    if std::fs::write(Path::new(BED).join("ended"), how).is_err() {
        eprintln!("guest: {how}");
    }
    // SAFETY: no memory is passed.
    unsafe {
        libc::sync();
        libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF);
    }
    std::process::exit(1);
}
