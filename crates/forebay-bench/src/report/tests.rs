use super::*;
use crate::record::{
    Access, Comparison, End, FillPoint, Finding, Header, Latency, Outcome, Part, Phase, ScalePoint,
    Second, Verdict,
};

/// A run with everything in it, and with names that markup would trip over.
fn sample() -> Record {
    let latency =
        Latency { p50_ns: 90_000, p99_ns: 2_000_000, max_ns: 80_000_000, ..Latency::default() };
    let phase = Phase {
        name: "read <&\"'>".into(),
        access: Access::Read,
        tasks: 4,
        bytes: 1 << 30,
        ops: 262_144,
        seconds: 4.0,
        open_seconds: Some(0.01),
        latency: Some(latency),
        resident_share: Some(0.64),
        warnings: vec!["64 % of it was cached & <fast>".into()],
        ..Phase::default()
    };
    let point = |i: u32| ScalePoint {
        clients: 1 << i,
        ops_per_second: 20_000.0 * (1.0 - 0.5f64.powi(i as i32 + 1)),
        latency,
        knee: i == 2,
        ..ScalePoint::default()
    };
    let full = |i: u32| FillPoint {
        share: f64::from(i) / 3.0,
        bytes_per_second: 1e9 / f64::from(i),
        steady: true,
        ..FillPoint::default()
    };
    Record {
        header: Header { workload: "steady".into(), ..Header::default() },
        phases: vec![phase],
        seconds: (0..60).map(second).collect(),
        scale: (0..5).map(point).collect(),
        fill: (1..4).map(full).collect(),
        comparisons: vec![Comparison {
            name: "write".into(),
            ratio: 1.4,
            ratio_low: 1.2,
            ratio_high: 1.7,
            verdict: Verdict::BBetter,
            ..Comparison::default()
        }],
        findings: vec![Finding { text: "Flat: no <stall> & no drift.".into() }],
        end: Some(End { outcome: Outcome::Complete, seconds: 60.0 }),
    }
}

fn second(i: u64) -> Second {
    let stalled = i % 20 == 17;
    Second {
        phase: "read <&\"'>".into(),
        part: if i < 10 { Part::WarmUp } else { Part::Measured },
        at_seconds: i as f64,
        seconds: 1.0,
        ops: 1000 - 20 * (i % 7),
        bytes: (1000 - 20 * (i % 7)) << 12,
        p50_ns: 80_000 + 500 * i,
        p99_ns: if stalled { 60_000_000 } else { 900_000 },
        max_ns: if stalled { 90_000_000 } else { 4_000_000 },
        histogram: (0..14)
            .map(|b| (1000 << b, 2000 << b, 1 << (7 - (b as i64 - 7).abs())))
            .collect(),
        ..Second::default()
    }
}

/// Checks that elements nest and close, attributes are quoted and no bare `&` or `<` is left.
/// Returns how many elements there were. HTML's void elements and omitted ends are not allowed.
fn well_formed(text: &str) -> Result<usize, String> {
    let mut open: Vec<&str> = Vec::new();
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at])?;
        let end = rest[at..].find('>').ok_or("a tag without an end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('?') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            continue;
        }
        count += 1;
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("quotes of <{tag}>"));
        }
        check_text(tag)?;
        if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
    }
    if open.is_empty() { Ok(count) } else { Err(format!("left open: {open:?}")) }
}

fn check_text(text: &str) -> Result<(), String> {
    let entities = ["amp;", "lt;", "gt;", "quot;"];
    let bare = text.split('&').skip(1).find(|part| !entities.iter().any(|e| part.starts_with(e)));
    match bare {
        Some(part) => Err(format!("a bare & before {part:?}")),
        None if text.contains("NaN") || text.contains("inf") => Err(format!("no number: {text}")),
        None => Ok(()),
    }
}

