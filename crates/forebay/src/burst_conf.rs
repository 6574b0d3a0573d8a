//! Slurm's burst_buffer.conf: how long its hooks may take.

use std::path::{Path, PathBuf};

use forebay_base::{Error, Result};

/// The largest limit that Slurm's Lua plug-in accepts, in seconds.
const SECONDS_MAX: u64 = 2_073_600;

/// Slurm's defaults, for limits that the file does not set.
const STAGE_SECONDS: u64 = 86_400;
const OTHER_SECONDS: u64 = 300;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BurstConf {
    /// `None`: there is no such file, and these are Slurm's defaults.
    pub file: Option<PathBuf>,
    pub stage_in_secs: u64,
    pub stage_out_secs: u64,
    /// For all other hooks, pre-run and teardown among them.
    pub other_secs: u64,
    /// `Directive=`, with its default.
    pub directive: String,
}

impl Default for BurstConf {
    fn default() -> BurstConf {
        BurstConf {
            file: None,
            stage_in_secs: STAGE_SECONDS,
            stage_out_secs: STAGE_SECONDS,
            other_secs: OTHER_SECONDS,
            directive: "BB_LUA".into(),
        }
    }
}

impl BurstConf {
    /// Reads the file beside `$SLURM_CONF`, or in /etc/slurm.
    pub fn load() -> Result<BurstConf> {
        BurstConf::load_from(&place())
    }

    pub fn load_from(file: &Path) -> Result<BurstConf> {
        match std::fs::read(file) {
            Ok(text) => {
                let read = BurstConf::read(&String::from_utf8_lossy(&text));
                Ok(BurstConf { file: Some(file.into()), ..read })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(BurstConf::default()),
            Err(e) => Err(Error::io(e, file.display().to_string())),
        }
    }

    /// Reads the limits. Slurm checks the file when it starts, so lines that Slurm would refuse are skipped here.
    fn read(text: &str) -> BurstConf {
        let mut conf = BurstConf::default();
        let joined = text.replace("\\\n", " ");
        for line in joined.lines() {
            let line = line.split('#').next().unwrap_or_default();
            // Slurm accepts blanks around the equals sign.
            let line = line.replace(" =", "=").replace("= ", "=");
            for (key, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
                conf.set(&key.to_ascii_lowercase(), value.trim_matches('"'));
            }
        }
        conf
    }

    fn set(&mut self, key: &str, value: &str) {
        let seconds = value.parse().ok().filter(|secs| (1..=SECONDS_MAX).contains(secs));
        match (key, seconds) {
            ("stageintimeout", Some(secs)) => self.stage_in_secs = secs,
            ("stageouttimeout", Some(secs)) => self.stage_out_secs = secs,
            ("othertimeout", Some(secs)) => self.other_secs = secs,
            ("directive", _) => self.directive = value.into(),
            _ => {}
        }
    }
}

fn place() -> PathBuf {
    let beside = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let dir = beside.as_deref().and_then(Path::parent).unwrap_or(Path::new("/etc/slurm"));
    dir.join("burst_buffer.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_slurm_reads_it() {
        let conf = BurstConf::read(
            "# StageInTimeout=1\nstageintimeout = 60 StageOutTimeout=\"120\" # x\n\
             Other\\\nTimeout=9\nDirective=DW\nFlags=TeardownFailure\nOtherTimeout=600\n",
        );
        assert_eq!((conf.stage_in_secs, conf.stage_out_secs, conf.other_secs), (60, 120, 600));
        assert_eq!(conf.directive, "DW");
        let odd =
            BurstConf::read("OtherTimeout=0\nStageInTimeout=never\nStageOutTimeout=99999999\n");
        assert_eq!(odd, BurstConf::default());
    }

    #[test]
    fn without_the_file_slurms_defaults_hold() {
        let conf = BurstConf::load_from(Path::new("/nonexistent/burst_buffer.conf")).unwrap();
        assert_eq!((conf.file, conf.other_secs), (None, 300));
    }
}
