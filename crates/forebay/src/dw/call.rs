//! One call of `dw_wlm_cli`: the flags that Slurm gives, and the work of each function.

use std::collections::BTreeMap;
use std::ffi::OsString;

use forebay_base::units::parse_size;
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result};
use serde_json::json;

use super::sessions::Sessions;
use super::{Told, job, show};

/// Flags that take a value, each with its name here.
const FLAGS: &[(&str, &str)] = &[
    ("--function", "function"),
    ("--token", "token"),
    ("-t", "token"),
    ("--job", "job"),
    ("--caller", "caller"),
    ("-c", "caller"),
    ("--user", "user"),
    ("-u", "user"),
    ("--groupid", "group"),
    ("-g", "group"),
    ("--capacity", "capacity"),
    ("-C", "capacity"),
    ("--access", "access"),
    ("-a", "access"),
    ("--type", "type"),
    ("-T", "type"),
    ("--pathfile", "pathfile"),
    ("--nidlistfile", "nodes"),
    ("--nodehostnamefile", "nodes"),
];

#[derive(Debug, Default)]
pub struct Call {
    values: BTreeMap<&'static str, String>,
    hurry: bool,
}

impl Call {
    pub fn of(args: &[OsString]) -> Result<Call> {
        let mut call = Call::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let word = text(word)?;
            if word == "--hurry" {
                call.hurry = true;
                continue;
            }
            let flag = FLAGS.iter().find(|(flag, _)| *flag == word);
            let (_, name) = flag.ok_or_else(|| usage(format!("dw_wlm_cli: {word} is unknown")))?;
            let value = words.next().ok_or_else(|| usage(format!("{word} takes a value")))?;
            call.values.insert(name, text(value)?.to_string());
        }
        Ok(call)
    }

    fn maybe(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn want(&self, name: &str) -> Result<&str> {
        self.maybe(name).ok_or_else(|| {
            let flag =
                FLAGS.iter().find(|(_, known)| *known == name).map_or(name, |(flag, _)| flag);
            usage(format!("dw_wlm_cli: {flag} is missing"))
        })
    }

    /// Does the work of the call and returns the output for Slurm.
    pub fn run(&self) -> Result<String> {
        let token = || self.want("token");
        match self.want("function")? {
            "job_process" => done(&["process", "--script", self.want("job")?]),
            "setup" => self.setup(),
            "data_in" => done(&["data-in", "--job", token()?]),
            "real_size" => real_size(token()?),
            "paths" => done(&["paths", "--job", token()?, "--file", self.want("pathfile")?]),
            "pre_run" => self.pre_run(),
            "post_run" => done(&["post-run", "--job", token()?]),
            "data_out" => done(&["data-out", "--job", token()?]),
            "teardown" | "destroy_persistent" => self.teardown(),
            "create_persistent" => self.create(),
            "pools" => first_line(job(&["pools"])?),
            "show_instances" => Ok(show::instances(&Sessions::known()?).to_string()),
            "show_sessions" => Ok(show::sessions(&Sessions::known()?).to_string()),
            "show_configurations" => Ok(show::configurations(&Sessions::known()?).to_string()),
            other => Err(usage(format!("invalid function {other}"))),
        }
    }

    fn setup(&self) -> Result<String> {
        let (token, user, group) = (self.want("token")?, self.want("user")?, self.want("group")?);
        let script = self.want("job")?;
        let mut words =
            vec!["setup", "--job", token, "--uid", user, "--gid", group, "--script", script];
        // Slurm itself calls create_persistent and destroy_persistent for the script's #BB lines.
        words.push("--named-apart");
        let (pool, bytes) = match self.maybe("capacity") {
            Some(capacity) => pool_and_bytes(capacity)?,
            None => (String::new(), 0),
        };
        let bytes_text = bytes.to_string();
        if !pool.is_empty() && bytes > 0 {
            words.extend(["--pool", &pool, "--bytes", &bytes_text]);
        }
        done(&words)
    }

    fn pre_run(&self) -> Result<String> {
        let mut words = vec!["pre-run", "--job", self.want("token")?];
        if let Some(file) = self.maybe("nodes") {
            words.extend(["--nodes-file", file]);
        }
        done(&words)
    }

    /// Tears down a job or a persistent buffer: Slurm names jobs by number and buffers by name.
    fn teardown(&self) -> Result<String> {
        let token = self.want("token")?;
        let mut words = match is_job(token) {
            true => vec!["teardown", "--job", token],
            false => vec!["persistent", "destroy", "--name", token],
        };
        if self.hurry {
            words.push("--hurry");
        }
        done(&words)
    }

    /// Creates a persistent buffer. Slurm looks for the word "created" in the output, and names no group: it is
    /// the user's own. On one node all access modes mean the same.
    fn create(&self) -> Result<String> {
        if self.maybe("type") == Some("cache") {
            return Err(usage(
                "type=cache: Slurm does not say what is to be cached: use `forebay instance create cache`"
                    .into(),
            ));
        }
        let (name, uid) = (self.want("token")?, self.want("user")?);
        let (pool, bytes) = pool_and_bytes(self.want("capacity")?)?;
        let gid = group_of(uid)?.to_string();
        let bytes = bytes.to_string();
        let mut words = vec!["persistent", "create", "--name", name, "--uid", uid, "--gid", &gid];
        words.extend(["--pool", &pool, "--bytes", &bytes]);
        let told = job(&words)?;
        Ok(match told.text.contains("created") {
            true => told.text,
            false => format!("created {name}"),
        })
    }
}

