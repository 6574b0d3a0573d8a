//! Counts and times every call.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layer::{Call, Done, Layer, Verb};
use super::store::Wrapped;
use crate::metrics::{Op, OpCounts, OpSummary};
use crate::{BackingStore, Result};

pub struct Meter {
    /// The operations, indexed by [`Verb`].
    ops: Vec<Op>,
}

impl Meter {
    pub fn wrap(store: Arc<dyn BackingStore>) -> Arc<Wrapped<Meter>> {
        let ops = Verb::ALL.iter().map(|_| Op::default()).collect();
        Wrapped::new(store, Arc::new(Meter { ops }))
    }

    /// The state of each operation that was called at all.
    pub fn op_counts(&self) -> BTreeMap<&'static str, OpCounts> {
        let all = Verb::ALL.iter().zip(&self.ops).map(|(verb, op)| (verb.name(), op.counts()));
        all.filter(|(_, counts)| counts.count() > 0).collect()
    }

    /// One summary for each operation that was called at all.
    pub fn summaries(&self) -> BTreeMap<&'static str, OpSummary> {
        let all = Verb::ALL.iter().zip(&self.ops).map(|(verb, op)| (verb.name(), op.summary()));
        all.filter(|(_, summary)| summary.count > 0).collect()
    }
}

impl Layer for Meter {
    const PASSES_FD: bool = true;

    fn around<T>(&self, call: &Call<'_>, run: impl FnMut() -> Result<Done<T>>) -> Result<Done<T>> {
        self.ops[call.verb as usize].time(|done| done.bytes, run)
    }
}
