//! A process that takes locks of one file for a test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::wait::PATIENCE;
use crate::{Proc, kill};

/// A running `locker`: see that program for its commands.
pub struct Locker {
    process: Proc,
    told: std::process::ChildStdin,
    answers: Receiver<String>,
}

impl Locker {
    /// Starts a locker; `program` is the test's `env!("CARGO_BIN_EXE_locker")`, and the file is
    /// open as after `open how`.
    pub fn start(program: &str, file: &Path, how: &str) -> Locker {
        let mut command = Command::new(program);
        command.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Proc::spawn(&mut command);
        let (told, said) = process.pipes();
        let (send, answers) = channel();
        std::thread::spawn(move || {
            BufReader::new(said).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let mut locker = Locker { process, told, answers };
        assert_eq!(locker.ask(&format!("open {how}")), "ok");
        locker
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Sends a command, and does not wait.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.told, "{command}").expect("the locker listens");
    }

    /// The next answer, if it comes in that time.
    pub fn says(&self, within: Duration) -> Option<String> {
        match self.answers.recv_timeout(within) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the locker is gone"),
        }
    }

    #[track_caller]
    pub fn answer(&self) -> String {
        self.says(PATIENCE).expect("the locker answers")
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// The answer to a command that may take longer.
    #[track_caller]
    pub fn says_of(&mut self, command: &str, within: Duration) -> String {
        self.tell(command);
        self.says(within).expect("the locker answers in time")
    }

    pub fn signal(&self) {
        kill(self.pid(), libc::SIGUSR1);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}
