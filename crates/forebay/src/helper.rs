//! `mount -t fuse.forebay`, `/etc/fstab` and `umount`: the calls of mount(8), translated to
//! `forebay mount` and `forebay umount`.
//!
//! mount(8) looks for a program named after the type, so links of such names lead to this program
//! (`mount.fuse.forebay`, `umount.fuse.forebay`). Without a link, mount(8) calls fuse3's helper, which
//! runs `forebay DEVICE DIR -o OPTIONS`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

use forebay_backing::{Error, Kind, Result};

use crate::cli;
use crate::config::keys::{self, Type};
use crate::nearest::nearest;

/// The exit codes of mount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Options that are dropped: mount(8) and systemd use them, or a forebay mount has them anyway.
const TAKEN: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "rw",
    "nosuid",
    "nodev",
    "exec",
    "async",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "lazytime",
    "nolazytime",
    "allow_other",
    "default_permissions",
];

/// The same for options with a value; also prefixes.
const TAKEN_WITH_VALUE: &[&str] =
    &["x-", "X-", "comment=", "user=", "uhelper=", "helper=", "subtype="];

/// A call by mount(8), which expects its own exit codes.
pub struct Call {
    /// The words behind `forebay`; `None` if there is nothing to do.
    pub words: Result<Option<Vec<OsString>>>,
}

impl Call {
    /// The call, if mount(8) started the process, which its name shows.
    pub fn of(args: &[OsString]) -> Option<Call> {
        let (name, rest) = args.split_first()?;
        let name = Path::new(name).file_name()?.to_str()?;
        let words = match name {
            "mount.forebay" | "mount.fuse.forebay" => mount(rest),
            "umount.forebay" | "umount.fuse.forebay" => Ok(Some(umount(rest))),
            _ if is_of_fuse3(rest) => mount(rest),
            _ => return None,
        };
        Some(Call { words })
    }
}

/// The exit code of mount(8) for an exit code of forebay.
pub fn exit_code(code: u8) -> ExitCode {
    ExitCode::from(match code {
        0 => 0,
        2 => USAGE,
        _ => FAILED,
    })
}

/// Whether fuse3's helper called: without a subcommand, the device and the directory come first.
fn is_of_fuse3(args: &[OsString]) -> bool {
    let absolute = |arg: Option<&OsString>| arg.is_some_and(|arg| Path::new(arg).is_absolute());
    let is_command = args.first().and_then(|arg| arg.to_str()).is_some_and(cli::has_command);
    !is_command && absolute(args.get(1)) && args.get(2).is_some_and(|arg| arg == "-o")
}

/// `DEVICE DIR [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, in any order.
fn mount(args: &[OsString]) -> Result<Option<Vec<OsString>>> {
    let mut plain = Vec::new();
    let mut options = Options::default();
    let (mut fake, mut read_only, mut sloppy) = (false, false, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(flags) = arg.to_str().and_then(|arg| arg.strip_prefix('-')) else {
            plain.push(arg);
            continue;
        };
        match flags {
            "o" => options.take(args.next().map_or(&b""[..], |text| text.as_bytes())),
            "t" | "N" => drop(args.next()),
            _ => {
                fake |= flags.contains('f');
                read_only |= flags.contains('r');
                sloppy |= flags.contains('s');
            }
        }
    }
    let &[device, dir] = &plain[..] else {
        return Err(usage("called by hand? write: mount.forebay DEVICE DIR -o tier=DIR,..."));
    };
    let mut words = vec!["mount".into(), device.clone()];
    match options.value("tier")? {
        Some(tier) => words.extend([dir.clone(), "--tier".into(), tier]),
        None if Path::new(device).is_absolute() => {
            return Err(usage("-o tier=DIR is missing: the directory of the fast tier"));
        }
        None => words.extend(["--at".into(), dir.clone()]),
    }
    if read_only {
        words.push("--read-only".into());
    }
    words.extend(options.flags(sloppy)?);
    Ok((!fake).then_some(words))
}

/// `DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`
fn umount(args: &[OsString]) -> Vec<OsString> {
    let mut words = vec!["umount".into()];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-N" | "-t") => drop(args.next()),
            Some(flag) if flag.starts_with('-') => {}
            _ => words.push(arg.clone()),
        }
    }
    words
}

fn usage(why: impl Into<String>) -> Error {
    Error::new(Kind::Usage, why)
}

/// The options of `-o`, in their order. A comma in a value has a backslash before it.
#[derive(Default)]
struct Options(Vec<Vec<u8>>);

