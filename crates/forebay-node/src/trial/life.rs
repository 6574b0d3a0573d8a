//! Named instances: asked for again, prolonged, ended.

use super::*;

#[test]
fn only_nodes_of_an_instance_expire_it_and_not_by_a_clock_that_is_ahead() {
    let bed = Bed::new();
    let (n1, n2) = (bed.node("n1"), bed.node("n2"));
    let mut asked = wish("w", Mode::Private, &["n2"]);
    asked.expires = Some(now() + 1);
    n1.desk().create(&asked).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let expire = |node: &Node| {
        node.expire(&Wanted::of(&node.book).unwrap()).unwrap();
        node.wanted("w").unwrap().want
    };
    assert_eq!(expire(&n1), Want::Here, "it is not on n1");
    let clock = |clock| n1.book.put(&keys::node("n1"), &record(clock)).unwrap();
    clock(now() - 3600);
    assert_eq!(expire(&n2), Want::Here, "n2 is an hour ahead");
    clock(0);
    n1.book.put(&keys::node("n3"), &record(now() - 3600)).unwrap();
    assert_eq!(expire(&n2), Want::Here, "one that tells nothing says nothing");
    clock(now() - 200);
    assert_eq!(expire(&n2), Want::Gone);
}

/// Method: the owner prolongs the instance while a node that has read its old end is about to expire it.
#[test]
fn what_was_prolonged_or_made_anew_meanwhile_stays() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let ends = |expires| NewInstance { expires, ..wish("w", Mode::Private, &["n1"]) };
    desk.create(&ends(Some(now() + 1))).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let read = Wanted::of(&node.book).unwrap();
    node.book
        .change("a test", |draft| {
            let key = keys::wanted_instance("w");
            let there: Instance = draft.read(&key)?.expect("it was made");
            draft.put(&key, &Instance { life: Life::Named { expires: None }, ..there });
            Ok(())
        })
        .unwrap();
    node.expire(&read).unwrap();
    assert_eq!(node.wanted("w").unwrap().want, Want::Here);
    assert!(!desk.expire("w", now()).unwrap() && !desk.expire("unknown", now()).unwrap());
}

#[test]
fn a_taken_name_is_not_given_to_a_request_for_something_else() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let space = SpaceWish { mode: Some(0o750), ..SpaceWish::default() };
    let asked = NewInstance {
        expires: Some(now() + 1000),
        space: Some(space.clone()),
        ..wish("w", Mode::Private, &["n1"])
    };
    let made = desk.create(&asked).unwrap();
    let again = |asked: NewInstance| desk.create(&asked).map(|there| assert_eq!(there, made));
    again(asked.clone()).unwrap();
    again(wish("w", Mode::Private, &["n1"])).unwrap();
    // The same request, a moment later.
    again(NewInstance { expires: Some(now() + 1003), ..asked.clone() }).unwrap();
    let refused = |asked: NewInstance, words: &str| {
        let error = again(asked).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    let later = NewInstance { expires: Some(now() + 5000), ..asked.clone() };
    refused(later, "`forebay instance extend w --expires TIME`");
    let other = SpaceWish { inodes: Some(7), means: Some("tmpfs".into()), ..space };
    refused(NewInstance { space: Some(other), ..asked.clone() }, "by its means, inodes:");
    refused(NewInstance { pool: Some("q".into()), ..asked.clone() }, "by its pool:");
    refused(NewInstance { bytes: 1, ..asked }, "by its capacity:");
}

