//! A program under load that publishes files: makes them under one name, syncs them, and gives them
//! another by rename or by link; replaces, rotates and removes them. Like `writer` it records the
//! acknowledged operations, and ends at the first error (exit 3).
//!
//! `namer DIR JOURNAL SEED`

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::exit;
use std::rc::Rc;

use forebay_tests::Rng;
use forebay_tests::journal::{Journal, Op, written};

const NAMES_MAX: usize = 16;
const WRITE_MAX: u64 = 32 << 10;

struct Namer {
    dir: PathBuf,
    journal: Journal,
    rng: Rng,
    /// The file of each name; several names may mean one file.
    names: BTreeMap<String, Rc<File>>,
    next: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut namer = Namer {
        dir: args[1].clone().into(),
        journal: Journal::append(args[2].as_ref()),
        rng: Rng::new(args[3].parse().expect("SEED")),
        names: BTreeMap::new(),
        next: 0,
    };
    loop {
        if let Err(error) = namer.step() {
            eprintln!("namer {}: ended by {error}", namer.dir.display());
            exit(3);
        }
    }
}

impl Namer {
    fn step(&mut self) -> io::Result<()> {
        if self.names.len() < 3 {
            return self.make().map(drop);
        }
        if self.names.len() > NAMES_MAX {
            return self.unlink();
        }
        match self.rng.below(100) {
            0..20 => self.publish_by_rename(),
            20..35 => self.publish_by_link(),
            35..45 => self.rotate(),
            45..60 => self.write_any(),
            60..70 => self.fsync_any(),
            70..80 => self.rename_any(),
            80..88 => self.unlink(),
            88..94 => self.fsync_any().and_then(|()| self.unlink()),
            _ => self.make().map(drop),
        }
    }

    fn any(&mut self) -> String {
        let at = self.rng.below(self.names.len() as u64) as usize;
        self.names.keys().nth(at).expect("there are names").clone()
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    /// An existing name, or a new one.
    fn target(&mut self) -> String {
        if self.rng.one_in(2) { self.any() } else { self.fresh() }
    }

    /// Makes a file with some bytes in it.
    fn make(&mut self) -> io::Result<String> {
        let name = self.fresh();
        self.make_at(&name)?;
        Ok(name)
    }

    fn make_at(&mut self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        let open = || File::options().read(true).write(true).create_new(true).open(path);
        let file = self.journal.record(&Op::Create(name.into()), open)?;
        self.names.insert(name.into(), Rc::new(file));
        for _ in 0..self.rng.range(1, 4) {
            self.write(name)?;
        }
        Ok(())
    }

    fn write(&mut self, name: &str) -> io::Result<()> {
        let file = self.names[name].clone();
        // Never beyond the end: the zeros of a hole could hide lost bytes.
        let size = file.metadata()?.len();
        let (offset, len) = (self.rng.below(size + 1), self.rng.range(1, WRITE_MAX));
        let key = self.rng.word();
        let bytes = written(offset, len, key);
        let op = Op::Write { name: name.into(), offset, len, key };
        self.journal.record(&op, || file.write_all_at(&bytes, offset))
    }

    fn fsync(&mut self, name: &str) -> io::Result<()> {
        let file = self.names[name].clone();
        self.journal.record(&Op::Fsync(name.into()), || file.sync_all())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (a, b) = (self.dir.join(from), self.dir.join(to));
        self.journal.record(&Op::Rename(from.into(), to.into()), || fs::rename(a, b))?;
        let file = self.names.remove(from).expect("a name that is renamed exists");
        self.names.insert(to.into(), file);
        Ok(())
    }

    fn is_one_file(&self, a: &str, b: &str) -> bool {
        let file = |name: &str| self.names.get(name);
        file(a).zip(file(b)).is_some_and(|(a, b)| Rc::ptr_eq(a, b))
    }

    fn unlink_name(&mut self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        self.journal.record(&Op::Unlink(name.into()), || fs::remove_file(path))?;
        self.names.remove(name);
        Ok(())
    }

    fn publish_by_rename(&mut self) -> io::Result<()> {
        let to = self.target();
        let from = self.make()?;
        self.fsync(&from)?;
        self.rename(&from, &to)
    }

    fn publish_by_link(&mut self) -> io::Result<()> {
        let (from, to) = (self.make()?, self.fresh());
        self.fsync(&from)?;
        let (a, b) = (self.dir.join(&from), self.dir.join(&to));
        self.journal.record(&Op::Link(from.clone(), to.clone()), || fs::hard_link(a, b))?;
        self.names.insert(to, self.names[&from].clone());
        self.unlink_name(&from)
    }

    /// Rotates a log: the old file is renamed, a new one made under its name.
    fn rotate(&mut self) -> io::Result<()> {
        let (name, old) = (self.any(), self.target());
        if name == old || self.is_one_file(&name, &old) {
            return Ok(());
        }
        self.rename(&name, &old)?;
        self.make_at(&name)?;
        self.fsync(&name)
    }

    fn write_any(&mut self) -> io::Result<()> {
        let name = self.any();
        self.write(&name)
    }

    fn fsync_any(&mut self) -> io::Result<()> {
        let name = self.any();
        self.fsync(&name)
    }

    fn rename_any(&mut self) -> io::Result<()> {
        let (from, to) = (self.any(), self.target());
        if from == to || self.is_one_file(&from, &to) {
            return Ok(()); // rename(2) of one file's names does nothing.
        }
        self.rename(&from, &to)
    }

    fn unlink(&mut self) -> io::Result<()> {
        let name = self.any();
        self.unlink_name(&name)
    }
}
