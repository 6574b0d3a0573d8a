//! Partners and their copies: take-overs, and what is not given up or removed before.

use super::super::join::parse;
use super::*;

/// A start fails: the tier may be lost, and the partners' copies are all that is left.
#[test]
fn a_member_that_leaves_without_having_served_is_taken_over_like_a_dead_one() {
    let bed = Bed::new();
    let (b, _g) = bed.member("b");
    let a = Member::join(Joining { copies: 1, ..bed.joining("a") }).unwrap();
    let partners = keys::Partners { epoch: a.epoch(), in_sync: vec!["b".into()] };
    let claim = format!("stores/s/claims/{}", keys::file(key(7)));
    let known = Commit::new().put("stores/s/partners/a", json(&partners));
    bed.registry.commit(&known.put(claim, json(&keys::Claim::new("a", "f")))).unwrap();
    eventually("b has heard of the claim", || b.holder(key(7)) != Holder::Nobody);
    let began = Instant::now();
    a.leave();
    assert!(began.elapsed() < PATIENCE, "it waited for its own answer");
    eventually("b takes it over", || {
        let (found, _) = bed.registry.get("stores/s/members/a").unwrap();
        let found: keys::Member = parse(&found.unwrap()).unwrap();
        found.taken.is_some_and(|taken| taken.by == "b" && taken.done)
    });
}

#[test]
fn what_a_living_partner_has_copies_of_is_not_given_up() {
    let bed = Bed::new();
    let ((a, front), (b, _g)) = (bed.member("a"), bed.member("b"));
    drop(open(&a, 7, Access::Write));
    lock(&front.busy).insert(key(7));
    let partners = keys::Partners { epoch: a.epoch(), in_sync: vec!["c".into()] };
    let partners = serde_json::to_vec(&partners).unwrap();
    a.leave();
    eventually("the lease has ended", || matches!(b.holder(key(7)), Holder::Dead(_)));
    let known = Commit::new().put("stores/s/partners/a", partners).put("stores/s/alive/c", "");
    bed.registry.commit(&known).unwrap();
    let refused = b.give_up("a", &[], &["c".into()]).expect_err("c takes its place");
    assert_eq!(refused.kind(), Kind::Usage, "{refused}");
    assert!(refused.to_string().contains("c has copies"), "{refused}");
    assert!(matches!(b.holder(key(7)), Holder::Dead(_)), "nothing was given up");
    bed.registry.commit(&Commit::new().delete("stores/s/alive/c")).unwrap();
    let refused = b.give_up("a", &[], &[]).expect_err("c may come back");
    assert!(refused.to_string().contains("c has copies"), "{refused}");
    assert_eq!(b.give_up("a", &[], &["c".into()]).unwrap().len(), 1);
}

/// Files that are not given up are left to the partner that has copies of them, once it is back.
#[test]
fn giving_up_one_file_leaves_the_others_to_the_partners() {
    let bed = Bed::new();
    let (b, _g) = bed.member("b");
    let mut known = Commit::new();
    for (file, path) in [(7, "d/f"), (8, "d/g")] {
        let claim = format!("stores/s/claims/{}", keys::file(key(file)));
        known = known.put(claim, json(&keys::Claim::new("a", path)));
    }
    let dead = keys::Member { copies: 1, epoch: 4, ..member("a") };
    let partners = keys::Partners { epoch: 4, in_sync: vec!["c".into()] };
    known = known.put("stores/s/members/a", json(&dead));
    bed.registry.commit(&known.put("stores/s/partners/a", json(&partners))).unwrap();
    let taken = || {
        let (found, _) = bed.registry.get("stores/s/members/a").unwrap();
        parse::<keys::Member>(&found.unwrap()).unwrap().taken
    };
    let given_up = b.give_up("a", &["d/f".into()], &["c".into()]).unwrap();
    assert_eq!(given_up, ["d/f"]);
    assert_eq!(taken(), Some(keys::Taken::by_nobody(4)));
    eventually("both were heard of", || b.holder(key(8)) == Holder::Dead("a".into()));
    eventually("that one is nobody's", || b.holder(key(7)) == Holder::Nobody);
    let (_c, _h) = bed.member("c");
    eventually("c takes it over", || taken().is_some_and(|it| it.by == "c" && it.done));
    // Giving up the last file ends it.
    let anew = keys::Member { epoch: 9, ..dead };
    let claim = format!("stores/s/claims/{}", keys::file(key(8)));
    let anew = Commit::new().put("stores/s/members/a", json(&anew));
    bed.registry.commit(&anew.put(claim, json(&keys::Claim::new("a", "d/g")))).unwrap();
    b.give_up("a", &["d".into()], &[]).unwrap();
    assert!(taken().is_some_and(|it| it.by == "b" && it.done && it.epoch == 9));
}