#[test]
fn an_end_is_put_off_by_its_owner_and_warned_of_in_time() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let asked = NewInstance { expires: Some(now() + 4000), ..wish("w", Mode::Private, &["n1"]) };
    let made = desk.create(&asked).unwrap();
    assert_eq!(made.ends_soon(made.created + 2900), None);
    assert_eq!(made.ends_soon(made.created + 3100), Some(900));
    let day = 24 * 3600;
    let long = Instance { life: Life::Named { expires: Some(made.created + 30 * day) }, ..made };
    assert_eq!(long.ends_soon(long.created + 28 * day), None);
    assert_eq!(long.ends_soon(long.created + 30 * day - 60), Some(60));
    let stranger = Asker { uid: 4712, gid: 4712 };
    assert!(desk.extend("w", stranger, None).unwrap_err().is(libc::EPERM));
    assert!(desk.extend("w", USER, Some(now())).unwrap_err().to_string().contains("already"));
    let later = desk.extend("w", USER, Some(now() + 9000)).unwrap();
    assert_eq!(node.wanted("w"), Some(later));
    let never = desk.extend("w", USER, None).unwrap();
    assert_eq!((never.life.clone(), never.ends_soon(now())), (Life::Named { expires: None }, None));
    desk.destroy("w", USER, Want::Gone).unwrap();
    assert!(desk.extend("w", USER, None).unwrap_err().to_string().contains("is leaving"));
    // An instance that was begun before its end was changed is the same instance.
    node.release(&Instance { life: Life::Named { expires: Some(1) }, ..never }).unwrap();
    assert_eq!(node.wanted("w"), None);
}

/// The name may be given to another user's instance, or to another one of the same user.
#[test]
fn what_an_instance_left_holds_none_that_has_its_name_later() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let old = node.desk().create(&wish("w", Mode::Cache, &["n1"])).unwrap();
    let left = node.desk().transfer(&out_of(&old, "r"), USER).unwrap();
    node.failed(&left, &old);
    node.release(&Instance { want: Want::Gone, ..old }).unwrap();
    let stranger = Asker { uid: 4712, gid: 4712 };
    for (asker, wait) in [(stranger, 0), (USER, 1100)] {
        std::thread::sleep(Duration::from_millis(wait));
        let owner = Owner { uid: asker.uid, gid: asker.gid };
        let asked = NewInstance { owner, ..wish("w", Mode::Private, &["n1"]) };
        let new = node.desk().create(&asked).unwrap();
        let running = ended(&left, TransferState::Running);
        node.book.put(&keys::actual_transfer(&left.id), &running).unwrap();
        let step = crate::transfers::decide(&left, Some(&running), Some(&new));
        assert_eq!(step, crate::transfers::Step::Stop);
        node.say_stopped(&left);
        assert_eq!(node.before_leaving(&new).unwrap(), Before::Nothing, "{asker:?}");
        assert!(node.book.manifest().unwrap().is_empty(), "nothing of it is left there");
        assert!(node.desk().resume(&left.id, USER).is_err());
        let own = node.desk().transfer(&out_of(&new, "r"), asker).unwrap();
        assert!(matches!(node.before_leaving(&new).unwrap(), Before::Wait(..)));
        let done = ended(&own, TransferState::Done);
        node.book.put(&keys::actual_transfer(&own.id), &done).unwrap();
        node.release(&Instance { want: Want::Gone, ..new }).unwrap();
    }
}

const YEAR: i64 = 365 * 24 * 60 * 60;

fn jump(node: &Node, seconds: i64) {
    node.clock.time();
    node.clock.jumped.store(seconds, std::sync::atomic::Ordering::Relaxed);
}

