//! The report about a script, as text for people.

use forebay_job::plan::Create;

use super::check::{Report, Transfer};
use super::forecast::{Hook, Load};
use crate::ui::say;
use crate::ui::table::{Align, lay_out};
use crate::units::{counted, human_secs, human_size};

pub fn tell(report: &Report, problems: &[String]) {
    problems.iter().for_each(say);
    if !problems.is_empty() {
        say("");
    }
    let known = if report.nodes_known { "" } else { " (not said in the script)" };
    say(format!(
        "{}: {}, {}{known}",
        report.script.display(),
        counted(report.directives as u64, "directive"),
        counted(u64::from(report.nodes), "node")
    ));
    instances(report);
    named(report);
    transfers(report);
    if !report.variables.is_empty() {
        say("variables of the job, %j being its number:");
        report.variables.iter().for_each(|(name, value)| say(format!("  {name}={value}")));
    }
}

fn table(columns: &[Align], rows: &[Vec<String>]) {
    lay_out(columns, rows).iter().for_each(|line| say(format!("  {line}")));
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

fn instances(report: &Report) {
    if report.plan.instances.is_empty() {
        return;
    }
    say("made for the job, on each node:");
    let mut rows = vec![row(["NAME", "MODE", "POOL", "CAPACITY", "GRANTED", "FOUND BY"])];
    for (space, granted) in report.plan.instances.iter().zip(&report.granted) {
        let pool = granted.as_ref().map(|granted| granted.pool.as_str()).or(space.pool.as_deref());
        let granted = granted.as_ref().map_or("?".into(), |granted| human_size(granted.bytes));
        rows.push(row([
            &space.name,
            space.mode.name(),
            pool.unwrap_or("?"),
            &human_size(space.bytes),
            &granted,
            &space.variables.join(", "),
        ]));
    }
    let (left, right) = (Align::Left, Align::Right);
    table(&[left, left, left, right, right, left], &rows);
    if let Some(why) = &report.nodes_silent {
        say(format!("  what the pools would grant is not known: {why}"));
    }
}

fn named(report: &Report) {
    let plan = &report.plan;
    plan.uses.iter().for_each(|used| say(format!("uses {}", used.name)));
    for Create { name, mode: of, bytes, nodes, .. } in &plan.creates {
        let at = match nodes.is_empty() {
            true => "the node with most room".to_string(),
            false => nodes.join(", "),
        };
        say(format!("creates {name}: {}, {}, on {at}", of.name(), human_size(*bytes)));
    }
    for gone in &plan.destroys {
        let how = if gone.hurry { ", in a hurry" } else { ", when what is staged out is home" };
        say(format!("destroys {}{how}", gone.name));
    }
    if plan.is_lone() {
        say(
            "nothing is for the job itself: without Slurm's DataWarp plug-in no hook runs for it, and",
        );
        say("`forebay job persistent create` and `destroy` do the same");
    }
}

fn transfers(report: &Report) {
    if report.transfers.is_empty() {
        return;
    }
    say("staged:");
    let mut rows = vec![row(["LINE", "WHEN", "FILES", "BYTES", "TIME", "FROM", "TO"])];
    rows.extend(report.transfers.iter().map(transfer));
    let (left, right) = (Align::Left, Align::Right);
    table(&[right, left, right, right, right, left, left], &rows);
    report.hooks.iter().for_each(|load| say(format!("  {}", hook(load))));
    let of = match &report.limits_of {
        Some(file) => file.display().to_string(),
        None => "Slurm's defaults, since there is no burst_buffer.conf".into(),
    };
    say(format!("  limits are of {of}"));
    let rates = &report.rates;
    say(format!(
        "  times are for one node: in {}, out {}",
        rates.stage_in.shown(),
        rates.stage_out.shown()
    ));
    say(format!(
        "  and {} files/s (assumed); --rate and --file-rate say otherwise",
        rates.files_per_second
    ));
}

fn transfer(transfer: &Transfer) -> Vec<String> {
    let (files, bytes) = match &transfer.counted {
        Some(counted) => {
            let more = if counted.whole { "" } else { "+" };
            let (files, bytes) = (counted.files, human_size(counted.bytes));
            (format!("{files}{more}"), format!("{bytes}{more}"))
        }
        None => ("?".into(), "?".into()),
    };
    row([
        &transfer.line.to_string(),
        transfer.hook.name(),
        &files,
        &bytes,
        &transfer.secs.map_or("?".into(), human_secs),
        &transfer.from,
        &transfer.to,
    ])
}

fn hook(load: &Load) -> String {
    let when = match load.hook {
        Hook::DataIn => "before nodes are chosen",
        Hook::PreRun => "on the nodes, before the job begins",
        Hook::DataOut => "when the job has ended",
    };
    let most = if load.at_most { "at most " } else { "" };
    format!(
        "{} ({when}): {most}{} of {}={}",
        load.hook.name(),
        human_secs(load.secs),
        load.setting,
        load.limit_secs
    )
}
