//! An unused file system, made anew for each turn.
//!
//! ext4 gives the number of a deleted file to no other for a minute, or five while the deletion is not
//! written back, and each create steps over all such numbers one by one (`recently_deleted` in Linux,
//! fs/ext4/ialloc.c). A contestant that creates 10,000 files after as many were removed pays more for
//! that than for all else, so the order of turns would decide.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::guard::detach;

/// An image on the measured disk, mounted; removed when dropped. Without root's rights it is a plain
/// directory.
pub struct Ground {
    image: Option<PathBuf>,
    pub dir: PathBuf,
}

impl Ground {
    pub fn make(below: &Path, bytes: u64) -> Result<Ground> {
        let (image, dir) = (below.join("image"), below.join("ground"));
        fs::create_dir_all(&dir)?;
        // SAFETY: it asks for a number.
        if unsafe { libc::geteuid() } != 0 {
            return Ok(Ground { image: None, dir });
        }
        // mkfs zeroes these now, so that no zeroing in the background disturbs the measurement.
        let now = "lazy_itable_init=0,lazy_journal_init=0";
        File::create(&image)?.set_len(bytes)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", now]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&image, &dir]))?;
        Ok(Ground { image: Some(image), dir })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        match &self.image {
            Some(image) => {
                detach(&self.dir);
                let _ = fs::remove_file(image);
            }
            None => drop(fs::remove_dir_all(&self.dir)),
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
