//! Programs people run, moved from node to node.

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD};
use forebay_tests::postgres::Postgres;
use forebay_tests::tree::Tree;
use forebay_tests::{
    PATIENCE, eventually, is_alive, kill, needs_forebay, needs_tools, proof, skip, within,
};

/// Bytes of all files below a directory.
fn bytes(dir: &Path) -> u64 {
    Tree::read(dir).bytes()
}

/// A database is stopped on one node and started on another, which reads all of it from the first node's tier; its
/// writes there are present when the first node starts it again.
#[test]
fn postgres_goes_on_on_another_node_though_nothing_was_flushed() {
    needs_forebay!();
    needs_tools!("etcd", "setpriv");
    let cluster = Cluster::start(2, HOLD);
    let sockets = cluster.root.join("s");
    std::fs::create_dir(&sockets).unwrap();
    let pg = match Postgres::find(sockets) {
        Ok(pg) => pg,
        Err(why) => skip!("{why}"),
    };
    pg.own(&cluster.at(0, ""));
    let data = |node| cluster.at(node, "db");
    let transactions = |count: &str| {
        // Without -n pgbench would empty its history table.
        let run = pg.ask("pgbench", &["-n", "-c2", "-t", count, "postgres"]);
        assert!(run.contains(&format!("{0}/{0}", count.parse::<u32>().unwrap() * 2)), "{run}");
    };
    pg.init(&data(0));
    let first = pg.with_server(&data(0), || {
        pg.ask("pgbench", &["-i", "-s", "1", "-q", "postgres"]);
        transactions("200");
        pg.check_sums();
        pg.dump()
    });
    let (waits, home) = (cluster.dirty(0), bytes(&cluster.backing));
    assert!(waits > 20 << 20, "{waits} bytes wait on n1");
    assert!(home < 1 << 20, "{home} bytes were on the store already");
    let second = pg.with_server(&data(1), || {
        pg.check_pages();
        pg.check_sums();
        assert!(pg.dump() == first, "n2 has other rows than n1 left");
        transactions("50");
        pg.dump()
    });
    assert!(second != first, "n2 has written");
    pg.with_server(&data(0), || {
        pg.check_pages();
        pg.check_sums();
        assert!(pg.dump() == second, "n1 has other rows than n2 left");
    });
    for node in 0..2 {
        cluster.flush(node);
        assert_eq!(cluster.status(node)["conflicted_files"], 0, "n{}", node + 1);
    }
    pg.with_server(&cluster.backing.join("db"), || {
        pg.check_pages();
        assert!(pg.dump() == second, "the store has other rows");
    });
    proof!("{} bytes of rows went from n1 to n2 and back; {waits} bytes waited", second.len());
}

/// A database's node is killed while it commits: another node takes its files over, and a server that is started
/// there recovers, with every acknowledged commit.
// S-25
#[test]
fn postgres_loses_no_commit_when_its_node_dies() {
    needs_forebay!();
    needs_tools!("etcd", "setpriv");
    let mut cluster = Cluster::start(2, crate::takeover::COPIED);
    crate::takeover::has_partner(&cluster, 0);
    let sockets = cluster.root.join("s");
    std::fs::create_dir(&sockets).unwrap();
    let pg = match Postgres::find(sockets) {
        Ok(pg) => pg,
        Err(why) => skip!("{why}"),
    };
    pg.own(&cluster.at(0, ""));
    let data = |cluster: &Cluster, node| cluster.at(node, "db");
    pg.init(&data(&cluster, 0));
    let server = pg.start(&data(&cluster, 0));
    pg.ask("pgbench", &["-i", "-s", "1", "-q", "postgres"]);
    pg.ask("psql", &["-c", "create table commits (i int)", "postgres"]);
    let committed = AtomicI32::new(0);
    let acknowledged = std::thread::scope(|scope| {
        let inserts = scope.spawn(|| {
            let insert = |i: &i32| {
                let query = format!("insert into commits values ({i})");
                let done = pg.try_ask("psql", &["-qc", &query, "postgres"]);
                committed.fetch_add(i32::from(done), Relaxed);
                done
            };
            (1..).take_while(insert).last().unwrap_or(0)
        });
        scope.spawn(|| pg.try_ask("pgbench", &["-n", "-c2", "-T", "240", "postgres"]));
        std::thread::sleep(Duration::from_secs(8));
        // On a busy disk the commits take longer.
        eventually(Duration::from_secs(120), || {
            inserts.is_finished() || committed.load(Relaxed) > 20
        });
        cluster.nodes[0].crash();
        // The server's files are gone; the rest of it must not write anywhere.
        kill(server, libc::SIGKILL);
        inserts.join().expect("no panic inside")
    });
    within(PATIENCE, "the server is gone", || !is_alive(server));
    assert!(acknowledged > 20, "only {acknowledged} commits before the node died");
    crate::takeover::is_taken_over(&cluster, 1, "n1");
    let found = pg.with_server(&data(&cluster, 1), || {
        pg.check_pages();
        pg.check_sums();
        pg.ask("psql", &["-Atc", "select count(distinct i), max(i) from commits", "postgres"])
    });
    let found: Vec<i32> = found.trim().split('|').map(|n| n.parse().unwrap()).collect();
    assert_eq!(found[0], found[1], "none is missing in between");
    assert!(found[0] >= acknowledged, "{acknowledged} were acknowledged, {} are there", found[0]);
    proof!("{acknowledged} commits were acknowledged, {} are there on the other node", found[0]);
}
