//! Settings that published command lines and scripts carry though they mean nothing here: they
//! speak to MPI-IO, HDF5 or Lustre. They are taken, so that such a line runs as it stands, and a
//! value other than IOR's default is told.

/// Key, IOR's default, and why it means nothing.
const IGNORED: &[(&str, &str, &str)] = &[
    ("collective", "0", "there is no collective I/O without MPI-IO"),
    ("useFileView", "0", "there are no file views without MPI-IO"),
    ("useSharedFilePointer", "0", "there are no shared file pointers without MPI-IO"),
    ("useStridedDatatype", "0", "there are no data types without MPI-IO"),
    ("preallocate", "0", "only MPI-IO preallocates"),
    ("hintsFileName", "", "there are no hints without MPI-IO"),
    ("showHints", "0", "there are no hints without MPI-IO"),
    ("individualDataSets", "0", "there are no data sets without HDF5"),
    ("setAlignment", "1", "there is no alignment to set without HDF5"),
    ("noFill", "0", "there are no fill values without HDF5"),
    ("lustreStripeCount", "0", "set it on the directory, with lfs setstripe"),
    ("lustreStripeSize", "0", "set it on the directory, with lfs setstripe"),
    ("lustreStartOST", "-1", "set it on the directory, with lfs setstripe"),
    ("quitOnError", "0", "all errors are counted, and the exit code tells of them"),
    ("showHelp", "0", "see --help"),
    ("debug", "", "it did nothing in IOR either"),
    ("platform", "", "this machine is the platform"),
    ("numNodes", "1", "all tasks run on this machine; --tasks-per-node tells -C and -Z of nodes"),
];

/// What is to be told of a setting: `None` if it is not one of these, else its sentence or, for a
/// value that changes nothing, none.
pub fn find(key: &str, value: &str) -> Option<Option<String>> {
    let (name, default, why) = IGNORED.iter().find(|(name, ..)| name.eq_ignore_ascii_case(key))?;
    Some((value != *default).then(|| format!("{name} has no effect: {why}")))
}

pub fn keys() -> impl Iterator<Item = &'static str> {
    IGNORED.iter().map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_silent_and_any_other_value_is_told() {
        assert_eq!(find("COLLECTIVE", "0"), Some(None));
        assert!(find("collective", "1").unwrap().unwrap().starts_with("collective has no effect"));
        assert_eq!(find("setAlignment", "1"), Some(None));
        assert!(find("hintsFileName", "hints").unwrap().is_some());
        assert_eq!(find("blockSize", "1"), None);
    }
}
