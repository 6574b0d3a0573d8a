//! Reading a worker's status so far, from its file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::{Line, Work};
use crate::progress::Progress;
use crate::report::Report;

/// The part of the file that is read from its end: a report with all its lists fits.
const TAIL: u64 = 16 << 20;

/// The first line, which names the work, is shorter.
const HEAD: u64 = 256;

/// The last known state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// The work that the file is about.
    pub work: Option<Work>,
    pub progress: Option<Progress>,
    pub ending: Option<Ending>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Report(Box<Report>),
    Cleaned,
    /// The worker could not begin: exit code and reason.
    Error(u8, String),
}

/// Reads the status of the last worker that wrote to the file.
///
/// A line that is being written, or was torn by a loss of power, is ignored.
pub fn read(file: &mut File) -> io::Result<Status> {
    let work = work_of(file)?;
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut text = Vec::new();
    Read::by_ref(file).take(TAIL).read_to_end(&mut text)?;
    let mut status = Status::default();
    for line in text.split(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Started { .. }) => status = Status::default(),
            Ok(Line::Work(_)) => {}
            Ok(Line::Progress(progress)) => status.progress = Some(progress),
            Ok(Line::Report(report)) => status.ending = Some(Ending::Report(Box::new(report))),
            Ok(Line::Cleaned) => status.ending = Some(Ending::Cleaned),
            Ok(Line::Error { exit_code, text }) => {
                status.ending = Some(Ending::Error(exit_code, text));
            }
            Err(_) => {}
        }
    }
    Ok(Status { work, ..status })
}

fn work_of(file: &mut File) -> io::Result<Option<Work>> {
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(file).take(HEAD).read_to_end(&mut head)?;
    let first = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(match serde_json::from_slice(first) {
        Ok(Line::Work(work)) => Some(work),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Action;
    use super::*;
    use std::io::Write;

    #[test]
    fn what_a_file_is_about_is_known_however_long_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        let work = Work { created: u64::MAX, attempt: u32::MAX, action: Action::Clean };
        file.write_all(&Line::Work(work).text()).unwrap();
        assert_eq!(read(&mut file).unwrap().work, Some(work));
        let noise = vec![b'\n'; 1 << 20];
        (0..=TAIL >> 20).for_each(|_| file.write_all(&noise).unwrap());
        file.write_all(&Line::Cleaned.text()).unwrap();
        let expected =
            Status { work: Some(work), ending: Some(Ending::Cleaned), ..Status::default() };
        assert_eq!(read(&mut file).unwrap(), expected);
    }

    #[test]
    fn the_last_worker_counts_and_a_torn_line_does_not() {
        let mut file = tempfile::tempfile().unwrap();
        let error = r#"{"error":{"exit_code":2,"text":"no"}}"#;
        writeln!(file, "{{\"started\":{{\"pid\":1}}}}\n{error}").unwrap();
        assert_eq!(read(&mut file).unwrap().ending, Some(Ending::Error(2, "no".into())));
        write!(file, "{{\"started\":{{\"pid\":2}}}}\n\"clea").unwrap();
        assert_eq!(read(&mut file).unwrap(), Status::default());
        writeln!(file, "ned\"").unwrap();
        assert_eq!(read(&mut file).unwrap().ending, Some(Ending::Cleaned));
    }
}
