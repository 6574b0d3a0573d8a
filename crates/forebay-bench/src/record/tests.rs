use super::*;

fn header() -> Header {
    Header {
        format: FORMAT.into(),
        version: VERSION,
        tool: "forebay-bench 9".into(),
        workload: "steady".into(),
        command: vec!["forebay".into(), "bench".into(), "steady".into()],
        cache: "drop".into(),
        settings: BTreeMap::from([("rate".into(), "100".into())]),
        ..Header::default()
    }
}

/// One line of each kind, with values that a careless format would lose.
fn every_kind() -> Vec<Line> {
    vec![
        Line::Header(header()),
        Line::Phase(Phase {
            name: "read \"two\"".into(),
            access: Access::Read,
            bytes: u64::MAX,
            seconds: 0.1,
            open_seconds: Some(0.25),
            resident_share: Some(1.0 / 3.0),
            latency: Some(Latency { p999_ns: 7, mean_ns: 0.3, ..Latency::default() }),
            warnings: vec!["64 % of it\nwas cached".into()],
            figures: BTreeMap::from([("waited_seconds".into(), 1e-9)]),
            ..Phase::default()
        }),
        Line::Second(Second {
            phase: "read".into(),
            part: Part::WarmUp,
            histogram: vec![(0, 10, 3), (10, 20, u64::MAX)],
            ..Second::default()
        }),
        Line::Scale(ScalePoint { clients: 4, knee: true, ..ScalePoint::default() }),
        Line::Fill(FillPoint { share: 2.0 / 3.0, steady: true, ..FillPoint::default() }),
        Line::Comparison(Comparison {
            name: "write".into(),
            a: vec![1.0, 2.0],
            better: Better::Lower,
            verdict: Verdict::BBetter,
            ..Comparison::default()
        }),
        Line::Finding(Finding { text: "flat".into() }),
        Line::End(End { outcome: Outcome::Interrupted, seconds: 2.5 }),
    ]
}

fn written(lines: &[Line]) -> String {
    lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
}

fn message(text: &str) -> String {
    Record::read("r.ndjson", text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn every_line_reads_back_as_it_was() {
    let lines = every_kind();
    let mut expected = Record::default();
    lines.iter().cloned().for_each(|line| expected.add(line));
    let read = Record::read("r", written(&lines).as_bytes()).unwrap();
    assert_eq!(read, expected);
    assert_eq!((read.phases.len(), read.seconds.len(), read.findings.len()), (1, 1, 1));
}

/// F4: any cut after the header reads as the whole lines before it.
#[test]
fn a_file_cut_off_anywhere_keeps_its_whole_lines() {
    let lines = every_kind();
    let text = written(&lines);
    let head = text.find('\n').unwrap();
    for cut in head..text.len() {
        let read = Record::read("r", &text.as_bytes()[..cut]).unwrap();
        assert_eq!(read.header, header(), "cut at {cut}");
        assert!(read.end.is_none() || cut >= text.len() - 1, "cut at {cut}");
    }
}

#[test]
fn a_newer_version_is_refused_with_the_remedy() {
    let newer = written(&every_kind()).replacen("\"version\":1", "\"version\":2", 1);
    let text = message(&newer);
    assert!(text.contains("r.ndjson") && text.contains("version 2"), "{text}");
    assert!(text.contains("forebay-bench 9"), "{text}");
}

#[test]
fn a_kind_of_line_added_later_is_skipped() {
    let mut text = written(&every_kind());
    text.push_str("{\"line\":\"rainfall\",\"mm\":3}\n");
    assert_eq!(Record::read("r", text.as_bytes()).unwrap().phases.len(), 1);
}

#[test]
fn what_is_no_result_file_is_named_so() {
    for text in ["hello\n", "{\"a\":1}\n", "{\"line\":\"finding\",\"text\":\"x\"}\n", "[1]\n"] {
        assert!(message(text).contains("not a result file"), "{text}");
    }
    assert!(message("").contains("empty"));
}

#[test]
fn damage_in_the_middle_is_told_with_its_line() {
    let text = written(&every_kind());
    let broken = text.replacen("{\"line\":\"second\"", "{\"line\":second\"", 1);
    assert_ne!(text, broken);
    assert!(message(&broken).contains("line 3"), "{}", message(&broken));
}
