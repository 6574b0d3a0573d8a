use super::walk::{Ahead, Wanted};
use super::*;
use forebay_engine::Asked;

const HOUR: Duration = Duration::from_secs(3600);

fn answers() -> Answers {
    Answers::new(Times { entry: HOUR, attr: HOUR })
}

fn attr(ino: u64, kind: FileKind) -> Attr {
    crate::nodes::tests::attr(ino, kind)
}

fn told(ino: u64, kind: FileKind) -> DatedAttr {
    DatedAttr::by(Asked::at(Instant::now()), attr(ino, kind))
}

/// Asks about a file, and notes the answer.
fn hear(answers: &Answers, path: &str, ino: u64) {
    let asked = answers.moment();
    answers.hear(path.as_ref(), asked, Recalled::There(told(ino, FileKind::File)));
}

fn list(answers: &Answers, dir: &str, names: &[&str]) {
    let entry =
        |name: &&str| DirEntry { name: name.into(), kind: FileKind::File, ino: name.len() as u64 };
    let entries: Vec<DirEntry> = names.iter().map(entry).collect();
    answers.hear_list(dir.as_ref(), answers.moment(), Instant::now(), &entries);
}

fn recall(answers: &Answers, path: &str) -> &'static str {
    match answers.recall(path.as_ref(), Duration::ZERO) {
        Recalled::There(_) => "there",
        Recalled::Nowhere(_) => "nowhere",
        Recalled::Unknown => "unknown",
    }
}

/// A1, in every order of a question and a change.
// S-1
#[test]
fn an_answer_from_before_the_end_of_a_change_says_nothing() {
    let keys = [attr(7, FileKind::File).key];
    for step in 0..4 {
        let answers = answers();
        let asked = (step == 0).then(|| answers.moment());
        let mut change = answers.changing(&["d/f".as_ref()], &keys);
        let asked = asked.or_else(|| (step == 1).then(|| answers.moment()));
        let is_heard = step == 1;
        let said = || Recalled::There(told(7, FileKind::File));
        if let (true, Some(asked)) = (is_heard, asked) {
            answers.hear("d/f".as_ref(), asked, said());
            answers.hear("d/other name".as_ref(), asked, said());
        }
        if step == 3 {
            change.became("d/f".as_ref(), Became::Gone);
        }
        drop(change);
        if let (false, Some(asked)) = (is_heard, asked) {
            answers.hear("d/f".as_ref(), asked, said());
            answers.hear("d/other name".as_ref(), asked, said());
        }
        let expected = if step == 3 { "nowhere" } else { "unknown" };
        assert_eq!(recall(&answers, "d/f"), expected, "{step}");
        assert_eq!(recall(&answers, "d/other name"), "unknown", "{step}: it is the same file");
        hear(&answers, "d/f", 7);
        assert_eq!(recall(&answers, "d/f"), "there", "{step}: asked since");
    }
}

