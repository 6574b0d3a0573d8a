//! The run as result lines (`--out`, `--json`), for `forebay bench report`.

use std::collections::BTreeMap;

use super::layout;
use super::measure::Measured;
use super::params::Params;
use super::run::Ran;
use crate::io::Direction;
use crate::record::{Access, Header, Line, Outcome, Part, Phase, Record};
use crate::recorder::{self, Course, Recorder};
use crate::{Result, environment};

pub struct Records {
    recorder: Recorder,
    several: bool,
}

impl Records {
    /// Opens the files asked for; a bad path is a usage error.
    pub fn begin(first: &Params, args: &[String]) -> Result<Self> {
        let header = Header {
            cache: first.cache.name().to_owned(),
            backend: first.api.name().to_lowercase(),
            settings: settings(first),
            ..environment::header("ior", args, &[layout::file(first, 0, 0)])
        };
        Ok(Self { recorder: Recorder::begin(header, &first.sinks())?, several: false })
    }

    /// The phases of a finished test, each with its course over time.
    pub fn test(&mut self, ran: &Ran) -> Result<()> {
        self.several |= ran.id > 0;
        for measured in &ran.phases {
            let name = self.name(ran, measured);
            let iteration = measured.repetition as u32;
            self.recorder.put(Line::Phase(phase(ran, measured, name.clone())))?;
            let course = Course {
                phase: &name,
                iteration,
                from_seconds: 0.0,
                seconds: measured.total,
                part: Part::Measured,
            };
            self.recorder.put_series(course, &measured.meters.series)?;
        }
        Ok(())
    }

    pub fn finish(self, outcome: Outcome) -> Result<Record> {
        self.recorder.finish(outcome)
    }

    fn name(&self, ran: &Ran, measured: &Measured) -> String {
        match self.several {
            true => format!("test {} {}", ran.id, measured.name()),
            false => measured.name().to_owned(),
        }
    }
}

fn phase(ran: &Ran, measured: &Measured, name: String) -> Phase {
    let figures = [
        ("unwritten_share", measured.unwritten),
        ("device_bytes", measured.device.map(|bytes| bytes as f64)),
        ("errors", (measured.errors > 0).then_some(measured.errors as f64)),
    ];
    let present = figures.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Phase {
        name,
        iteration: measured.repetition as u32,
        access: match measured.direction {
            Direction::Write => Access::Write,
            Direction::Read => Access::Read,
        },
        tasks: ran.params.tasks as u32,
        bytes: measured.bytes,
        ops: measured.transfers,
        seconds: measured.total,
        open_seconds: Some(measured.open),
        io_seconds: Some(measured.transfer),
        close_seconds: Some(measured.close),
        block_bytes: Some(ran.params.block),
        transfer_bytes: Some(ran.params.transfer),
        latency: Some(recorder::latency(&measured.meters.latency)),
        resident_share: measured.resident,
        warnings: measured.warnings.clone(),
        figures: present.collect(),
    }
}

/// The settings a reader needs to repeat the run.
fn settings(params: &Params) -> BTreeMap<String, String> {
    let shown = super::output::options(params);
    let limit = params.device_limit.map(|limit| ("device limit".to_owned(), limit.to_string()));
    shown.into_iter().filter(|(_, value)| !value.is_empty()).chain(limit).collect()
}
