//! The messages of FUSE (linux/fuse.h), over either transport: requests are decoded into
//! [`decode::Call`]s and handed to the verbs (`serve`), and the answers are encoded.
//!
//! A transport brings a [`Request`] and the [`Carrier`] of its answer, and looks into neither.

mod abi;
mod answer;
mod decode;
mod encode;
mod init;
mod notify;
mod serve;

pub use abi::{BATCH_FORGET, FORGET, INTERRUPT, NOTIFY_REPLY, OPEN, OUT_HEADER_LEN};
pub use answer::{Carrier, out_header};
pub use decode::{Head, Request};
pub use init::{Agreed, Granted, Wishes, agree};
pub use notify::{inval_inode, retrieve, store};
pub use serve::{forget, interrupt, serve};
