//! A program that holds a file open and obeys a test: one command per line on its input, one line of answer each:
//! `ok`, `errno N`, or a result. If the test itself held the file open, each program that it starts would close it.
//!
//! `holder FILE`; commands:
//!
//! - `open ro|rw|append`, `close`
//! - `read AT LEN`, `write AT TEXT`, `append TEXT`, `cut LEN`, `allocate LEN`, `fsync`, `size`
//! - `drop`: drops the kernel's pages of the file.
//! - `map LEN`, `store AT TEXT`, `load AT`, `fault AT`: like a load there, without its signal; `msync`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Error, Result, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_tests::sys::{Map, check, fallocate};

const PAGE: usize = 4096;

#[derive(Default)]
struct Held {
    file: Option<File>,
    map: Option<Map>,
}

fn main() {
    let path = std::env::args().nth(1).expect("holder FILE");
    let mut held = Held::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = held
            .obey(Path::new(&path), &words)
            .unwrap_or_else(|error| format!("errno {}", error.raw_os_error().expect("an errno")));
        println!("{answer}");
        std::io::stdout().flush().expect("somebody listens");
    }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().ok().expect("a number")
}

impl Held {
    fn obey(&mut self, path: &Path, words: &[&str]) -> Result<String> {
        match words {
            ["open", how] => {
                let mut options = OpenOptions::new();
                options.read(true).write(*how == "rw").append(*how == "append");
                self.file = Some(options.open(path)?);
            }
            ["close"] => {
                let file = self.file.take().expect("it is open").into_raw_fd();
                // SAFETY: this program owns the descriptor, and nothing else closes it.
                check(unsafe { libc::close(file) })?;
            }
            ["map", len] => self.map = Some(Map::shared(self.file()?, number(len), true)?),
            ["store" | "load" | "fault" | "msync", ..] => return self.mapped(words),
            _ => return self.done(words),
        }
        Ok("ok".into())
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or(Error::from_raw_os_error(libc::EBADF))
    }

    fn done(&self, words: &[&str]) -> Result<String> {
        let file = self.file()?;
        match words {
            ["read", at, len] => {
                let mut bytes = vec![0; number(len)];
                let came = file.read_at(&mut bytes, number(at))?;
                return Ok(String::from_utf8_lossy(&bytes[..came]).into_owned());
            }
            ["size"] => return Ok(file.metadata()?.len().to_string()),
            ["write", at, text] => file.write_all_at(text.as_bytes(), number(at))?,
            ["append", text] => (&*file).write_all(text.as_bytes())?,
            ["cut", len] => file.set_len(number(len))?,
            ["allocate", len] => fallocate(file, 0, 0, number(len))?,
            ["fsync"] => file.sync_all()?,
            ["drop"] => {
                let (fd, all) = (file.as_raw_fd(), libc::POSIX_FADV_DONTNEED);
                // SAFETY: a descriptor that lives through the call.
                let said = unsafe { libc::posix_fadvise(fd, 0, 0, all) };
                assert_eq!(said, 0, "advice");
            }
            other => panic!("no command: {other:?}"),
        }
        Ok("ok".into())
    }

    fn mapped(&mut self, words: &[&str]) -> Result<String> {
        let map = self.map.as_mut().expect("it is mapped");
        match words {
            ["store", at, text] => {
                let at: usize = number(at);
                map.bytes()[at..at + text.len()].copy_from_slice(text.as_bytes());
            }
            ["load", at] => {
                let at: usize = number(at);
                return Ok(char::from(map.bytes()[at]).to_string());
            }
            ["fault", at] => {
                let at: usize = number(at);
                map.populate(at..at + PAGE)?;
            }
            ["msync"] => map.sync()?,
            other => panic!("no command: {other:?}"),
        }
        Ok("ok".into())
    }
}
