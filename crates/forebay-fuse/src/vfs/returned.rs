//! A mount that comes back, and finds that other members have taken files over: which of its bytes are old.

use forebay_backing::{Access, FileKey, Result};
use forebay_cluster::core::Access as How;
use forebay_cluster::front::Place;
use forebay_cluster::words::{Answer, Question, TakenAs};
use forebay_engine::taken::{Former, Piece, Pieces};
use forebay_engine::{Fingerprint, SupersededFile};

use super::Vfs;
use super::homes::{moved, odd};

/// The files that others took over while this mount was away, as far as they were not compared yet.
pub struct Returned(Vec<Lost>);

struct Lost {
    file: SupersededFile,
    /// The life of this member that the file was taken from; `None`: an earlier one, or it is not known.
    life: Option<u64>,
}

impl Returned {
    /// The files that are superseded. Those that are not `earlier` were found by this mount, and were taken from the
    /// life before it.
    pub fn found(vfs: &Vfs, earlier: &[FileKey]) -> Returned {
        let life = vfs.cluster().and_then(|cluster| cluster.taken_life());
        let of = |file: SupersededFile| {
            let life = life.filter(|_| !earlier.contains(&file.file));
            Lost { file, life }
        };
        Returned(vfs.engine.ops.superseded().into_iter().map(of).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares the files with what they are now, and with what they were when they were taken: equal ones are
    /// dropped, the others stay aside as conflicts. Leaves those that cannot be compared yet; once there are none, the
    /// other members are told.
    pub fn compare(&mut self, vfs: &Vfs) {
        self.0.retain(|lost| !lost.is_settled(vfs));
        if self.is_empty() {
            tell_compared(vfs);
        }
    }
}

impl Lost {
    fn is_settled(&self, vfs: &Vfs) -> bool {
        let path = self.file.path.display();
        match self.is_old(vfs) {
            Ok(true) => tracing::info!(%path, "taken over: nothing here is newer"),
            Ok(false) => tracing::warn!(
                %path,
                "another member took this file over while it had other bytes here: they are kept aside, see `forebay resolve`"
            ),
            Err(error) if error.is(libc::ENOENT) => {
                tracing::info!(%path, "settled before it was compared");
            }
            Err(error) => {
                tracing::warn!(%error, %path, "not compared yet");
                return false;
            }
        }
        true
    }

    fn is_old(&self, vfs: &Vfs) -> Result<bool> {
        let is_same = match is_as_now(vfs, &self.file) {
            // The file has no name any more.
            Err(error) if error.is(libc::ENOENT) || error.is(libc::ENOTDIR) => false,
            compared => compared?,
        };
        match self.life {
            Some(life) if !is_same => is_as_taken(vfs, self.file.file, life),
            _ => Ok(is_same),
        }
    }
}

fn is_as_now(vfs: &Vfs, superseded: &SupersededFile) -> Result<bool> {
    let SupersededFile { file, path, .. } = superseded;
    let cluster = vfs.cluster().ok_or_else(moved)?;
    let dir = vfs.dir_of(path)?;
    match cluster.open(*file, dir, path, How::Read)? {
        Place::Here(_) => {
            let store = vfs.engine.names.ask(|store| store.open(path, Access::Read))?;
            let attr = store.stat()?;
            if attr.key != *file {
                return Ok(false);
            }
            let read = |offset, buf: &mut [u8]| store.read_at(buf, offset);
            vfs.engine.ops.compare_superseded(*file, attr.size, &read)
        }
        Place::There(home) => {
            let (path, program) = (path.clone(), None);
            let open = Question::Open { file: *file, path, write: false, program };
            let (handle, size) = match vfs.ask(&home, &open, &[], &mut Vec::new())? {
                Answer::Opened { handle, attrs, .. } => (handle, attrs.size),
                other => return Err(odd(&other)),
            };
            let read = |offset, buf: &mut [u8]| {
                let mut out = Vec::new();
                vfs.ask_read(&home, handle, (offset, buf.len()), &mut out)?;
                let n = out.len().min(buf.len());
                buf[..n].copy_from_slice(&out[..n]);
                Ok(n)
            };
            let compared = vfs.engine.ops.compare_superseded(*file, size, &read);
            let _ = vfs.ask(&home, &Question::Close { handle }, &[], &mut Vec::new());
            compared
        }
    }
}

/// Whether a member has taken over all bytes that a life of this mount left of a superseded file.
fn is_as_taken(vfs: &Vfs, file: FileKey, epoch: u64) -> Result<bool> {
    let cluster = vfs.cluster().ok_or_else(moved)?;
    let mut unheard = None;
    for member in cluster.others() {
        match is_as_taken_by(vfs, &member, file, epoch) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => unheard = Some(error),
        }
    }
    unheard.map_or(Ok(false), Err)
}

fn is_as_taken_by(vfs: &Vfs, member: &str, file: FileKey, epoch: u64) -> Result<bool> {
    let ask = |offset| {
        let (question, mut out) = (Question::Taken { file, epoch, offset }, Vec::new());
        match vfs.ask(member, &question, &[], &mut out)? {
            Answer::Taken(taken) => Ok(taken.map(|taken| (taken, Piece::all_of(&out)))),
            other => Err(odd(&other)),
        }
    };
    let Some((taken, first)) = ask(0)? else { return Ok(false) };
    let mut more = |offset| {
        let next = ask(offset)?.filter(|(now, _)| *now == taken);
        Ok(next.map_or_else(Vec::new, |(_, pieces)| pieces))
    };
    let print = Fingerprint { size: taken.size, seed: taken.seed };
    let pieces = &mut Pieces::new(first, &mut more);
    vfs.engine.ops.compare_as_taken(file, print, pieces)
}

/// Tells the other members that what they took over from earlier lives of this one was compared. A member that does
/// not hear of it keeps notes for nothing.
fn tell_compared(vfs: &Vfs) {
    for member in vfs.cluster().map_or_else(Vec::new, |cluster| cluster.others()) {
        if let Err(error) = vfs.ask_done(&member, &Question::Compared, &[]) {
            tracing::debug!(%error, member, "not told that files were compared");
        }
    }
}

/// Answers a member that comes back and compares its files.
pub(super) fn answer(
    vfs: &Vfs,
    (member, life): (&str, u64),
    question: &Question,
    out: &mut Vec<u8>,
) -> Result<Answer> {
    let ops = &vfs.engine.ops;
    match *question {
        Question::Taken { file, epoch, offset } => {
            let home = Former { member: member.into(), epoch };
            let found = ops.as_taken(file, &home, offset, out)?;
            Ok(Answer::Taken(found.map(|Fingerprint { size, seed }| TakenAs { size, seed })))
        }
        _ => {
            ops.forget_as_taken(&|home| home.member == member && home.epoch < life);
            Ok(Answer::Done)
        }
    }
}
