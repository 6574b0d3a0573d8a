//! The same reads from an NFS server (nfs-ganesha) on the home's host, by a client in user space (libnfs'
//! nfs-cat), beside forebay's by `cat`: whole programs, since the kernel's client may be missing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::between::{ASKER, HOME, two};
use super::cluster::Cluster;
use crate::guard::go_on;
use crate::load::{self, Caching, Finish, MIB};
use crate::mounts::start_apart;
use crate::report::{Finding, Report};
use crate::run::{On, Rounds, Run};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server, killed when dropped: it has written nothing.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    for (tool, package) in [("ganesha.nfsd", "nfs-ganesha-vfs"), ("nfs-cat", "libnfs-utils")] {
        let found = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", tool]).output()?;
        if !found.status.success() {
            return report.skip("nfs", &format!("{tool} is missing (Debian: {package})"));
        }
    }
    let len = run.pick(512, 128) * MIB;
    let cluster = two(run, len)?;
    let export = run.fresh(On::Tmpfs, "export")?;
    load::write_seq(&export.join("data"), len, Caching::Buffered, Finish::Close)?;
    let server = serve(run, &cluster, &export)?;
    let url = format!("nfs://{}/export/data?version=4", cluster.host(HOME).address());
    let there = cluster.at(ASKER, "data");
    let [samples] = run.alternate(2, Rounds::Few, |who, _| {
        let mut command = match who {
            0 => Command::new("cat"),
            _ => Command::new("nfs-cat"),
        };
        match who {
            0 => command.arg(&there),
            _ => command.arg(&url),
        };
        Ok([load::mb_per_sec(len, copied(&cluster, &mut command, len)?)])
    })?;
    drop(server);
    let state = format!("{} MiB by one program, piped to a reader that counts", len / MIB);
    let names = ["cat", "nfs-cat"].map(str::to_owned);
    report.add(Finding::new("nodes-nfs/read-seq", &state, "MB/s", &names, &samples))?;
    fs::remove_dir_all(&export)?;
    Ok(())
}

/// The time that a program on the asking node takes to print this many bytes.
fn copied(cluster: &Cluster, command: &mut Command, len: u64) -> Result<Duration> {
    let start = Instant::now();
    let command = cluster.host(ASKER).put(command);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("it is piped")?;
    let mut count = std::io::BufReader::with_capacity(MIB as usize, output);
    let found = std::io::copy(&mut count, &mut std::io::sink())?;
    let status = child.wait()?;
    ensure!(status.success() && found == len, "{command:?}: {found} bytes of {len}, {status}");
    Ok(start.elapsed())
}

fn serve(run: &Run, cluster: &Cluster, export: &Path) -> Result<Server> {
    let dir = run.fresh(On::Disk, "ganesha")?;
    let config = dir.join("ganesha.conf");
    fs::write(&config, configuration(&dir, export, &cluster.host(HOME).address()))?;
    let mut command = Command::new("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(&config).arg("-L").arg(dir.join("log"));
    command.args(["-N", "NIV_EVENT"]).arg("-p").arg(dir.join("pid"));
    let command = cluster.host(HOME).put(&mut command);
    let mut server = Server(start_apart(command, &dir.join("out"))?);
    let url = format!("nfs://{}/export?version=4", cluster.host(HOME).address());
    let begun = Instant::now();
    loop {
        go_on()?;
        let mut list = Command::new("nfs-ls");
        let list = cluster.host(ASKER).put(list.arg(&url));
        if list.output().context("cannot start nfs-ls")?.status.success() {
            return Ok(server);
        }
        let ended = server.0.try_wait()?;
        if ended.is_some() || begun.elapsed() > PATIENCE {
            bail!("ganesha.nfsd does not serve ({ended:?}): {}", last_line(&dir.join("log"))?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn last_line(log: &PathBuf) -> Result<String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut File::open(log)?, &mut text)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

fn configuration(dir: &Path, export: &Path, address: &str) -> String {
    format!(
        "NFS_CORE_PARAM {{ Bind_addr = {address}; NFS_Port = 2049; Protocols = 4; Enable_NLM = false; \
         Enable_RQUOTA = false; fsid_device = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryRoot = {dir}; Only_Numeric_Owners = true; }}\n\
         EXPORT {{ Export_Id = 7; Path = {export}; Pseudo = /export; Filesystem_id = 152.152; \
         Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
        dir = dir.display(),
        export = export.display(),
    )
}
