use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::*;

fn answer(uptime: f64, written: u64) -> Value {
    let bytes = json!({
        "from_programs": written, "to_programs": 0, "to_backing": written / 2, "from_backing": 0,
        "passthrough_new": written * 4, "tier_device_written": written * 8, "tier_device_read": 0,
    });
    let op = json!({ "p50_us": 12, "p99_us": 345, "p999_us": 6789 });
    json!({
        "marks": { "low": 20, "high": 50, "hard": 80 },
        "max_age_secs": 30.0,
        "status": {
            "mountpoint": "/a/very/long/path/of/directories/that/does/not/fit/on/the/line/at/all/mnt",
            "uptime_secs": uptime, "tier_bytes": 100, "dirty_bytes": 60, "governor": "age",
            "limited_by": "rate-max", "oldest_dirty_age_secs": 12.0, "full_in_secs": null,
        },
        "now": { "bytes": bytes },
        "minute": {
            "span_secs": 10.0, "bytes": bytes, "fuse": { "write": op },
            "requests": { "write": { "total": 200, "hits": 50 } },
        },
        "busiest_files": [{ "path": "x/y.bin", "bytes_per_sec": 1048576 }],
        "processes": [{ "pid": 77, "name": "fio", "bytes_per_sec": 2097152 }],
        "jobs": 2,
    })
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn everything_is_on_a_screen_of_80_by_24() {
    let mut screen = Screen::default();
    screen.update(answer(10.0, 10 << 20));
    screen.update(answer(12.0, 30 << 20));
    let text = drawn(&screen, 80, 24);
    for wanted in [
        "10.0 MiB/s",
        "5.0 MiB/s",
        "age",
        "rate-max",
        "12 s of at most 30 s",
        "345",
        "6789",
        "x/y.bin",
        "77 fio",
        "2.0 MiB/s",
        "25 % hit",
        "new    40.0 MiB/s  past the daemon",
        "writes 80.0 MiB/s, reads 0 B/s",
        "jobs: 2",
        "q quits",
        "full in -",
        "mnt",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    let bar: String = text.lines().find(|line| line.contains("dirty [")).unwrap().into();
    let cells = bar.split(['[', ']']).nth(1).unwrap();
    assert!(cells.starts_with('#') && cells.contains("h#") && cells.contains("-H-"), "{bar}");
}

#[test]
fn top_draws_on_any_screen_and_before_any_answer() {
    let mut screen = Screen::default();
    drawn(&screen, 80, 24);
    screen.update(answer(10.0, 1000));
    screen.trouble = Some("the daemon does not answer".into());
    for (width, height) in [(1, 1), (20, 5), (80, 10), (300, 100)] {
        drawn(&screen, width, height);
    }
    assert!(drawn(&screen, 80, 24).contains("does not answer"));
}

#[test]
fn the_first_rates_are_the_minutes_and_a_restart_does_not_confuse() {
    let mut screen = Screen::default();
    screen.update(answer(10.0, 1000));
    assert_eq!(screen.rates.written, 100.0);
    screen.update(answer(11.0, 3000));
    assert_eq!(screen.rates.written, 2000.0);
    screen.update(answer(1.0, 500));
    assert_eq!(screen.rates.written, 50.0);
}

/// An answer with the widest figures.
fn crowded() -> Value {
    let mut answer = answer(10.0, 10 * 1_072_693_248);
    let op = json!({ "p50_us": 99_999, "p99_us": 99_999, "p999_us": 99_999_999 });
    let ops = json!({ "read": op, "write": op, "fsync": op });
    let tier = json!({ "read": op, "write": op, "sync": op });
    let backing = json!({ "read_at": op, "write_at": op, "sync_files": op });
    let minute = &mut answer["minute"];
    (minute["fuse"], minute["tier"], minute["backing"]) = (ops, tier, backing);
    minute["bytes"]["to_programs"] = json!(10_u64 * 1_072_693_248);
    minute["bytes"]["from_backing"] = json!(10_u64 * 1_072_693_248);
    let requests = json!({ "total": 99_999, "hits": 99_999 });
    minute["requests"] = json!({ "read": requests, "write": requests });
    let long = "y".repeat(300);
    answer["busiest_files"] = json!([{ "path": long, "bytes_per_sec": 1_072_693_248 }]);
    answer["processes"] =
        json!([{ "pid": 4_194_304, "name": long, "bytes_per_sec": 1_072_693_248 }]);
    answer
}

/// Columns side by side have a blank between them, however wide they are.
#[test]
fn columns_never_run_together() {
    let mut screen = Screen::default();
    screen.update(crowded());
    for width in [80, 120] {
        // Each line is printed in quotes.
        let text = drawn(&screen, width, 24).replace('"', " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let count = |word: &str| words.iter().filter(|found| **found == word).count();
        assert_eq!(count("99999"), 3 * 3 * 2, "at {width}:\n{text}");
        assert_eq!(count("99M"), 3 * 3, "at {width}:\n{text}");
        assert_eq!(
            words.iter().filter(|word| word.ends_with("yyy")).count(),
            2,
            "at {width}:\n{text}"
        );
        // Two in the lists, then write, read and fetch; flush ends on half of it.
        let rates = words.iter().filter(|word| **word == "MiB/s").count();
        assert_eq!(rates, 6, "at {width}:\n{text}");
        for word in ["write", "flush", "fetch", "99999,", "hit"] {
            assert!(count(word) > 0, "{word} at {width}:\n{text}");
        }
        for word in words.iter().filter(|word| word.contains("/s")) {
            assert!(word.ends_with("/s") || word.ends_with("/s,"), "{word} at {width}:\n{text}");
        }
    }
}

#[test]
fn a_tier_without_a_device_and_writes_that_are_all_new_are_told_in_words() {
    let mut answer = answer(10.0, 0);
    answer["now"]["bytes"]["tier_device_written"] = Value::Null;
    answer["minute"]["requests"]["write"] = json!({ "total": 7, "new": 7, "hits": 0 });
    let mut screen = Screen::default();
    screen.update(answer);
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("writes: 7, all new") && text.contains("no block device"), "{text}");
}
