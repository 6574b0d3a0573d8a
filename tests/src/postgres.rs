//! PostgreSQL as Debian installs it, run as its user, on data below a mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cli::finish;
use crate::{text, user_ids};

pub struct Postgres {
    bin: PathBuf,
    ids: (u32, u32),
    sockets: PathBuf,
}

impl Postgres {
    /// The newest installed version, or the missing part. The directory, for its socket and its log, is given to its
    /// user.
    pub fn find(sockets: PathBuf) -> Result<Postgres, &'static str> {
        let bin = bin().ok_or("postgresql is not installed")?;
        let ids = user_ids("postgres").ok_or("no user postgres")?;
        let postgres = Postgres { bin, ids, sockets };
        postgres.own(&postgres.sockets);
        Ok(postgres)
    }

    /// Gives a directory to PostgreSQL's user.
    pub fn own(&self, dir: &Path) {
        let (uid, gid) = self.ids;
        std::os::unix::fs::chown(dir, Some(uid), Some(gid)).expect("root may give files away");
    }

    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.ids.0)).arg(format!("--regid={}", self.ids.1));
        command.arg("--clear-groups").arg(self.bin.join(program)).args(args);
        command.current_dir("/").env("PGUSER", "postgres");
        finish(&mut command, Duration::from_secs(600)).ok().stdout
    }

    /// Runs a program that talks to the server.
    #[track_caller]
    pub fn ask(&self, program: &str, args: &[&str]) -> String {
        self.run(program, &[&["-h", text(&self.sockets)], args].concat())
    }

    #[track_caller]
    pub fn init(&self, data: &Path) {
        self.run("initdb", &["-D", text(data), "-A", "trust", "-E", "UTF8", "--locale=C"]);
    }

    /// Runs `work` with the server, and stops the server in order.
    #[track_caller]
    pub fn with_server<T>(&self, data: &Path, work: impl FnOnce() -> T) -> T {
        self.start(data);
        let stop = Stop(self, text(data));
        let value = work();
        drop(stop);
        value
    }

    /// Starts the server, for a test that kills it; returns its pid.
    #[track_caller]
    pub fn start(&self, data: &Path) -> i32 {
        let log = self.sockets.join("log");
        let options =
            format!("-c listen_addresses= -c unix_socket_directories={}", text(&self.sockets));
        let (at, log) = (text(data), text(&log));
        self.run("pg_ctl", &["-D", at, "-o", &options, "-l", log, "-w", "-t", "300", "start"]);
        let file = std::fs::read_to_string(data.join("postmaster.pid")).expect("it runs");
        file.lines().next().and_then(|pid| pid.parse().ok()).expect("its first line is a pid")
    }

    /// As [`Postgres::ask`], for a program that may fail; returns whether it succeeded.
    pub fn try_ask(&self, program: &str, args: &[&str]) -> bool {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.ids.0)).arg(format!("--regid={}", self.ids.1));
        command.arg("--clear-groups").arg(self.bin.join(program)).args(["-h", text(&self.sockets)]);
        command.args(args).current_dir("/").env("PGUSER", "postgres");
        finish(&mut command, Duration::from_secs(600)).code == Some(0)
    }

    /// pgbench moves the same amounts in four tables: their sums stay equal.
    #[track_caller]
    pub fn check_sums(&self) {
        let query = "select (select sum(abalance) from pgbench_accounts), \
            (select sum(bbalance) from pgbench_branches), (select sum(tbalance) from pgbench_tellers), \
            (select coalesce(sum(delta), 0) from pgbench_history)";
        let out = self.ask("psql", &["-Atc", query, "postgres"]);
        let sums: Vec<&str> = out.trim().split('|').collect();
        assert!(sums.len() == 4 && sums.iter().all(|s| *s == sums[0]), "{out}");
    }

    /// Reads every page and compares tables with their indexes.
    #[track_caller]
    pub fn check_pages(&self) {
        self.ask("pg_amcheck", &["--install-missing", "--heapallindexed", "postgres"]);
    }

    /// All rows of pgbench's tables.
    #[track_caller]
    pub fn dump(&self) -> String {
        // The extension of amcheck is not compared.
        let out = self.ask("pg_dump", &["postgres", "-t", "pgbench_*"]);
        out.lines()
            .filter(|l| !l.starts_with("\\restrict") && !l.starts_with("\\unrestrict"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|v| Some(v.ok()?.path().join("bin")));
    bins.filter(|bin| bin.join("initdb").exists()).max()
}

/// Stops the server, also when `work` panics.
struct Stop<'a>(&'a Postgres, &'a str);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let file = Path::new(self.1).join("postmaster.pid");
            let pid = std::fs::read_to_string(file).unwrap_or_default();
            if let Some(pid) = pid.lines().next().and_then(|pid| pid.parse().ok()) {
                crate::kill(pid, libc::SIGQUIT);
            }
        } else {
            self.0.run("pg_ctl", &["-D", self.1, "-m", "fast", "-w", "-t", "300", "stop"]);
        }
    }
}
