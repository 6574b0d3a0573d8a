//! Handles at homes that nobody here uses any more, until their homes know.

use std::sync::{Mutex, MutexGuard};

use forebay_cluster::front::Cluster;
use forebay_cluster::words::Question;

use super::copies::is_silence;
use super::unsynced::Life;

/// So many are remembered; beyond, the oldest stay open at their homes until this process ends.
const REMEMBERED: usize = 65_536;

#[derive(Default)]
pub struct Left(Mutex<Vec<(Life, u64)>>);

impl Left {
    fn all(&self) -> MutexGuard<'_, Vec<(Life, u64)>> {
        self.0.lock().expect("no panic inside")
    }

    pub fn add(&self, life: Life, handle: u64) {
        let mut all = self.all();
        if all.len() >= REMEMBERED {
            all.remove(0);
        }
        all.push((life, handle));
    }

    pub fn has_some(&self) -> bool {
        !self.all().is_empty()
    }

    /// Tells the homes. One that is silent is told later, unless it has begun anew: then it has none of them.
    pub fn close(&self, cluster: &dyn Cluster) {
        let all = std::mem::take(&mut *self.all());
        let mut silent = Vec::<String>::new();
        for (life, handle) in all {
            let home = life.home.clone();
            if cluster.epoch(&home) != Some(life.epoch) {
                continue;
            }
            if !silent.contains(&home) {
                let asked = cluster.ask(&home, &Question::Close { handle }, &[], &mut Vec::new());
                match asked {
                    Err(error) if is_silence(&error) => silent.push(home),
                    _ => continue,
                }
            }
            self.add(life, handle);
        }
    }
}
