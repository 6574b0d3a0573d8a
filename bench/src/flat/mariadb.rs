//! MariaDB under sysbench's OLTP read-write, rows chosen by Pareto's law, the data twenty times the
//! buffer pool.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::database::{Server, System, output, program};
use super::series::Interval;

pub const SYSTEM: System = System { name: "mariadb", prepare, start: start_durable, load };

const TABLES: usize = 4;
/// Some 230 bytes per row with its index: 160 MB in all.
const ROWS: usize = 170_000;
const CLIENTS: usize = 4;

fn prepare(data: &Path, sockets: &Path) -> Result<()> {
    let install = program("mariadb-install-db", &["/usr/bin"]);
    let at = format!("--datadir={}", data.display());
    output(Command::new(install).args(["--no-defaults", "--user=root", "--skip-test-db"]).arg(at))?;
    let fast = ["--innodb-buffer-pool-size=512M", "--innodb-flush-log-at-trx-commit=0"];
    let server = start(data, sockets, &fast)?;
    let socket = format!("--socket={}", sockets.join("db").display());
    let client = program("mariadb", &["/usr/bin"]);
    output(Command::new(client).args(["--no-defaults", &socket, "-e", "create database sbtest"]))?;
    output(sysbench(sockets).args(["--threads=2", "prepare"]))?;
    server.stop()
}

/// Starts a server for steady rates. Several purge threads wear each other out in so small a pool:
/// on any directory the rate would swing between half and double from second to second. A page
/// cleaner that looks for more free pages than the pool has costs another eighth.
fn start_durable(data: &Path, sockets: &Path) -> Result<Server> {
    let small = ["--innodb-buffer-pool-size=8M", "--innodb-lru-scan-depth=128"];
    let steady = ["--innodb-flush-log-at-trx-commit=1", "--innodb-purge-threads=1"];
    start(data, sockets, &[small, steady].concat())
}

fn start(data: &Path, sockets: &Path, more: &[&str]) -> Result<Server> {
    let log = sockets.join("mariadb.log");
    let mut command = Command::new(program("mariadbd", &["/usr/sbin"]));
    command
        .args(["--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables"])
        .args(["--innodb-log-file-size=64M", "--performance-schema=off", "--skip-log-bin"])
        .arg(format!("--datadir={}", data.display()))
        .arg(format!("--socket={}", sockets.join("db").display()))
        .arg(format!("--pid-file={}", sockets.join("pid").display()))
        .arg(format!("--tmpdir={}", sockets.display()))
        .args(more);
    let _ = std::fs::remove_file(sockets.join("db"));
    let answers = || std::os::unix::net::UnixStream::connect(sockets.join("db")).is_ok();
    Server::start(&mut command, &log, libc::SIGKILL)?.until_ready(&log, answers)
}

fn sysbench(sockets: &Path) -> Command {
    let mut command = Command::new("sysbench");
    command
        .args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root"])
        .arg(format!("--mysql-socket={}", sockets.join("db").display()))
        .arg(format!("--tables={TABLES}"))
        .arg(format!("--table-size={ROWS}"));
    command
}

fn load(sockets: &Path, secs: u64) -> Result<Vec<Interval>> {
    let mut command = sysbench(sockets);
    command
        .args(["--rand-type=pareto", "--rand-seed=7", "--report-interval=1"])
        .arg(format!("--threads={CLIENTS}"))
        .arg(format!("--time={secs}"))
        .arg("run");
    Ok(output(&mut command)?.lines().filter_map(parse).collect())
}

/// `[ 3s ] thds: 4 tps: 120.00 qps: 2400.00 (...) lat (ms,95%): 41.10 err/s: 0.00 ...`
fn parse(line: &str) -> Option<Interval> {
    let after = |key: &str| -> Option<f64> {
        line.split_once(key)?.1.split_whitespace().next()?.parse().ok()
    };
    let end: f64 = line.strip_prefix('[')?.split_once("s ]")?.0.trim().parse().ok()?;
    let high = after("95%): ")?;
    Some(Interval {
        at: end - 1.0,
        seconds: 1.0,
        ops: after("tps: ")?.round() as u64,
        typical_ns: (high * 1e6) as u64,
        high_ns: (high * 1e6) as u64,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_interval_of_sysbench() {
        let line = "[ 3s ] thds: 4 tps: 120.40 qps: 2400.00 (r/w/o: 1/2/3) lat (ms,95%): 41.10 err/s: 0.00 reconn/s: 0.00";
        let one = super::parse(line).unwrap();
        assert_eq!((one.at, one.ops, one.high_ns), (2.0, 120, 41_100_000));
        assert!(super::parse("Running the test").is_none());
    }
}
