//! One file or one block device behind the mount, and layers on top: a file system on a loop
//! device, an export over NBD. The recipes are those of `docs/BLOCK.md`. Power cuts are in
//! `durability/block.rs`.
// S-17

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::images::{self, ImageFs, LoopDevice, MountedFs};
use forebay_tests::nbd::{self, qemu_io};
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Mounted, PATIENCE, Tier, fill, needs_forebay, needs_tools, proof, text, tool, within,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;
const NAME: &str = "disk.img";

/// A bed that serves a sparse file.
fn bed_with_image() -> (Bed, PathBuf) {
    let mut bed = Bed::new(Tier::Disk);
    let image = bed.backing.join(NAME);
    File::create(&image).expect("image").set_len(SIZE).expect("its size");
    bed.serve(&image);
    (bed, image)
}

fn pattern(key: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(&mut bytes, key, 0);
    bytes
}

fn read(path: &Path, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    let file = File::open(path).expect("open");
    file.read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

fn writable(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open for writing")
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").blocks() * 512
}

/// The bytes of everything in the tier.
fn tier_use(bed: &Bed) -> u64 {
    // The exit code of du says that a file disappeared while it looked.
    let out = tool("du", &["-s", "--block-size=1", text(&bed.tier)]);
    out.stdout.split_whitespace().next().and_then(|n| n.parse().ok()).expect("du gives a number")
}

fn punch(file: &File, offset: u64, len: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, how, offset, len).expect("punch hole");
}

#[test]
fn the_mount_shows_one_file_that_keeps_its_name_and_size() {
    needs_forebay!();
    let (bed, _) = bed_with_image();
    let mounted = bed.mount(&["--max-age", "1h"]);
    let names: Vec<_> = fs::read_dir(&bed.mnt).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [NAME]);
    let path = mounted.at(NAME);
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    assert_eq!(errno(File::create(mounted.at("new")).map(drop)), libc::EPERM);
    assert_eq!(errno(fs::create_dir(mounted.at("new"))), libc::EPERM);
    assert_eq!(errno(fs::remove_file(&path)), libc::EPERM);
    assert_eq!(errno(fs::rename(&path, mounted.at("new"))), libc::EPERM);
    assert_eq!(errno(File::create(&path).map(drop)), libc::EPERM);
    let file = writable(&path);
    assert_eq!(errno(file.set_len(SIZE + 1)), libc::EPERM);
    assert_eq!(errno(file.write_all_at(b"beyond", SIZE)), libc::ENOSPC);
    assert_eq!(errno(file.write_all_at(b"beyond", SIZE - 3)), libc::ENOSPC);
    file.set_len(SIZE).unwrap();
    file.write_all_at(b"end", SIZE - 3).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    drop(file);
    mounted.umount();
}

#[test]
fn an_image_is_cached_by_ranges_and_recovered() {
    needs_forebay!();
    let (bed, image) = bed_with_image();
    writable(&image).write_all_at(&pattern(1, MIB), 64 * MIB).unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    let path = mounted.at(NAME);
    assert_eq!(read(&path, 64 * MIB, MIB), pattern(1, MIB));
    let clean = mounted.number("clean_bytes");
    assert!((MIB..=16 * MIB).contains(&clean), "{clean} clean bytes after a read of 1 MiB");
    let file = writable(&path);
    file.write_all_at(&pattern(2, MIB), 10 * MIB).unwrap();
    file.sync_all().unwrap();
    assert_ne!(read(&image, 10 * MIB, MIB), pattern(2, MIB), "not flushed yet");
    drop(file);
    mounted.crash();
    bed.forebay(&["check", text(&bed.tier)]).ok();
    bed.forebay(&["recover", text(&bed.tier)]).ok();
    assert_eq!(read(&image, 10 * MIB, MIB), pattern(2, MIB));
    let mounted = bed.mount(&[]);
    assert_eq!(read(&mounted.at(NAME), 64 * MIB, MIB), pattern(1, MIB));
    mounted.umount();
}

/// The tier knows the file by its first name.
#[test]
fn a_renamed_image_keeps_its_name_in_the_mount() {
    needs_forebay!();
    let (mut bed, image) = bed_with_image();
    let write = |mounted: Mounted, key: u64| {
        let file = writable(&mounted.at(NAME));
        file.write_all_at(&pattern(key, MIB), key * MIB).unwrap();
        drop(file);
        mounted.umount();
    };
    write(bed.mount(&[]), 5);
    let moved = bed.backing.join("moved.img");
    fs::rename(&image, &moved).unwrap();
    bed.serve(&moved);
    write(bed.mount(&[]), 6);
    assert!(read(&moved, 5 * MIB, MIB) == pattern(5, MIB), "what was written before");
    assert!(read(&moved, 6 * MIB, MIB) == pattern(6, MIB), "what was written after");
}

