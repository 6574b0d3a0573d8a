//! Refuses impossible settings before anything is written, naming the option.

use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use super::layout;
use super::params::{Params, Reorder};
use crate::cache::{Policy, meminfo};
use crate::io::Api;
use crate::pattern::Filler;
use crate::units::human_bytes;
use crate::{Error, Result};
use forebay_base::units::exact_size;

/// A queue this deep hides every latency; the kernel has 32,768 entries at most.
const MOST_DEPTH: usize = 4096;

/// Checks the settings alone.
pub fn settings(params: &Params) -> Result<()> {
    let refuse = |message: &str| Err(Error::usage(message));
    super::settings::check(params)?;
    if params.transfer > params.block {
        return refuse("-t is larger than -b: a transfer must fit into a block");
    }
    if !params.block.is_multiple_of(params.transfer) {
        let (block, transfer) = (exact_size(params.block), exact_size(params.transfer));
        return refuse(&format!(
            "-b {block} is not a multiple of -t {transfer}: change one of the two"
        ));
    }
    if params.transfer > 1 << 30 {
        return refuse("-t is larger than 1 GiB, more than one system call moves");
    }
    if params.aggregate() > i64::MAX as u64 {
        return refuse("-b, -s and -N make more than any file can hold; lower them");
    }
    if params.depth > MOST_DEPTH {
        return refuse("--depth is more than 4096; lower it, or raise -N");
    }
    if params.constant > 0 && params.random_tasks > 0 {
        return refuse("-C and -Z contradict each other: read a constant shift away or at random");
    }
    if params.reorder() == Reorder::Random
        && params.task_offset * params.tasks_per_node >= params.tasks
        && params.tasks > 1
    {
        return refuse("-Q is not smaller than the number of tasks: no rank is that far away");
    }
    if params.unique_dir && !params.file_per_task {
        return refuse("-u needs -F: only files of single tasks go into directories of their own");
    }
    let removed = !params.write && !params.keep && !params.multi_file;
    if removed && params.repetitions > 1 && params.api != Api::Null {
        return refuse("-i with -r and without -w needs -k: the first repetition removes the file");
    }
    verification(params)?;
    around_cache(params)
}

fn verification(params: &Params) -> Result<()> {
    if params.check_write && !params.write {
        return Err(Error::usage("-W compares what was written: add -w"));
    }
    let unknown = params.check_read && !params.write && params.signature.is_none();
    if unknown && !params.pattern.shows_signature() {
        return Err(Error::usage(
            "-R without -w has nothing to compare with: give the signature of the run that wrote \
             the file with -G (it is printed with -v)",
        ));
    }
    if params.api == Api::Null && (params.check_read || params.check_write) {
        return Err(Error::usage("-W and -R cannot verify a target that stores nothing"));
    }
    Ok(())
}

fn around_cache(params: &Params) -> Result<()> {
    if !params.around_cache() {
        return Ok(());
    }
    if params.api == Api::Mmap {
        return Err(Error::usage("-a MMAP maps the page cache, so O_DIRECT cannot go around it"));
    }
    if !params.transfer.is_multiple_of(512) {
        return Err(Error::usage("-t is not a multiple of 512, which O_DIRECT needs"));
    }
    Ok(())
}

/// Checks against the file system: paths, space, and files to read.
pub fn place(params: &Params) -> Result<()> {
    if let Some(amount) = params.memory {
        Policy::Hog(amount).check()?;
    }
    buffers(params)?;
    if params.api == Api::Null {
        return Ok(());
    }
    params.cache.check()?;
    let paths = layout::files(params, 0);
    for path in &paths {
        directory(params, path)?;
    }
    if params.write { space(params, &paths[0]) } else { existing(params) }
}

/// Checks that memory suffices for the transfers of all tasks: each task has its contents once more
/// to fill and to compare with.
fn buffers(params: &Params) -> Result<()> {
    let slots = if params.api == Api::Uring { params.depth as u64 } else { 1 };
    let wanted = params.transfer.saturating_mul((slots + 2) * params.tasks as u64);
    let free = meminfo("MemAvailable").unwrap_or(u64::MAX);
    if wanted > free {
        return Err(Error::usage(format!(
            "-t, -N and --depth need {} for buffers, but only {} of memory are available; lower them",
            human_bytes(wanted),
            human_bytes(free)
        )));
    }
    Ok(())
}