/// Method: a node that is alone comes up after a power cut, and its clock says that it is next year, or 1970.
#[test]
fn a_node_alone_gives_nothing_up_by_a_clock_that_has_jumped() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let asked = |name, expires| NewInstance { expires, ..wish(name, Mode::Private, &["n1"]) };
    desk.create(&asked("named", Some(now() + 1000))).unwrap();
    let made = desk.create(&asked("hurried", None)).unwrap();
    let (kept, late) = ("kept", "late");
    let [kept, late] = [kept, late].map(|of| desk.transfer(&out_of(&made, of), USER).unwrap());
    let hurried = desk.destroy("hurried", USER, Want::GoneInHurry).unwrap();
    node.failed(&kept, &hurried);
    let lines = |of: &Transfer| manifest::of(&node.book, "n1", "hurried", &of.id).unwrap();
    assert!(matches!(node.before_leaving(&hurried).unwrap(), Before::Wait(..)));
    let promised = lines(&kept)[0].expires.expect("an hour is promised");
    let past = desk.create(&asked("past", None)).unwrap();
    let past = desk.transfer(&out_of(&past, "r"), USER).unwrap();
    node.book.put(&keys::actual_transfer(&past.id), &ended(&past, TransferState::Done)).unwrap();
    for by in [YEAR, -i64::try_from(now()).unwrap()] {
        jump(&node, by);
        node.failed(&late, &hurried);
        let wanted = Wanted::of(&node.book).unwrap();
        node.expire(&wanted).unwrap();
        assert_eq!(node.wanted("named").unwrap().want, Want::Here, "by {by} s");
        assert!(matches!(node.before_leaving(&hurried).unwrap(), Before::Wait(..)), "by {by} s");
        assert_eq!(lines(&kept)[0].expires, Some(promised));
        assert_eq!(
            lines(&late)[0].expires,
            None,
            "C3: promised by a clock that is wrong by {by} s"
        );
        let gone = Wanted { instances: BTreeMap::new(), ..wanted };
        node.forget_transfers(&gone, &desk.transfers().unwrap()).unwrap();
        assert!(desk.transfer_of(&past.id).is_ok(), "by {by} s");
        // The time seen is on record, and the next daemon goes on with it.
        node.keep_time().unwrap();
        let seen = node.local.time_seen().unwrap().unwrap();
        assert!(seen.time.abs_diff(now()) < 60 && seen.doubt.is_some(), "{seen:?}");
    }
    // The clock is set right.
    jump(&node, 0);
    assert!(matches!(node.before_leaving(&hurried).unwrap(), Before::Wait(..)));
    assert!(lines(&late)[0].expires.is_some());
}

/// C4. Method: the clock of one node jumps, and the other node announces the same time, first while its own
/// clock is doubted.
#[test]
fn a_clock_is_right_with_which_another_agrees_that_is_not_doubted() {
    let bed = Bed::new();
    let (node, other) = (bed.node("n1"), bed.node("n2"));
    let told = |clock| node.book.put(&keys::node("n2"), &record(clock)).unwrap();
    told(0);
    jump(&node, YEAR);
    node.keep_time().unwrap();
    assert!(node.clock.time().doubt.is_some());
    jump(&other, YEAR);
    assert_eq!(other.record().clock, 0, "one that is doubted vouches for none");
    told(now());
    node.keep_time().unwrap();
    assert!(node.clock.time().doubt.is_some(), "the other says another time");
    told(now() + YEAR as u64 - 200);
    node.keep_time().unwrap();
    let time = node.clock.time();
    assert!(time.doubt.is_none() && time.seconds >= now() + YEAR as u64, "{time:?}");
}

/// Method: the record was written a year ago, as the clock has it, and the machine has come up since.
#[test]
fn the_time_that_was_seen_outlives_the_daemon() {
    let bed = Bed::new();
    let node = bed.node("n1");
    node.keep_time().unwrap();
    let seen = node.local.time_seen().unwrap().unwrap();
    let before = crate::clock::Seen { time: seen.time - YEAR as u64, boot: "other".into(), ..seen };
    node.local.note_time(&before).unwrap();
    drop(node);
    let node = bed.node("n1");
    let time = node.clock.time();
    assert!(time.doubt.is_some() && time.seconds < now() - 300 * 24 * 60 * 60, "{time:?}");
    let asked = NewInstance { expires: Some(now() + 1), ..wish("w", Mode::Private, &["n1"]) };
    node.desk().create(&asked).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    node.expire(&Wanted::of(&node.book).unwrap()).unwrap();
    assert_eq!(node.wanted("w").unwrap().want, Want::Here);
}