#[test]
fn a_discard_frees_the_tier_and_reaches_the_image() {
    needs_forebay!();
    let (bed, image) = bed_with_image();
    let mounted = bed.mount(&["--max-age", "1h"]);
    let file = writable(&mounted.at(NAME));
    file.write_all_at(&pattern(3, 64 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    mounted.flush();
    assert!(allocated(&image) >= 60 * MIB && tier_use(&bed) >= 60 * MIB);
    punch(&file, 0, 48 * MIB);
    file.sync_all().unwrap();
    assert!(tier_use(&bed) < 24 * MIB, "{} bytes in the tier", tier_use(&bed));
    mounted.flush();
    assert!(allocated(&image) < 24 * MIB, "{} bytes in the image", allocated(&image));
    assert_eq!(mounted.number("dirty_bytes"), 0);
    drop(file);
    mounted.evict();
    assert!(read(&mounted.at(NAME), 0, 48 * MIB).iter().all(|byte| *byte == 0));
    assert_eq!(read(&mounted.at(NAME), 48 * MIB, MIB), pattern(3, 64 * MIB)[48 << 20..49 << 20]);
    mounted.umount();
    proof!("48 MiB discarded, {} bytes left in the image", allocated(&image));
}

#[test]
fn a_block_device_is_served_and_one_in_use_is_refused() {
    needs_forebay!();
    needs_tools!("losetup", "mkfs.ext4");
    let (mut bed, image) = bed_with_image();
    images::make(&image, ImageFs::Ext4, SIZE / MIB);
    let device = LoopDevice::attach(&image);
    bed.serve(device.path());
    let busy = MountedFs::device(device.path(), &bed.dir("busy")).expect("mount");
    let refused = bed.try_mount(&[]).expect(2);
    assert!(refused.stderr.contains("is in use"), "{refused:#?}");
    drop(busy);
    let name = device.path().file_name().unwrap();
    let mounted = bed.mount(&["--max-age", "1h"]);
    let file = writable(&mounted.at(name));
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    file.write_all_at(&pattern(4, 8 * MIB), 32 * MIB + 512).unwrap();
    punch(&file, 36 * MIB, MIB);
    file.sync_all().unwrap();
    drop(file);
    mounted.umount();
    let mut expected = pattern(4, 8 * MIB);
    expected[(4 * MIB - 512) as usize..(5 * MIB - 512) as usize].fill(0);
    assert!(read(device.path(), 32 * MIB + 512, 8 * MIB) == expected, "the device's bytes");
    // The same device again: the cached bytes still count.
    let mounted = bed.mount(&[]);
    assert!(mounted.number("clean_bytes") >= 7 * MIB);
    assert!(read(&mounted.at(name), 32 * MIB + 512, 8 * MIB) == expected, "the mount's bytes");
    mounted.umount();
}

/// The recipe: mkfs, mount, work, fstrim, unmount, detach, unmount.
fn file_system_on_a_loop_device(fs: ImageFs) {
    let (bed, image) = bed_with_image();
    images::make(&image, fs, SIZE.max(320 * MIB) / MIB);
    let made = allocated(&image);
    let at = bed.dir("top");
    let mounted = bed.mount(&["--max-age", "500ms"]);
    let device = LoopDevice::attach(&mounted.at(NAME));
    let top = MountedFs::device(device.path(), &at).expect("mount");
    let content = |i: u64| pattern(i, 100_000 + i * 1000);
    for i in 0..60 {
        fs::create_dir_all(at.join(format!("d{}", i % 5))).unwrap();
        fs::write(at.join(format!("d{}/f{i}", i % 5)), content(i)).unwrap();
    }
    fs::write(at.join("big"), pattern(77, 64 * MIB)).unwrap();
    rustix::fs::syncfs(File::open(&at).unwrap()).unwrap();
    fs::remove_file(at.join("big")).unwrap();
    // XFS frees removed files in the background, in its own time.
    within(PATIENCE, "what was removed is out of the tier", || {
        rustix::fs::syncfs(File::open(&at).unwrap()).unwrap();
        tool("fstrim", &[text(&at)]).ok();
        tier_use(&bed) < 48 * MIB
    });
    let seen = Tree::read(&at);
    drop(top);
    drop(device);
    mounted.umount();
    let grown = allocated(&image).saturating_sub(made);
    assert!(grown < 48 * MIB, "the image has grown by {grown} bytes");
    let alone = MountedFs::image(&image, &at);
    let differences = seen.differences(&Tree::read(alone.path()), Times::Compare);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn ext4_on_a_loop_device_works_and_trims() {
    needs_forebay!();
    needs_tools!("losetup", "mkfs.ext4", "fstrim");
    file_system_on_a_loop_device(ImageFs::Ext4);
}

#[test]
fn xfs_on_a_loop_device_works_and_trims() {
    needs_forebay!();
    needs_tools!("losetup", "mkfs.xfs", "fstrim");
    file_system_on_a_loop_device(ImageFs::Xfs);
}

fn nbd_works(bed: &Bed, image: &Path, server: impl FnOnce(&Mounted, &Path) -> Command) {
    let mounted = bed.mount(&["--max-age", "1h"]);
    let socket = bed.root.join("nbd.sock");
    let mut nbd = nbd::serve(server(&mounted, &socket), &socket);
    qemu_io(&socket, &["write -P 0x5a 1M 8M", "flush", "read -P 0x5a 1M 8M", "discard 2M 4M"]);
    qemu_io(&socket, &["read -P 0x5a 1M 1M", "read -P 0 2M 4M", "read -P 0x5a 6M 3M", "flush"]);
    nbd.kill();
    mounted.umount();
    assert!(read(image, MIB, MIB).iter().all(|byte| *byte == 0x5a));
    assert!(read(image, 2 * MIB, 4 * MIB).iter().all(|byte| *byte == 0));
    assert!(allocated(image) <= 5 * MIB, "{} bytes in the image", allocated(image));
}

#[test]
fn nbdkit_exports_the_file() {
    needs_forebay!();
    needs_tools!("nbdkit", "qemu-io");
    let (bed, image) = bed_with_image();
    nbd_works(&bed, &image, |mounted, socket| {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix", text(socket), "file"]).arg(mounted.at(NAME));
        command
    });
}

#[test]
fn qemu_nbd_exports_the_file() {
    needs_forebay!();
    needs_tools!("qemu-nbd", "qemu-io");
    let (bed, image) = bed_with_image();
    nbd_works(&bed, &image, |mounted, socket| {
        nbd::qemu_nbd(&mounted.at(NAME), socket, &["--cache=none"])
    });
}