/// A2: a list and this mount's changes in its directory, in either order.
// S-1
#[test]
fn a_list_knows_what_is_nowhere_until_a_change_that_may_have_failed() {
    let answers = answers();
    list(&answers, "d", &["a", "b"]);
    assert_eq!((recall(&answers, "d/a"), recall(&answers, "d/c")), ("unknown", "nowhere"));
    let mut change = answers.changing(&["d/c".as_ref()], &[]);
    change.became("d/c".as_ref(), Became::Made(told(9, FileKind::File)));
    drop(change);
    assert_eq!((recall(&answers, "d/c"), recall(&answers, "d/e")), ("there", "nowhere"));
    let names = |answers: &Answers| {
        let listed = answers.list("d".as_ref())?;
        Some(listed.into_iter().map(|entry| entry.name.into_string().unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(names(&answers).unwrap(), ["a", "b", "c"]);
    let mut change = answers.changing(&["d/a".as_ref()], &[]);
    change.became("d/a".as_ref(), Became::Gone);
    drop(change);
    assert_eq!(names(&answers).unwrap(), ["b", "c"]);
    // The change may have failed because others have the name: their other names are not known.
    drop(answers.changing(&["d/x".as_ref()], &[]));
    assert_eq!((names(&answers), recall(&answers, "d/e")), (None, "unknown"));
    // Asked before a change, and answered after it.
    let asked = answers.moment();
    drop(answers.changing(&["d/y".as_ref()], &[]));
    answers.hear_list("d".as_ref(), asked, Instant::now(), &[]);
    assert_eq!(recall(&answers, "d/e"), "unknown");
}

#[test]
fn what_is_below_a_renamed_directory_is_another() {
    let answers = answers();
    hear(&answers, "d/sub/f", 3);
    hear(&answers, "dd/f", 4);
    list(&answers, "d/sub", &["f"]);
    let asked = answers.moment();
    answers.forget_below("d".as_ref());
    answers.hear("d/sub/f".as_ref(), asked, Recalled::There(told(3, FileKind::File)));
    assert_eq!((recall(&answers, "d/sub/f"), recall(&answers, "d/sub/g")), ("unknown", "unknown"));
    assert_eq!(recall(&answers, "dd/f"), "there");
}

#[test]
fn nothing_is_believed_where_nothing_is_to_be() {
    let none = Answers::new(Times { entry: Duration::ZERO, attr: Duration::ZERO });
    hear(&none, "f", 3);
    list(&none, "", &["f"]);
    assert_eq!((recall(&none, "f"), recall(&none, "g")), ("unknown", "unknown"));
}

// S-1
#[test]
fn the_lack_of_access_lists_is_heard_once_for_a_directory_and_not_for_another_in_its_place() {
    let answers = answers();
    let (d, e) = (Path::new("d"), Path::new("e"));
    assert!(!answers.has_no_acls(d));
    answers.hear_no_acls(d, answers.moment());
    assert!(answers.has_no_acls(d) && !answers.has_no_acls(e));
    let asked = answers.moment();
    answers.forget_below(d);
    answers.hear_no_acls(d, asked);
    assert!(!answers.has_no_acls(d), "it is another directory since");
    let none = Answers::new(Times { entry: HOUR, attr: Duration::ZERO });
    none.hear_no_acls(d, none.moment());
    assert!(!none.has_no_acls(d), "attributes are not to be believed at all");
}

/// A3.
#[test]
fn what_is_remembered_is_bounded() {
    let answers = answers();
    for n in 0..2 * NAMES_MAX as u64 {
        hear(&answers, &format!("d{}/f{n}", n % 1000), n);
    }
    assert!(answers.memory().names.len() <= NAMES_MAX);
    let names: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for n in 0..2 * LISTED_MAX / names.len() {
        list(&answers, &format!("d{n}"), &names);
    }
    let memory = answers.memory();
    let listed: usize =
        memory.dirs.values().filter_map(|dir| Some(dir.list.as_ref()?.names.len())).sum();
    assert!(memory.listed <= LISTED_MAX && listed == memory.listed, "{listed}");
}

fn names(ahead: &Ahead) -> Vec<&str> {
    ahead.names.iter().map(|path| path.to_str().unwrap()).collect()
}

#[test]
fn a_walk_in_order_has_the_next_names_asked_for_and_one_that_jumps_has_none() {
    let step =
        |answers: &Answers, name: &str| answers.step("d".as_ref(), name.as_ref(), Duration::ZERO);
    let all: Vec<String> = (0..100).map(|n| format!("f{n:03}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let answers = answers();
    assert_eq!(step(&answers, "f000"), Wanted::Nothing);
    assert_eq!(step(&answers, "f001"), Wanted::List, "the second name of the directory");
    list(&answers, "d", &all);
    let Wanted::Ahead(ahead) = step(&answers, "f001") else { panic!("nothing is asked ahead") };
    assert_eq!(
        names(&ahead),
        ["d/f002", "d/f003", "d/f004", "d/f005", "d/f006", "d/f007", "d/f008", "d/f009"]
    );
    ahead.names.iter().for_each(|path| hear(&answers, path.to_str().unwrap(), 5));
    let mut asked = ahead.names.len();
    for name in &all[2..60] {
        if let Wanted::Ahead(ahead) = step(&answers, name) {
            asked += ahead.names.len();
            ahead.names.iter().for_each(|path| hear(&answers, path.to_str().unwrap(), 5));
        }
        assert_eq!(recall(&answers, &format!("d/{name}")), "there", "asked before it is wanted");
    }
    assert_eq!(asked, 98, "each once");

    let jumps = super::tests::answers();
    list(&jumps, "d", &all);
    for name in ["f050", "f010", "f090", "f030", "f070"] {
        assert_eq!(step(&jumps, name), Wanted::Nothing, "{name}");
    }
}

/// A directory's times while this mount changes it: those of a new object, for a moment only.
// S-1
#[test]
fn a_directory_has_moved_when_something_was_made_in_it_and_is_asked_soon() {
    let answers = answers();
    answers.reckon(true);
    let asked = answers.moment();
    let dir = Attr { nlink: 2, ..attr(2, FileKind::Dir) };
    answers.hear(
        "d".as_ref(),
        asked,
        Recalled::There(DatedAttr::by(Asked::at(Instant::now()), dir)),
    );
    let mut made = attr(9, FileKind::Dir);
    made.ctime = Timestamp { sec: 77, nsec: 5 };
    let mut change = answers.changing(&["d/c".as_ref()], &[]);
    change.became("d/c".as_ref(), Became::Made(DatedAttr::by(Asked::at(Instant::now()), made)));
    drop(change);
    let Recalled::There(dir) = answers.recall("d".as_ref(), Duration::ZERO) else {
        panic!("its attributes are reckoned")
    };
    assert_eq!((dir.attr().mtime, dir.attr().ctime), (made.ctime, made.ctime));
    assert!(dir.at() + HOUR <= Instant::now() + RECKONED, "believed for a moment");
    assert_eq!(recall(&answers, "d/c/f"), "nowhere", "it is empty");
    assert_eq!(dir.attr().nlink, 3);
    let mut change = answers.changing(&["d/c".as_ref()], &[]);
    change.became("d/c".as_ref(), Became::DirGone);
    drop(change);
    let Recalled::There(dir) = answers.recall("d".as_ref(), Duration::ZERO) else {
        panic!("its attributes are reckoned")
    };
    assert_eq!(dir.attr().nlink, 2);
}
