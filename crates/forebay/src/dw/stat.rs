//! `dwstat`: tables for people, by `scontrol show bbstat`. Any user can give its arguments, so an unknown
//! word is refused and not repeated.

use std::ffi::OsString;

use forebay_base::units::exact_size;
use forebay_base::users;
use forebay_base::{Error, Kind, Result};
use serde_json::Value;

use super::job;
use super::sessions::{Session, Sessions};
use crate::moment;

type Table = (&'static str, fn() -> Result<Rows>);

const TABLES: [Table; 4] = [
    ("pools", pools),
    ("sessions", || Ok(sessions(&Sessions::known()?))),
    ("instances", || Ok(instances(&Sessions::known()?))),
    ("configurations", || Ok(configurations(&Sessions::known()?))),
];

type Rows = Vec<Vec<String>>;

pub fn run(args: &[OsString]) -> Result<String> {
    let wanted = args.first().map_or(Some("pools"), |word| word.to_str());
    let chosen = |name: &str| wanted == Some(name) || matches!(wanted, Some("most" | "all"));
    let tables: Result<Vec<String>> = TABLES
        .iter()
        .filter(|(name, _)| chosen(name))
        .map(|(_, table)| Ok(laid_out(&table()?)))
        .collect();
    let tables = tables?;
    match tables.is_empty() {
        true => Err(Error::new(
            Kind::Usage,
            "dwstat: there are pools, sessions, instances, configurations, most and all",
        )),
        false => Ok(tables.join("\n\n")),
    }
}

fn pools() -> Result<Rows> {
    let told = job(&["pools"])?;
    let text = told.lines.first().map_or("{}", String::as_str);
    let value: Value = serde_json::from_str(text)
        .map_err(|e| Error::os(libc::EIO, format!("forebay job pools: {e}")))?;
    let mut rows = vec![words("pool units quantity free gran")];
    for pool in value["pools"].as_array().into_iter().flatten() {
        let number = |key: &str| pool[key].as_u64().unwrap_or(0);
        let size = |key: &str| exact_size(number(key).saturating_mul(number("granularity")));
        rows.push(vec![
            pool["id"].as_str().unwrap_or_default().into(),
            "bytes".into(),
            size("quantity"),
            size("free"),
            exact_size(number("granularity")),
        ]);
    }
    Ok(rows)
}

fn sessions(Sessions(all): &Sessions) -> Rows {
    let mut rows = vec![words("sess state token creator owner created expiration nodes")];
    rows.extend(all.iter().map(|session| {
        vec![
            session.id.to_string(),
            state(session, session.pieces.iter().all(|piece| piece.ready)),
            session.token.clone(),
            "SLURM".into(),
            users::show(session.owner),
            moment::show_day(session.created),
            "never".into(),
            session.nodes.len().to_string(),
        ]
    }));
    rows
}

fn instances(Sessions(all): &Sessions) -> Rows {
    let mut rows = vec![words("inst state sess bytes nodes created expiration intact label")];
    for session in all {
        rows.extend(session.pieces.iter().map(|piece| {
            vec![
                piece.id.to_string(),
                state(session, piece.ready),
                session.id.to_string(),
                exact_size(piece.bytes),
                piece.nodes.to_string(),
                moment::show_day(session.created),
                if piece.expires == 0 { "never".into() } else { moment::show_day(piece.expires) },
                "yes".into(),
                piece.label.clone(),
            ]
        }));
    }
    rows
}

fn configurations(Sessions(all): &Sessions) -> Rows {
    let mut rows = vec![words("conf state inst type activs")];
    for session in all {
        rows.extend(session.pieces.iter().map(|piece| {
            let kind = match (piece.cache, piece.swap) {
                (true, _) => "cache",
                (_, true) => "swap",
                _ => "scratch",
            };
            let id = piece.id.to_string();
            vec![
                id.clone(),
                state(session, piece.ready),
                id,
                kind.into(),
                session.nodes.len().to_string(),
            ]
        }));
    }
    rows
}

/// Cray's five letters: goal, actualized, fuse, mixed, in transition.
fn state(session: &Session, ready: bool) -> String {
    let goal = if session.stays { 'C' } else { 'D' };
    let there = if ready { 'A' } else { '-' };
    let moves = if ready && session.stays { '-' } else { 'T' };
    [goal, there, '-', moves, '-'].iter().collect()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

/// Aligns cells to the right, with one blank between columns, as Cray's tables do.
fn laid_out(rows: &Rows) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        cells.join(" ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::sessions::tests::sessions as known;
    use super::*;

    #[test]
    fn tables_have_cray_s_columns() {
        let text = laid_out(&configurations(&known()));
        let (head, row) = text.split_once('\n').unwrap();
        assert!(head.trim_start().starts_with("conf state"), "{text}");
        assert!(row.contains(" CA--- ") && row.ends_with(" scratch      2"), "{text}");
        let text = laid_out(&sessions(&known()));
        assert!(text.contains(" set   SLURM "), "{text}");
    }

    #[test]
    fn a_word_of_anybody_s_is_not_repeated() {
        let error = run(&["$(id)".into()]).unwrap_err().to_string();
        assert!(!error.contains("id)"), "{error}");
    }
}
