//! Under a read grant a member asks only those that make files in a directory: an opened file must be in that one.

use forebay_backing::RenameMode;

use super::*;

/// A mount `a` that has looked up `d/f`, and the nodes of both. Under a read grant it asks no member about `d`.
fn looked_up() -> (Bed, u64, u64) {
    let bed = Bed::new(1);
    let at = bed.root.join("backing");
    for dir in ["d", "x"] {
        std::fs::create_dir(at.join(dir)).expect("it is writable");
    }
    std::fs::write(at.join("d/f"), "old").expect("it is writable");
    let a = &bed.mounts[0];
    let dir = a.lookup("d").expect("it is there").id;
    let file = a.lookup_in(dir, "f").expect("it is there").id;
    lock(&bed.net.granted).insert(a.key("d"));
    (bed, dir, file)
}

/// Another member writes the file, at `path`, and `a` has not heard of it.
fn claimed(bed: &Bed, path: &str) {
    let key = bed.mounts[0].key(path);
    lock(&bed.net.homes).insert(key, "b".into());
    lock(&bed.net.unheard).insert(key);
}

fn moved(bed: &Bed, from: &str, to: &str) {
    let at = bed.root.join("backing");
    std::fs::rename(at.join(from), at.join(to)).expect("it can be moved");
}

fn opens(bed: &Bed, file: u64) -> std::result::Result<u64, bool> {
    let opened = bed.mounts[0].vfs.open(file, libc::O_RDONLY.into(), Origin::default());
    opened.map(|opened| opened.handle).map_err(|error| error.is(libc::ESTALE))
}

#[test]
fn a_directory_that_has_come_to_the_place_of_another_is_not_read_by_that_ones_grant() {
    let (bed, _, file) = looked_up();
    claimed(&bed, "d/f");
    assert!(opens(&bed, file).is_ok(), "nobody who has a claim here goes unheard of");
    moved(&bed, "d", "q");
    std::fs::create_dir(bed.root.join("backing/d")).expect("the name is free");
    moved(&bed, "q/f", "d/f");
    assert_eq!(opens(&bed, file), Err(true));
}

#[test]
fn a_rename_names_the_directory_that_is_there_now() {
    let (bed, dir, _) = looked_up();
    moved(&bed, "d", "q");
    std::fs::create_dir(bed.root.join("backing/d")).expect("the name is free");
    std::fs::write(bed.root.join("backing/g"), "bytes").expect("it is writable");
    let a = &bed.mounts[0];
    let name = OsStr::new("g");
    a.vfs.lookup(ROOT, name, Origin::default()).expect("it is there");
    a.vfs.rename((ROOT, name), (dir, name), RenameMode::Replace).expect("nobody minds");
    assert_eq!(*lock(&bed.net.made_in), [a.key("d")]);
}