#[test]
fn the_checker_of_markup_finds_faults() {
    assert_eq!(well_formed("<a b=\"c\"><d/>x &amp; y</a>"), Ok(2));
    for wrong in ["<a>", "<a></b>", "<a b=\"></a>", "<a>x & y</a>", "<a>NaN</a>"] {
        assert!(well_formed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn every_chart_is_drawn_and_is_well_formed_svg() {
    let figures = figures::of(&sample());
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "compare",
            "fill",
            "scaling",
            "scaling-latency",
            "throughput",
            "latency",
            "heat-read------"
        ]
    );
    for figure in figures {
        let text = svg::document(&figure.scene);
        let count = well_formed(&text).unwrap_or_else(|e| panic!("{}: {e}", figure.name));
        assert!(count > 20, "{}: {count} elements", figure.name);
        assert!(!text.contains("href") && !text.contains("<script"), "{}", figure.name);
    }
}

/// Shapes stay inside of the picture, whatever the data.
#[test]
fn nothing_is_drawn_outside_of_the_picture() {
    let mut odd = sample();
    odd.seconds[30].p99_ns = u64::MAX;
    odd.seconds[31].p50_ns = 0;
    odd.seconds[32].seconds = 0.0;
    odd.fill[1].bytes_per_second = 0.0;
    for record in [sample(), odd] {
        for figure in figures::of(&record) {
            let (width, height) = (figure.scene.width, figure.scene.height);
            for shape in &figure.scene.shapes {
                let scene::Shape::Line { points, .. } = shape else { continue };
                let inside =
                    |p: &(f64, f64)| (0.0..=width).contains(&p.0) && (0.0..=height).contains(&p.1);
                assert!(points.iter().all(inside), "{}: {points:?}", figure.name);
            }
        }
    }
}

#[test]
fn a_page_is_whole_by_itself() {
    let runs =
        [Run { name: "a&b".into(), record: sample() }, Run { name: "c".into(), record: sample() }];
    let page = html::page(&runs);
    for needed in
        ["<svg", "Flat: no &lt;stall&gt; &amp; no drift.", "a&amp;b", "64 % of it", "</html>"]
    {
        assert!(page.contains(needed), "{needed}");
    }
    for outside in ["http:", "https:", "<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_terminal_shows_tables_sparklines_warnings_and_findings() {
    let text = terminal::results(&sample());
    for needed in
        ["256.0 MiB/s", "65.5 k", "64.0 %", "2.00 ms", "knee", "B is better", "warning: ", "Flat"]
    {
        assert!(text.contains(needed), "{needed} in\n{text}");
    }
    assert!(text.contains('\u{2588}'), "{text}");
}

/// IOR's repetitions: a chart of them, and each warning once.
#[test]
fn repeated_phases_get_a_chart_and_share_their_warnings() {
    let mut record = sample();
    let again = Phase { iteration: 1, ..record.phases[0].clone() };
    record.phases.push(again);
    assert!(figures::of(&record).iter().any(|figure| figure.name == "iterations"));
    assert!(figures::of(&sample()).iter().all(|figure| figure.name != "iterations"));
    let warnings = table::warnings(&record);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("#2: 64 %"), "{warnings:?}");
}

/// Files are laid several times in a run; that is no result, in charts or in the overview.
#[test]
fn preparing_is_neither_drawn_nor_summed_up() {
    let mut record = Record::default();
    for (name, iteration) in [("prepare", 0), ("prepare", 1), ("write", 0)] {
        let bytes = if name == "write" { 1 << 20 } else { 1 << 30 };
        let phase = Phase { name: name.into(), iteration, bytes, seconds: 1.0, ..Phase::default() };
        record.phases.push(phase);
    }
    assert!(figures::of(&record).is_empty());
    assert_eq!(table::best(&record), "write 1.0 MiB/s");
    let run = || Run { name: "one".into(), record: record.clone() };
    assert!(html::page(&[run(), run()]).contains(">write 1.0 MiB/s</td>"));
}

/// A preparation that is a hundred times as fast would flatten the measured curve.
#[test]
fn preparation_does_not_set_the_scale() {
    let before = figures::of(&sample());
    let mut record = sample();
    let faster = |i: u64| Second { phase: "prepare".into(), bytes: 1 << 40, ..second(i) };
    record.seconds.extend((0..60).map(faster));
    let after = figures::of(&record);
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(svg::document(&before.scene), svg::document(&after.scene), "{}", after.name);
    }
}

