//! PostgreSQL under pgbench's TPC-B-like load, the data twenty times its shared buffers. It refuses
//! to run as root, so it runs as the user `postgres` then.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::database::{Server, System, output, program};
use super::series::Interval;

pub const SYSTEM: System = System { name: "postgresql", prepare, start, load };

/// 15 MB per unit of scale.
const SCALE: usize = 11;
const CLIENTS: usize = 4;

fn tool(name: &str) -> Command {
    let newest = std::fs::read_dir("/usr/lib/postgresql")
        .ok()
        .and_then(|dirs| dirs.flatten().map(|dir| dir.path().join("bin")).max());
    let place = newest.unwrap_or_default();
    let path = program(name, &["/usr/bin", &place.to_string_lossy()]);
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command
}

/// Gives the data to the server's user, who must own it.
fn give(dir: &Path) -> Result<()> {
    // SAFETY: as above.
    if unsafe { libc::geteuid() } == 0 {
        output(Command::new("chown").arg("-R").arg("postgres:postgres").arg(dir))?;
    }
    Ok(())
}

fn prepare(data: &Path, sockets: &Path) -> Result<()> {
    give(data)?;
    let at = format!("--pgdata={}", data.display());
    output(
        tool("initdb")
            .args(["--auth=trust", "--no-sync", "--username=bench"])
            .arg(at)
            .current_dir("/"),
    )?;
    let server = start_with(data, sockets, &["-c", "fsync=off", "-c", "shared_buffers=256MB"])?;
    output(
        pgbench(sockets)
            .args(["--initialize", "--quiet", "--scale", &SCALE.to_string()])
            .arg("postgres"),
    )?;
    server.stop()
}

fn start(data: &Path, sockets: &Path) -> Result<Server> {
    let small = ["-c", "shared_buffers=8MB", "-c", "checkpoint_timeout=30s"];
    start_with(data, sockets, &small)
}

fn start_with(data: &Path, sockets: &Path, more: &[&str]) -> Result<Server> {
    give(sockets)?;
    let log = sockets.join("postgres.log");
    let mut command = tool("postgres");
    command
        .arg("-D")
        .arg(data)
        .args(["-c", "listen_addresses="])
        .arg("-c")
        .arg(format!("unix_socket_directories={}", sockets.display()))
        .args(["-c", "max_wal_size=256MB", "-c", "autovacuum=off"])
        .args(more)
        .current_dir("/");
    let answers = || {
        let asked = pgbench(sockets).args(["--version"]).output();
        asked.is_ok()
            && tool("psql")
                .args(["--username=bench", "--command=select 1", "postgres"])
                .arg(format!("--host={}", sockets.display()))
                .current_dir("/")
                .output()
                .is_ok_and(|done| done.status.success())
    };
    Server::start(&mut command, &log, libc::SIGQUIT)?.until_ready(&log, answers)
}

fn pgbench(sockets: &Path) -> Command {
    let mut command = Command::new("pgbench");
    command.arg(format!("--host={}", sockets.display())).arg("--username=bench");
    command
}

fn load(sockets: &Path, secs: u64) -> Result<Vec<Interval>> {
    let mut command = pgbench(sockets);
    command
        .args(["--no-vacuum", "--progress=1", "--random-seed=7", "--jobs=2"])
        .arg(format!("--client={CLIENTS}"))
        .arg(format!("--time={secs}"))
        .arg("postgres");
    Ok(output(&mut command)?.lines().filter_map(parse).collect())
}

/// `progress: 1.0 s, 345.6 tps, lat 11.5 ms stddev 4.0, 0 failed`
fn parse(line: &str) -> Option<Interval> {
    let mut parts = line.strip_prefix("progress: ")?.split(", ");
    let first = |part: Option<&str>| -> Option<f64> { part?.split(' ').next()?.parse().ok() };
    let end = first(parts.next())?;
    let rate = first(parts.next())?;
    let mut words = parts.next()?.split(' ').skip(1);
    let mean: f64 = words.next()?.parse().ok()?;
    let deviation: f64 = words.nth(2).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    Some(Interval {
        at: end - 1.0,
        seconds: 1.0,
        ops: rate.round() as u64,
        typical_ns: (mean * 1e6) as u64,
        // pgbench reports no percentile per interval: for a normal distribution it would be this.
        high_ns: ((mean + 1.645 * deviation) * 1e6) as u64,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_interval_of_pgbench() {
        let line = "progress: 2.0 s, 345.6 tps, lat 11.5 ms stddev 4.0, 0 failed";
        let one = super::parse(line).unwrap();
        assert_eq!(
            (one.at, one.ops, one.typical_ns, one.high_ns),
            (1.0, 346, 11_500_000, 18_080_000)
        );
        assert!(super::parse("transaction type: TPC-B").is_none());
    }
}