fn done(words: &[&str]) -> Result<String> {
    job(words).map(|_| String::new())
}

fn real_size(token: &str) -> Result<String> {
    let told = job(&["real-size", "--job", token])?;
    let bytes = told.lines.first().and_then(|line| line.trim().parse::<u64>().ok());
    let json = |bytes| json!({ "units": "bytes", "capacity": bytes }).to_string();
    Ok(bytes.map_or(String::new(), json))
}

fn first_line(told: Told) -> Result<String> {
    let line = told.lines.into_iter().next();
    line.ok_or_else(|| Error::new(Kind::Unreachable, "forebay job pools: told no pools"))
}

pub fn is_job(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads `POOL:SIZE`, with sizes as Slurm writes them.
fn pool_and_bytes(capacity: &str) -> Result<(String, u64)> {
    let wrong = |why: &str| usage(format!("--capacity {capacity}: {why}"));
    let (pool, size) = capacity.rsplit_once(':').ok_or_else(|| wrong("write POOL:SIZE"))?;
    // A number alone is bytes.
    let bytes = match size.parse() {
        Ok(bytes) => bytes,
        Err(_) => parse_size(size).map_err(|why| wrong(&why))?,
    };
    // "(null)" is Slurm's text for a pool that the user did not name.
    let pool = if pool == "(null)" { "" } else { pool };
    Ok((pool.into(), bytes))
}

fn group_of(uid: &str) -> Result<u32> {
    let number: u32 =
        uid.parse().map_err(|_| usage(format!("--user {uid}: write a user's number")))?;
    let user = User::with_id(number).map_err(|e| Error::io(e, format!("user {number}")))?;
    let user = user.ok_or_else(|| usage(format!("user {number} has no account on this host")))?;
    Ok(user.gid)
}

fn text(word: &OsString) -> Result<&str> {
    word.to_str().ok_or_else(|| usage(format!("{}: is no text", word.display())))
}

fn usage(why: String) -> Error {
    Error::new(Kind::Usage, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<Call> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Call::of(&words)
    }

    /// The calls as burst_buffer_datawarp.c writes them.
    #[test]
    fn slurm_s_calls_are_read() {
        let line = "--function setup --token 17 --caller SLURM --user 1001 --groupid 100 \
                    --capacity flash:10GiB --job /s/script --nodehostnamefile /s/nids";
        let setup = call(line).unwrap();
        assert_eq!(setup.want("token").unwrap(), "17");
        assert_eq!(
            pool_and_bytes(setup.want("capacity").unwrap()).unwrap(),
            ("flash".into(), 10 << 30)
        );
        let line = "--function create_persistent -c CLI -t data -u 1001 -C flash:1024 -a striped -T scratch";
        let create = call(line).unwrap();
        assert_eq!((create.want("token").unwrap(), create.want("user").unwrap()), ("data", "1001"));
        assert!(call("--function teardown --token 17 --job /s --hurry").unwrap().hurry);
    }

    #[test]
    fn mistakes_are_told() {
        let failed = |line: &str| match call(line) {
            Ok(call) => call.run().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(failed("--function dance").starts_with("invalid function"));
        assert!(failed("--function data_in").contains("--token is missing"));
        assert!(failed("--colour red").contains("--colour is unknown"));
        assert!(failed("--function").contains("takes a value"));
        assert_eq!(pool_and_bytes("flash:1025").unwrap(), ("flash".into(), 1025));
        assert!(pool_and_bytes("flash").is_err() && pool_and_bytes("flash:1X").is_err());
        assert_eq!(pool_and_bytes("(null):0").unwrap(), (String::new(), 0));
    }
}