#[test]
fn a_run_of_metadata_has_something_to_say() {
    let phase = |name: &str, access, bytes| Phase {
        name: name.into(),
        access,
        bytes,
        ops: 25_000,
        seconds: 2.0,
        ..Phase::default()
    };
    let phases = vec![
        phase("File creation", Access::Metadata, 0),
        phase("File read", Access::Read, 2 << 30),
    ];
    let record = Record { phases, ..Record::default() };
    assert_eq!(table::best(&record), "File creation 12.5 k/s, File read 1.0 GiB/s");
}

#[test]
fn an_empty_run_makes_a_page_without_charts() {
    let run = Run { name: "empty".into(), record: Record::default() };
    assert!(figures::of(&run.record).is_empty());
    assert!(html::page(&[run]).contains("cut off"));
}

/// Decodes the file with nothing but the inflater and compares every pixel.
#[test]
fn a_png_holds_the_pixels_painted() {
    let figure = &figures::of(&sample())[1];
    let image = raster::paint(&figure.scene, Theme::Light);
    let file = png::encode(&image);
    let (kinds, data) = chunks(&file);
    assert_eq!(kinds, ["IHDR", "IDAT", "IEND"]);
    let rows = miniz_oxide::inflate::decompress_to_vec_zlib(&data).unwrap();
    let pixels: Vec<u8> =
        rows.chunks(image.width * 3 + 1).flat_map(|row| row[1..].to_vec()).collect();
    assert_eq!(pixels, image.pixels);
    let inks =
        |ink: scene::Ink| image.pixels.chunks(3).filter(|p| **p == ink.rgb(Theme::Light)).count();
    assert!(inks(scene::Ink::Series(0)) > 500, "the curve");
    assert!(inks(scene::Ink::Text) > 100, "the type");
    assert!(inks(scene::Ink::Paper) > image.pixels.len() / 3 / 2, "the paper");
}

/// Names of the chunks, and the bytes of IDAT; checks every sum.
fn chunks(file: &[u8]) -> (Vec<String>, Vec<u8>) {
    let (mut kinds, mut data) = (Vec::new(), Vec::new());
    let mut rest = file.strip_prefix(b"\x89PNG\r\n\x1a\n").expect("the signature");
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let sum = u32::from_be_bytes(rest[8 + length..12 + length].try_into().unwrap());
        assert_eq!(sum, crc32fast::hash(&rest[4..8 + length]));
        let kind = String::from_utf8(rest[4..8].to_vec()).unwrap();
        if kind == "IDAT" {
            data.extend(&rest[8..8 + length]);
        }
        kinds.push(kind);
        rest = &rest[12 + length..];
    }
    (kinds, data)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn files_are_written_where_asked() {
    let home = tempfile::tempdir().unwrap();
    let input = home.path().join("run.1.ndjson");
    let lines = [
        crate::record::Line::Header(Header {
            format: crate::record::FORMAT.into(),
            version: 1,
            ..Header::default()
        }),
        crate::record::Line::Fill(sample().fill[0].clone()),
        crate::record::Line::Fill(sample().fill[1].clone()),
    ];
    let text: String = lines.iter().map(|l| serde_json::to_string(l).unwrap() + "\n").collect();
    fs::write(&input, text).unwrap();
    let out = home.path().join("made");
    let line = format!("{} --out {} --svg --png", input.display(), out.display());
    assert_eq!(run(&words(&line)), Ok(0));
    for name in ["report.html", "run.1-fill.svg", "run.1-fill.png"] {
        assert!(fs::metadata(out.join(name)).unwrap().len() > 1000, "{name}");
    }
}

#[test]
fn wrong_command_lines_are_refused_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("r.ndjson");
    fs::write(&file, "no result\n").unwrap();
    let named = file.display();
    for (line, say) in [
        (String::new(), "no FILE"),
        (format!("{named}"), "not a result file"),
        (format!("{named}.missing"), "No such file"),
        (format!("{named} --pgn"), "--png"),
    ] {
        let error = run(&words(&line)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(say), "{error}");
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}