/// The signature to compare with: given with `-G`, or found in the file that another run wrote.
pub fn signature(params: &Params) -> Result<Option<u32>> {
    if params.write || !params.check_read || params.signature.is_some() {
        return Ok(params.signature);
    }
    let path = layout::file(params, 0, 0);
    let failed = |error| Error::io("read", &path, &error);
    let file = std::fs::File::open(&path).map_err(failed)?;
    let mut start = vec![0; params.transfer.min(64 << 10) as usize];
    let len = file.read_at(&mut start, 0).map_err(failed)?;
    match Filler::signature_in(&start[..len], 0) {
        Some(signature) => Ok(Some(signature)),
        None => Err(Error::usage(format!(
            "-R: {} does not begin with what a run of this tool writes with -l timestamp or \
             offset; give the -t, -l and -G it was written with",
            path.display()
        ))),
    }
}

fn directory(params: &Params, path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // With -u the last directory is made by the run.
    let parent = if params.unique_dir { parent.parent().unwrap_or(parent) } else { parent };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    if !parent.is_dir() {
        return Err(Error::usage(format!(
            "-o {}: no directory {}; create it first",
            path.display(),
            parent.display()
        )));
    }
    if path.is_dir() {
        return Err(Error::usage(format!("-o {} is a directory; name a file", path.display())));
    }
    Ok(())
}

/// Checks that there is enough space for all bytes to be written. A deadline may be meant to cut an
/// impossible size, so with `-D` the run is not refused.
fn space(params: &Params, path: &Path) -> Result<()> {
    if params.deadline > 0.0 || is_device(path) {
        return Ok(());
    }
    let there: u64 = layout::files(params, 0)
        .iter()
        .filter_map(|file| std::fs::metadata(file).ok())
        .map(|found| std::os::unix::fs::MetadataExt::blocks(&found) * 512)
        .sum();
    let copies = if params.multi_file && params.keep { params.repetitions as u64 } else { 1 };
    let wanted = params.aggregate().saturating_mul(copies);
    let free = super::place::free(path)?.saturating_add(there);
    if wanted > free {
        return Err(Error::usage(format!(
            "-b, -s and -N make {} but {} has only {} free; lower them, or stop early with -D",
            human_bytes(wanted),
            path.display(),
            human_bytes(free)
        )));
    }
    Ok(())
}

fn existing(params: &Params) -> Result<()> {
    let wanted = layout::file_size(params);
    for path in layout::files(params, 0) {
        let Ok(found) = std::fs::metadata(&path) else {
            return Err(Error::usage(format!(
                "-r without -w: {} does not exist; add -w, or write it first with -w -k",
                path.display()
            )));
        };
        let cut = params.deadline > 0.0 || params.wear_out_iterations > 0;
        if found.len() < wanted && !cut && params.status_file.is_none() && !is_device(&path) {
            return Err(Error::usage(format!(
                "-r without -w: {} has {}, but -b, -s and -N make {}; use the values it was \
                 written with",
                path.display(),
                human_bytes(found.len()),
                human_bytes(wanted)
            )));
        }
    }
    Ok(())
}

/// Whether the path exists and is no regular file; such a path is neither removed nor checked for
/// space.
pub fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| {
        let kind = found.file_type();
        kind.is_block_device() || kind.is_char_device() || kind.is_fifo()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the check alone: a run that got past it would take the machine's memory.
    #[test]
    fn buffers_beyond_the_memory_are_refused_by_name() {
        let small = Params { transfer: 4096, tasks: 2, ..Params::default() };
        assert_eq!(buffers(&small), Ok(()));
        let deep = Params { api: Api::Uring, depth: 4096, transfer: 1 << 30, ..small.clone() };
        let many = Params { transfer: 1 << 30, tasks: 1 << 20, ..small };
        for params in [deep, many] {
            let error = buffers(&params).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with("-t, -N and --depth need"), "{error}");
        }
    }
}
