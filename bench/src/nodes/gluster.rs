//! The same work through GlusterFS: a brick on the home's host, and a client on each of two hosts. Both are
//! started from volume descriptions of their own, without its management daemon.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::between::{ASKER, HOME, two};
use super::cluster::Cluster;
use crate::guard::go_on;
use crate::load::{self, Caching, Finish, MIB, RANDOM_BLOCK};
use crate::mounts::{Daemon, start_apart};
use crate::report::{Finding, Report};
use crate::run::{On, Rounds, Run};

const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 24_907;

/// A brick, killed when dropped: its data are a benchmark's.
struct Brick(Child);

impl Drop for Brick {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A volume shared by two hosts, and its mount point on each.
struct Gluster {
    // Dropped in this order.
    mounts: [Daemon; 2],
    at: [PathBuf; 2],
    brick: Brick,
}

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    for tool in ["glusterfsd", "glusterfs"] {
        let found = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", tool]).output()?;
        if !found.status.success() {
            let why = format!("{tool} is missing (Debian: glusterfs-server)");
            return report.skip("gluster", &why);
        }
    }
    let (len, count) = (run.pick(512, 128) * MIB, run.pick(1000, 200));
    let cluster = two(run, len)?;
    let export = run.fresh(On::Tmpfs, "export")?;
    load::write_seq(&export.join("data"), len, Caching::Buffered, Finish::Close)?;
    let gluster = serve(run, &cluster, &export)?;
    let at = |who: usize, host: usize, name: &str| match who {
        0 => cluster.at(host, name),
        _ => gluster.at[host].join(name),
    };
    let [read, write, made, seen] = run.alternate(2, Rounds::Few, |who, round| {
        let data = at(who, ASKER, "data");
        let read = load::read_seq(&data, len, Caching::Buffered)?;
        let start = Instant::now();
        let file = File::options().write(true).open(&data)?;
        load::fill(&file, len)?;
        drop(file);
        let rates = [read, start.elapsed()].map(|time| load::mb_per_sec(len, time));
        let name = format!("small-{round}");
        fs::create_dir(at(who, ASKER, &name))?;
        let made = load::write_small(&at(who, ASKER, &name), count, RANDOM_BLOCK, 1)?;
        let seen = load::read_small(&at(who, HOME, &name), count, 1)?;
        fs::remove_dir_all(at(who, ASKER, &name))?;
        Ok([rates[0], rates[1], 1e6 / made, 1e6 / seen])
    })?;
    let Gluster { mounts, brick, .. } = gluster;
    drop(mounts);
    drop(brick);
    let names = ["forebay", "glusterfs"].map(str::to_owned);
    let sequential = format!("{} MiB, 1 MiB at a time, of a file of the other node's", len / MIB);
    let small = format!("{count} files of {RANDOM_BLOCK} bytes");
    for (name, state, unit, samples) in [
        ("read-seq", sequential.clone(), "MB/s", read),
        ("write-seq", sequential, "MB/s", write),
        ("create", format!("{small} made by one node"), "files/s", made),
        ("read-small", format!("{small} that the other node has made"), "files/s", seen),
    ] {
        let case = format!("nodes-gluster/{name}");
        report.add(Finding::new(&case, &state, unit, &names, &samples))?;
    }
    fs::remove_dir_all(&export)?;
    Ok(())
}

fn serve(run: &Run, cluster: &Cluster, export: &Path) -> Result<Gluster> {
    let dir = run.fresh(On::Disk, "gluster")?;
    let address = cluster.host(HOME).address();
    let (brick, client) = (dir.join("brick.vol"), dir.join("client.vol"));
    fs::write(&brick, brick_of(export, &address))?;
    fs::write(&client, client_of(&address))?;
    let start = |program: &str, name: &str, described: &Path| {
        let mut command = Command::new(program);
        command.arg("-N").arg("-f").arg(described).arg("-l").arg(dir.join(format!("{name}.log")));
        command.arg("--pid-file").arg(dir.join(format!("{name}.pid")));
        command
    };
    let mut command = start("glusterfsd", "brick", &brick);
    let command = cluster.host(HOME).put(&mut command);
    let mut brick = Brick(start_apart(command, &dir.join("brick.out"))?);
    let begun = Instant::now();
    // The brick logs when it listens; a client that comes before waits for seconds.
    while !fs::read_to_string(dir.join("brick.log"))
        .is_ok_and(|log| log.contains("listening on port"))
    {
        go_on()?;
        if brick.0.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
            bail!("glusterfsd does not serve: see {}", dir.join("brick.log").display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mount = |host: usize| -> Result<(Daemon, PathBuf)> {
        let at = run.fresh(On::Disk, &format!("gluster-{host}"))?;
        let name = format!("client-{host}");
        let mut command = start("glusterfs", &name, &client);
        let command = cluster.host(host).put(command.arg(&at));
        let daemon = Daemon::start(command, &at, &dir.join(format!("{name}.out")))?;
        Ok((daemon, at))
    };
    let (home, asker) = (mount(HOME)?, mount(ASKER)?);
    Ok(Gluster { mounts: [home.0, asker.0], at: [home.1, asker.1], brick })
}

fn volume(name: &str, kind: &str, options: &str, below: &str) -> String {
    let below = if below.is_empty() { String::new() } else { format!("  subvolumes {below}\n") };
    format!("volume {name}\n  type {kind}\n{options}{below}end-volume\n")
}

fn brick_of(export: &Path, address: &str) -> String {
    let server = format!(
        "  option transport-type tcp\n  option transport.socket.bind-address {address}\n  \
         option transport.socket.listen-port {PORT}\n  option auth.addr.brick.allow *\n"
    );
    [
        volume("posix", "storage/posix", &format!("  option directory {}\n", export.display()), ""),
        volume("locks", "features/locks", "", "posix"),
        volume("brick", "performance/io-threads", "", "locks"),
        volume("server", "protocol/server", &server, "brick"),
    ]
    .concat()
}

/// The client's volume description, with the layers that GlusterFS's own volumes have.
fn client_of(address: &str) -> String {
    let client = format!(
        "  option transport-type tcp\n  option remote-host {address}\n  option remote-port {PORT}\n  \
         option remote-subvolume brick\n"
    );
    [
        volume("client", "protocol/client", &client, ""),
        volume("write-behind", "performance/write-behind", "", "client"),
        volume("read-ahead", "performance/read-ahead", "", "write-behind"),
        volume("quick-read", "performance/quick-read", "", "read-ahead"),
        volume("md-cache", "performance/md-cache", "", "quick-read"),
    ]
    .concat()
}
