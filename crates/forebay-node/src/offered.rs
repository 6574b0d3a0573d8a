//! The pools of the node: those that can be used, and why others cannot. A bad pool costs only its own
//! contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_base::{Error, Kind, Result};

use crate::book::Book;
use crate::config::PoolConfig;
use crate::local::Local;
use crate::pools::PoolHere;
use crate::records::{PoolRecord, keys};

#[derive(Default)]
struct Offered {
    pool: Option<Arc<PoolHere>>,
    /// Why the pool could not be used when it was looked at last.
    fault: Option<String>,
}

pub struct Pools(Mutex<BTreeMap<String, Offered>>);

impl Default for Pools {
    fn default() -> Pools {
        Pools(Mutex::new(Rank::NodeNotes, BTreeMap::new()))
    }
}

impl Pools {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Offered>> {
        self.0.lock()
    }

    /// Why a pool could not be used when it was looked at last.
    pub fn fault(&self, name: &str) -> Option<String> {
        self.lock().get(name).and_then(|offered| offered.fault.clone())
    }

    /// A pool of the configuration.
    pub fn get(&self, name: &str) -> Result<Arc<PoolHere>> {
        let all = self.lock();
        match all.get(name) {
            Some(Offered { pool: Some(pool), .. }) => Ok(pool.clone()),
            Some(Offered { fault, .. }) => {
                let why = fault.as_deref().unwrap_or("it is being opened");
                Err(Error::new(Kind::Unavailable, why))
            }
            None => Err(Error::new(
                Kind::Usage,
                format!(
                    "pool {name} is not in this node's configuration any more: put it back until its \
                     instances are gone"
                ),
            )),
        }
    }

    /// Opens a pool if it is not open, announces what it offers, and goes on with deleting. A fault is
    /// recorded, and nothing new is granted there.
    pub fn attend(
        &self,
        config: &PoolConfig,
        local: &Local,
        book: &Book,
        node: &str,
    ) -> Result<()> {
        let name = &config.name;
        let attended = self.opened(config, local).and_then(|pool| {
            tell(book, node, name, &pool.record(book, node)?)?;
            pool.sweep();
            Ok(())
        });
        let fault = attended.as_ref().err().map(ToString::to_string);
        if let Some(why) = &fault {
            let told: Option<PoolRecord> = book.read(&keys::pool(node, name))?;
            if let Some(told) = told {
                tell(book, node, name, &PoolRecord { fault: Some(why.clone()), ..told })?;
            }
        }
        let mut all = self.lock();
        let offered = all.entry(name.clone()).or_default();
        match (&offered.fault, &fault) {
            (Some(_), None) => tracing::warn!("pool {name} can be used again"),
            (old, Some(why)) if old.as_ref() != Some(why) => tracing::warn!("pool {name}: {why}"),
            _ => {}
        }
        offered.fault = fault;
        attended
    }

    fn opened(&self, config: &PoolConfig, local: &Local) -> Result<Arc<PoolHere>> {
        if let Some(pool) = self.lock().get(&config.name).and_then(|offered| offered.pool.clone()) {
            return Ok(pool);
        }
        let pool = Arc::new(PoolHere::open(config)?);
        local.admit_pool(&config.name, pool.id(), &config.dir)?;
        self.lock().entry(config.name.clone()).or_default().pool = Some(pool.clone());
        Ok(pool)
    }
}

fn tell(book: &Book, node: &str, name: &str, record: &PoolRecord) -> Result<()> {
    let key = keys::pool(node, name);
    let told: Option<PoolRecord> = book.read(&key)?;
    if told.as_ref() == Some(record) { Ok(()) } else { book.put(&key, record) }
}