/// A process of a taker died once a file was adopted: the next process claims the file, and gives up files of which
/// no member has copies.
#[test]
fn what_an_earlier_process_has_adopted_is_claimed() {
    let bed = Bed::new();
    let taken = Some(keys::Taken { by: "b".into(), epoch: 1, done: false, short: vec![] });
    let dead = keys::Member { epoch: 2, copies: 1, taken, ..member("a") };
    let partners = keys::Partners { epoch: 1, in_sync: vec!["b".into()] };
    let mut known = Commit::new().put("stores/s/members/a", json(&dead));
    known = known.put("stores/s/partners/a", json(&partners));
    for file in [7, 8] {
        let claim = format!("stores/s/claims/{}", keys::file(key(file)));
        known = known.put(claim, json(&keys::Claim::new("a", "f")));
    }
    let Outcome::Committed(Revision(claimed)) = bed.registry.commit(&known).unwrap() else {
        panic!("nothing is compared");
    };
    let b = Member::join(bed.joining("b")).unwrap();
    let fake = Arc::new(Fake::default());
    // A file that was adopted under another claim says nothing of what the file is now.
    assert_eq!(b.standing(key(7), DIR, Some(claimed + 1)), Standing::Superseded);
    lock(&fake.adopted).insert(key(7));
    assert_eq!(b.standing(key(7), DIR, Some(claimed)), Standing::Adopted);
    b.has_adopted(key(7));
    b.serve(Arc::downgrade(&(fake.clone() as Arc<dyn Front>)), Vec::new());
    eventually("the take-over ends", || b.holder(key(8)) == Holder::Nobody);
    assert_eq!(b.holder(key(7)), Holder::Here);
    let from = |file| crate::front::Cluster::taken_from(&b, key(file));
    assert_eq!(from(7), [keys::TakenFrom { member: "a".into(), epoch: 1 }]);
    assert_eq!(from(8), []);
}

/// A file that partners are to forget may be another member's by now.
#[test]
fn partners_are_told_to_forget_a_file_that_nobody_has_claimed() {
    let bed = Bed::new();
    let (a, _f) = bed.member("a");
    let began = Instant::now();
    a.forget(key(7), b"words").expect("nobody keeps copies");
    assert!(began.elapsed() < PATIENCE, "it waited for a claim");
    assert!(a.keep(key(7), 0, b"words", b"").is_err(), "a copy is made under a claim");
}

/// All partners alike refuse a message that is too long, which says nothing of any of them.
#[test]
fn what_is_too_long_to_be_sent_costs_no_partner() {
    let bed = Bed::new();
    let (_a, _f) = bed.member("a");
    let (b, _g) = bed.joined(Joining { copies: 1, ..bed.joining("b") });
    eventually("a is a partner", || b.copies().1 == 1);
    b.forget(key(7), &vec![0; BYTES_MAX + 1]).expect_err("nobody was told");
    assert_eq!(b.copies().1, 1);
}

/// Another tier under the name of a partner would be taken for the partner that has the copies.
#[test]
fn a_partner_of_somebody_is_not_taken_out() {
    let bed = Bed::new();
    let ((a, _f), (b, _g)) = (bed.member("a"), bed.member("b"));
    b.leave();
    eventually("the lease has ended", || !a.others().contains(&"b".to_string()));
    let name = |epoch| {
        let partners = keys::Partners { epoch, in_sync: vec!["b".into()] };
        bed.registry.commit(&Commit::new().put("stores/s/partners/a", json(&partners))).unwrap();
    };
    name(a.epoch());
    let refused = a.remove("b").expect_err("a names it");
    assert_eq!(refused.kind(), Kind::Usage, "{refused}");
    assert!(refused.to_string().contains("partner of a"), "{refused}");
    name(a.epoch() + 1);
    a.remove("b").expect("nobody names it now");
}

