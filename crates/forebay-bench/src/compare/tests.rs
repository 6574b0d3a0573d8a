use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn rate() -> Quantity {
    Quantity { name: "write".into(), unit: "ops/s", better: Better::Higher }
}

#[test]
fn a_difference_beyond_the_noise_is_told_and_one_within_is_not() {
    let noisy = [(10.0, 14.0), (12.0, 17.5), (9.0, 12.1), (11.0, 16.0), (10.0, 13.8)];
    let told = compare(&rate(), &noisy).unwrap();
    assert_eq!((told.median_a, told.median_b, told.verdict), (10.0, 14.0, Verdict::BBetter));
    assert!(told.ratio_low < told.ratio && told.ratio < told.ratio_high, "{told:?}");
    let same = [(10.0, 11.0), (10.0, 9.0), (10.0, 10.5), (10.0, 9.9), (10.0, 10.0)];
    assert_eq!(compare(&rate(), &same).unwrap().verdict, Verdict::NoDifference);
    assert_eq!(compare(&rate(), &noisy[..4]), None);
    // B is a tenth faster in every round, but both vary by a half.
    let wild = [(10.0, 11.0), (15.0, 16.5), (10.0, 11.1), (15.0, 16.4), (10.0, 11.0)];
    let told = compare(&rate(), &wild).unwrap();
    assert!(told.ratio_low > 1.0 && told.verdict == Verdict::NoDifference, "{told:?}");
}

#[test]
fn of_latencies_the_lower_is_better() {
    assert_eq!(judge(Better::Lower, 0.5, 0.9), Verdict::BBetter);
    assert_eq!(judge(Better::Lower, 1.1, 1.9), Verdict::ABetter);
    assert_eq!(judge(Better::Higher, 0.5, 0.9), Verdict::ABetter);
    assert_eq!(judge(Better::Higher, 0.9, 1.1), Verdict::NoDifference);
}

/// Two directories of one disk, in all rounds; quantities that cannot be paired are left out.
#[test]
fn two_directories_are_compared_in_every_quantity() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = tempfile::tempdir().unwrap();
    let json = out.path().join("c.json");
    let line = format!(
        "{} {} -i 5 --json {} -- rates -s 1m --count 50",
        a.path().display(),
        b.path().display(),
        json.display()
    );
    assert_eq!(run(&words(&line)), Ok(0));
    let record: Record = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let names: Vec<&str> = record.comparisons.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    assert!(names.contains(&"random read, p99"));
    assert!(record.comparisons.iter().all(|c| c.a.len() == 5 && c.b.len() == 5));
    for dir in [a, b] {
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// IOR's and mdtest's lines as they stand: every phase of both targets in every round, and
/// nothing left in either.
#[test]
fn iors_and_mdtests_lines_are_compared_as_they_stand() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = tempfile::tempdir().unwrap();
    let json = out.path().join("c.json");
    let places = format!("{} {}", a.path().display(), b.path().display());
    for (line, quantities) in [
        ("ior -w -r -R -F -t 4k -b 64k -N 2 -o data", vec!["write", "write, p99", "read"]),
        ("ior -t 64k -b 1m", vec!["read, p99"]),
        ("mdtest -n 20 --tasks 2 -F -w 8 -e 8 -X", vec!["File creation", "File read, p99"]),
        ("mdtest -n 5 -D -u -d deep", vec!["Directory stat", "Tree removal"]),
    ] {
        let line = format!("{places} -i 5 --json {} -- {line}", json.display());
        assert_eq!(run(&words(&line)), Ok(0), "{line}");
        let text = std::fs::read_to_string(&json).unwrap();
        let record: Record = serde_json::from_str(&text).unwrap();
        for name in quantities {
            let told = record.comparisons.iter().find(|c| c.name == name);
            let told = told.unwrap_or_else(|| panic!("{line}: no {name} in {text}"));
            assert!(told.a.len() == 5 && told.b.len() == 5 && told.ratio > 0.0, "{told:?}");
            assert_eq!(told.unit == "ops/s", line.contains("mdtest") && !name.contains("p99"));
        }
        for dir in [&a, &b] {
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{line}");
        }
    }
}

/// Both sides are the tool itself: the smallest possible difference between two measurements.
#[test]
fn the_tool_itself_can_be_compared_by_iors_lines() {
    let line = "null null -i 5 -- ior -t 4k -b 64m";
    assert_eq!(run(&words(line)), Ok(0));
}

#[test]
fn wrong_lines_are_refused_by_name() {
    for (line, says) in [
        ("/tmp", "two directories"),
        ("/tmp /tmp -i 4", "--rounds"),
        ("/tmp /tmp -- ratse", "rates"),
        ("/tmp /no/such/dir", "/no/such/dir"),
        ("/tmp /tmp -- rates -t 3", "--transfer"),
        ("/tmp /tmp -- rates --out x", "--out"),
        ("/tmp /tmp -- mdtest -n 5 --json=x", "--json"),
        ("/tmp /tmp -- ior -O summaryFile=x", "summaryFile"),
        ("/tmp /tmp -- ior -t 3k -b 4k", "-t"),
        ("/tmp /tmp -- ior -o /tmp/x", "-o /tmp/x"),
        ("/tmp /tmp -- ior -o ../x", "-o ../x"),
        ("/tmp /no/such/dir -- ior", "/no/such/dir"),
        ("/tmp /no/such/dir -- mdtest -n 1", "/no/such/dir"),
        ("/tmp null -- ior -R -w", "-R"),
        ("/tmp /tmp -- mdtest", "-n"),
        ("/tmp /tmp -- mdtest -n 1 -d /x", "-d /x"),
    ] {
        let error = run(&words(line)).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(says), "{line}: {error}");
    }
}