impl Options {
    fn take(&mut self, text: &[u8]) {
        let mut option = Vec::new();
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            match byte {
                b'\\' => option.extend(bytes.next()),
                b',' => self.0.push(std::mem::take(&mut option)),
                _ => option.push(byte),
            }
        }
        self.0.push(option);
        self.0.retain(|option| !option.is_empty());
    }

    /// Removes the options of this name and returns the value of the last one.
    fn value(&mut self, name: &str) -> Result<Option<OsString>> {
        let start = [name.as_bytes(), b"="].concat();
        let (own, rest) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|option: &Vec<u8>| option.starts_with(&start));
        self.0 = rest;
        let last: Option<Vec<u8>> = Vec::pop(&mut { own });
        let value = last.map(|option| OsString::from_vec(option[start.len()..].to_vec()));
        match value {
            Some(value) if value.is_empty() => Err(usage(format!("-o {name}=: names nothing"))),
            value => Ok(value),
        }
    }

    /// The remaining options as flags of `forebay mount`.
    fn flags(mut self, sloppy: bool) -> Result<Vec<OsString>> {
        let mut flags: Vec<OsString> = Vec::new();
        if let Some(file) = self.value("config")? {
            flags.extend(["--config".into(), file]);
        }
        for option in self.0 {
            let option = String::from_utf8(option).map_err(|_| usage("-o: is not UTF-8"))?;
            match flag(&option) {
                Ok(flag) => flags.extend(flag.map(OsString::from)),
                Err(_) if sloppy => {}
                Err(error) => return Err(error),
            }
        }
        Ok(flags)
    }
}

fn flag(option: &str) -> Result<Option<String>> {
    let taken = TAKEN.contains(&option) || TAKEN_WITH_VALUE.iter().any(|o| option.starts_with(o));
    if taken {
        return Ok(None);
    }
    if option == "ro" {
        return Ok(Some("--read-only".into()));
    }
    let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
    match (keys::find(name), value) {
        (Ok(key), Some(value)) => Ok(Some(format!("--{}={value}", key.name))),
        (Ok(key), None) if key.kind == Type::Bool => Ok(Some(format!("--{}", key.name))),
        (Ok(key), None) => Err(usage(format!("-o {name}: write {name}=VALUE: {}", key.allowed()))),
        (Err(_), _) => {
            let known = keys::KEYS.iter().map(|key| key.name).chain(["tier", "config", "ro"]);
            let hint = nearest(name, known).map(|near| format!("; did you mean {near}?"));
            Err(usage(format!("-o {option}: unknown option{}", hint.unwrap_or_default())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(line: &str) -> Result<Option<Vec<String>>> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let call = Call::of(&args).expect("a call of mount(8)");
        let text = |word: OsString| word.into_string().unwrap();
        call.words.map(|words| words.map(|words| words.into_iter().map(text).collect()))
    }

    #[test]
    fn a_line_of_fstab_is_a_mount() {
        let options =
            "rw,nofail,x-systemd.requires=nvme.mount,_netdev,tier=/t\\,1,max-age=5s,read-only";
        let line = format!("/sbin/mount.fuse.forebay /slow /mnt -n -o {options} -t fuse.forebay");
        let words = ["mount", "/slow", "/mnt", "--tier", "/t,1", "--max-age=5s", "--read-only"];
        assert_eq!(called(&line).unwrap().unwrap(), words);
        let line = "forebay /slow /mnt -o ro,tier=/t,config=/etc/f.toml";
        let words =
            ["mount", "/slow", "/mnt", "--tier", "/t", "--config", "/etc/f.toml", "--read-only"];
        assert_eq!(called(line).unwrap().unwrap(), words);
    }

    /// mount(8) passes these options on for the option `user`.
    #[test]
    fn a_mount_by_a_user_starts_no_programs() {
        let line = "mount.forebay /s /m -o rw,nosuid,nodev,noexec,user=bob,tier=/t";
        let words = called(line).unwrap().unwrap();
        assert_eq!(words, ["mount", "/s", "/m", "--tier", "/t", "--noexec"]);
    }

    #[test]
    fn a_name_stands_for_a_section() {
        let words = called("mount.forebay home /mnt -o defaults").unwrap().unwrap();
        assert_eq!(words, ["mount", "home", "--at", "/mnt"]);
    }

    #[test]
    fn a_fake_mount_does_nothing_and_a_sloppy_one_takes_what_it_does_not_know() {
        assert_eq!(called("mount.forebay /s /m -f -o tier=/t").unwrap(), None);
        assert!(called("mount.forebay /s /m -s -o tier=/t,colour=red").unwrap().is_some());
    }

    #[test]
    fn mistakes_are_told() {
        let wrong = |line: &str| called(line).unwrap_err().to_string();
        assert!(wrong("mount.forebay /s /m").contains("tier=DIR"));
        assert!(wrong("mount.forebay /s /m -o teir=/t,tier=/t").contains("did you mean tier?"));
        assert!(wrong("mount.forebay /s /m -o tier=/t,max-age").contains("max-age=VALUE"));
        assert!(wrong("mount.forebay /s /m -o tier=/t,sync").contains("sync"));
        assert!(wrong("mount.forebay /s").contains("DEVICE DIR"));
    }

    #[test]
    fn only_mount_calls_like_this() {
        let call = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Call::of(&args).is_some()
        };
        assert!(!call("forebay mount /s /m --tier /t"));
        assert!(!call("forebay ls /mnt"));
        assert!(!call("forebay mount /slow -o tier=/t"));
        assert!(call("forebay home /mnt -o defaults"));
        assert_eq!(
            called("umount.fuse.forebay /mnt -l -t fuse.forebay").unwrap().unwrap(),
            ["umount", "/mnt"]
        );
    }
}