/// Another tier under the member's name would be taken for a restart of the member, and the member thus for stopped.
#[test]
fn a_member_that_may_still_write_to_taken_files_is_not_removed() {
    let bed = Bed::new();
    let ((a, _f), (_b, _g)) = (bed.member("a"), bed.member("b"));
    // B took the file over from C, and C's machine may only stand still.
    let taken = Some(keys::Taken { by: "b".into(), epoch: 3, done: true, short: vec![] });
    let c = keys::Member { epoch: 4, taken, ..member("c") };
    let mut claim = keys::Claim::new("b", "f");
    claim.taken_from.push(keys::TakenFrom { member: "c".into(), epoch: 3 });
    let known = Commit::new().put("stores/s/members/c", json(&c));
    let at = format!("stores/s/claims/{}", keys::file(key(7)));
    bed.registry.commit(&known.put(at, json(&claim))).unwrap();
    let refused = a.remove("c").expect_err("it may still write");
    assert_eq!(refused.kind(), Kind::Usage, "{refused}");
    assert!(refused.to_string().contains("member stopped"), "{refused}");
    a.has_stopped("c").unwrap();
    a.remove("c").unwrap();
}

/// The tier of a removed member, should it be mounted after all, has older bytes than what was made of the files
/// since; and others have heard of the member's epochs.
#[test]
fn the_epochs_of_a_removed_member_are_not_given_again() {
    let bed = Bed::new();
    let ((a, _f), (b, _g)) = (bed.member("a"), bed.member("b"));
    let before = b.epoch();
    b.leave();
    eventually("the lease has ended", || !a.others().contains(&"b".to_string()));
    a.remove("b").unwrap();
    let (b, _g) = bed.member("b");
    assert_eq!(b.epoch(), before + 1);
    assert_eq!(b.standing(key(7), DIR, None), Standing::Superseded);
    let (c, _h) = bed.member("c");
    assert_eq!((c.epoch(), c.standing(key(7), DIR, None)), (1, Standing::Own));
}

/// Partners that get no more messages would take the member's place with their old copies.
#[test]
fn a_member_that_keeps_no_copies_any_more_has_no_heirs() {
    let bed = Bed::new();
    let ((a, _f), (mut b, _g)) = (bed.member("a"), bed.member("b"));
    for copies in [0, 1] {
        b.leave();
        let named = keys::Partners { epoch: b.epoch(), in_sync: vec!["z".into()] };
        let named = Commit::new().put("stores/s/partners/b", json(&named));
        bed.registry.commit(&named.put("stores/s/alive/z", "")).unwrap();
        b = Member::join(Joining { copies, ..bed.joining("b") }).unwrap();
        eventually("the other hears of it", || a.epoch_of("b") == Some(b.epoch()));
        assert_eq!(a.has_heirs("b"), copies > 0);
    }
}

/// A partner that does not serve yet when its home chooses it is filled as soon as it does: no patience passes.
#[test]
fn a_partner_that_just_begins_is_filled_once_it_serves() {
    let bed = Bed::new();
    let a = Member::join(bed.joining("a")).unwrap();
    let patience = PATIENCE * 20;
    let (b, _g) = bed.joined(Joining { copies: 1, patience, ..bed.joining("b") });
    eventually("b has chosen it", || b.others.fill_of("a").is_some());
    std::thread::sleep(Duration::from_millis(100)); // By then a is asked.
    assert_eq!(b.copies(), (1, 0));
    let (began, fake) = (Instant::now(), Arc::new(Fake::default()));
    a.serve(Arc::downgrade(&(fake.clone() as Arc<dyn Front>)), Vec::new());
    eventually("a is a partner", || b.copies() == (1, 1));
    assert!(began.elapsed() < patience / 2, "{:?}", began.elapsed());
}

/// The life whose place was taken is known to the next one, and to no later one: that may have written more.
#[test]
fn a_member_that_comes_back_knows_which_life_was_taken_over() {
    let bed = Bed::new();
    let taken = Some(keys::Taken { by: "b".into(), epoch: 4, done: true, short: vec![] });
    let dead = keys::Member { epoch: 6, taken, ..member("a") };
    bed.registry.commit(&Commit::new().put("stores/s/members/a", json(&dead))).unwrap();
    for taken in [Some(4), None] {
        let a = Member::join(bed.joining("a")).unwrap();
        assert_eq!(a.taken_life, taken);
        a.leave();
    }
}
