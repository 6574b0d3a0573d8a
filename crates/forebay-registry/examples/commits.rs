//! Measures the commits per second of a registry: `commits ADDRESS [SECONDS]`.
//!
//! Each client puts 100 bytes to a key of its own, one commit after the other, each on the condition
//! that the key is unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_registry::{Commit, Registry, Result};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "commits ADDRESS [SECONDS]";
    let address = args.next().unwrap_or_else(|| panic!("{usage}"));
    let seconds = args.next().map_or(5, |text| text.parse().unwrap_or_else(|_| panic!("{usage}")));
    let registry = forebay_registry::open(&address)?;
    for clients in [1, 16] {
        let mut times = run(&registry, clients, Duration::from_secs(seconds))?;
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_micros();
        println!(
            "{}: {clients} clients: {} commits/s, p50 {} us, p99 {} us",
            registry.address(),
            times.len() as u64 / seconds,
            at(50),
            at(99)
        );
    }
    registry.commit(&Commit::new().delete_prefix("bench/"))?;
    Ok(())
}

fn run(registry: &Arc<dyn Registry>, clients: usize, time: Duration) -> Result<Vec<Duration>> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn({
                    let ended = &ended;
                    move || commits(&**registry, client, ended)
                })
            })
            .collect();
        std::thread::sleep(time);
        ended.store(true, Relaxed);
        let times = threads.into_iter().map(|thread| thread.join().expect("no client fails"));
        Ok(times.collect::<Result<Vec<_>>>()?.concat())
    })
}

fn commits(registry: &dyn Registry, client: usize, ended: &AtomicBool) -> Result<Vec<Duration>> {
    let key = format!("bench/{client}");
    let mut times = Vec::new();
    let mut found = registry.get(&key)?.0;
    while !ended.load(Relaxed) {
        let commit = Commit::new().if_as_found(&key, found.as_ref()).put(&key, vec![b'x'; 100]);
        let began = Instant::now();
        let outcome = registry.commit(&commit)?;
        times.push(began.elapsed());
        let revision = outcome.committed().expect("the key is this client's alone");
        let (key, value) = (key.clone(), Vec::new());
        found = Some(forebay_registry::Entry { key, value, revision, lease: None });
    }
    Ok(times)
}
