//! Stages: starting, querying, waiting, ending.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;

use forebay_base::Result;

use crate::given::{Numbers, answer, done, list_of, path_of};
use crate::place::Site;
use crate::query;
use crate::records::{Direction, What, When};
use crate::stage::{self, Stage, Type, begin, listed};
use crate::standing::{Counts, Scope};

/// # Safety
///
/// The paths are null or strings of C.
unsafe fn stage_in(inside: *const c_char, outside: *const c_char, what: What) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let (inside, outside) = unsafe { (path_of(inside)?, path_of(outside)?) };
        done(begin(&[Stage { direction: Direction::In, what, inside, outside, when: When::Now }]))
    })
}

/// # Safety
///
/// The paths are null or strings of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_file_in(dw: *const c_char, pfs: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { stage_in(dw, pfs, What::File) }
}

/// # Safety
///
/// The paths are null or strings of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_directory_in(dw: *const c_char, pfs: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { stage_in(dw, pfs, What::Directory) }
}

/// # Safety
///
/// `dw` is null or a string of C, `list` null or an array of them that ends in null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_list_in(dw: *const c_char, list: *mut *const c_char) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let (dir, files) = unsafe { (path_of(dw)?, list_of(list)?) };
        done(begin(&listed(Direction::In, &files, &dir, When::Now)?))
    })
}

/// # Safety
///
/// The paths are null or strings of C.
unsafe fn stage_out(dw: *const c_char, pfs: *const c_char, kind: c_int, what: What) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let inside = unsafe { path_of(dw) }?;
        done(out(kind, std::slice::from_ref(&inside), |when| {
            // SAFETY: as the caller says.
            let outside = unsafe { path_of(pfs) }?;
            let direction = Direction::Out;
            Ok(vec![Stage { direction, what, inside: inside.clone(), outside, when }])
        }))
    })
}

/// Carries out a stage-out call. `stages` needs the destination, which only a call that begins a stage has.
fn out(
    kind: c_int,
    paths: &[PathBuf],
    stages: impl FnOnce(When) -> Result<Vec<Stage>>,
) -> Result<()> {
    match Type::of(kind)? {
        Type::Immediate => begin(&stages(When::Now)?),
        Type::AtJobEnd => begin(&stages(When::AtEnd)?),
        Type::Revoke => stage::alter_deferred(paths, "revoke"),
        Type::Activate => stage::alter_deferred(paths, "activate"),
    }
}

/// # Safety
///
/// The paths are null or strings of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_file_out(
    dw: *const c_char,
    pfs: *const c_char,
    kind: c_int,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { stage_out(dw, pfs, kind, What::File) }
}

/// # Safety
///
/// The paths are null or strings of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_directory_out(
    dw: *const c_char,
    pfs: *const c_char,
    kind: c_int,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { stage_out(dw, pfs, kind, What::Directory) }
}

/// # Safety
///
/// `list` is null or an array of strings of C that ends in null, `pfs` null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_list_out(
    list: *mut *const c_char,
    pfs: *const c_char,
    kind: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let files = unsafe { list_of(list) }?;
        done(out(kind, &files, |when| {
            // SAFETY: as the caller says.
            let dir = unsafe { path_of(pfs) }?;
            listed(Direction::Out, &files, &dir, when)
        }))
    })
}

fn files(paths: &[PathBuf]) -> Result<Counts> {
    let site = Site::here()?;
    let all = site.transfers()?;
    paths
        .iter()
        .try_fold(Counts::default(), |sum, path| Ok(sum.and(query::file(&site, &all, path)?)))
}

/// # Safety
///
/// `dw` is null or a string of C; the numbers are null or ints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_file_stage(
    dw: *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    let numbers = Numbers([complete, pending, deferred, failed]);
    // SAFETY: as the caller says.
    answer(|| unsafe { numbers.fill(|| files(&[path_of(dw)?])) })
}

/// # Safety
///
/// `dw` is null or a string of C; the numbers are null or ints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_directory_stage(
    dw: *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    let numbers = Numbers([complete, pending, deferred, failed]);
    // SAFETY: as the caller says.
    answer(|| unsafe { numbers.fill(|| query::tree(&path_of(dw)?)) })
}

/// # Safety
///
/// `list` is null or an array of strings of C that ends in null; the numbers are null or ints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_list_stage(
    list: *mut *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    let numbers = Numbers([complete, pending, deferred, failed]);
    // SAFETY: as the caller says.
    answer(|| unsafe { numbers.fill(|| files(&list_of(list)?)) })
}

fn wait_files(paths: &[PathBuf]) -> Result<()> {
    let site = Site::here()?;
    let all = site.transfers()?;
    // All files are waited for, even if one of them has failed.
    let outcomes: Vec<Result<()>> =
        paths.iter().map(|path| query::wait_file(&site, &all, path)).collect();
    outcomes.into_iter().collect()
}

/// # Safety
///
/// `dw` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_file_stage(dw: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(wait_files(&[unsafe { path_of(dw) }?])))
}

/// # Safety
///
/// `dw` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_directory_stage(dw: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(query::wait_tree(&unsafe { path_of(dw) }?)))
}

/// # Safety
///
/// `list` is null or an array of strings of C that ends in null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_list_stage(list: *mut *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(wait_files(&unsafe { list_of(list) }?)))
}

/// # Safety
///
/// `dw` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_file_stage(dw: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(stage::terminate(&[unsafe { path_of(dw) }?], Scope::File)))
}

/// # Safety
///
/// `dw` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_directory_stage(dw: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(stage::terminate(&[unsafe { path_of(dw) }?], Scope::Tree)))
}

/// # Safety
///
/// `list` is null or an array of strings of C that ends in null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_list_stage(list: *mut *const c_char) -> c_int {
    // SAFETY: as the caller says.
    answer(|| done(stage::terminate(&unsafe { list_of(list) }?, Scope::File)))
}
