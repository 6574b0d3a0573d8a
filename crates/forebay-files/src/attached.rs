//! Whether the tier is attached.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::core::config::Attachment;

pub(crate) struct Attached(AtomicU8);

impl Attached {
    pub fn new(attachment: Attachment) -> Attached {
        Attached(AtomicU8::new(attachment as u8))
    }

    pub fn get(&self) -> Attachment {
        let word = self.0.load(Relaxed);
        let all = [Attachment::Attached, Attachment::Detached, Attachment::DetachedKeepDirty];
        all.into_iter().find(|one| *one as u8 == word).expect("only these are stored")
    }

    pub fn set(&self, attachment: Attachment) {
        self.0.store(attachment as u8, Relaxed);
    }
}
