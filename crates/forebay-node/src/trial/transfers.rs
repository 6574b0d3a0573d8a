//! Transfers: ordered, reported, and forgotten.

use super::*;

/// The nodes that make an instance and order a transfer may have clocks that differ.
#[test]
fn a_transfer_that_a_slow_clock_ordered_is_waited_for() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let made = Instance { created: now() + 3600, ..made };
    node.book.put(&keys::wanted_instance("w"), &made).unwrap();
    node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    assert!(matches!(node.before_leaving(&made).unwrap(), Before::Wait(..)));
}

#[test]
fn a_user_has_so_many_transfers_that_have_not_ended() {
    let bed = Bed::new();
    let mut config = bed.config("n1", "");
    config.limits.transfers_per_user = 2;
    let node = bed.node_of(config);
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let order = |name: &str, asker| node.desk().transfer(&out_of(&made, name), asker);
    let first = order("a", USER).unwrap();
    order("b", USER).unwrap();
    let refused = order("c", USER).unwrap_err();
    assert!(refused.is(libc::EDQUOT) && refused.to_string().contains("more than 2"), "{refused}");
    let cancelled = ended(&first, TransferState::Cancelled);
    node.book.put(&keys::actual_transfer(&first.id), &cancelled).unwrap();
    assert!(order("c", USER).unwrap_err().is(libc::EDQUOT), "what it left can be taken up");
    node.desk().call_off(&first.id, USER, TransferWant::Revoked).unwrap();
    let ordered: usize = std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..6).map(|n| scope.spawn(move || order(&format!("d{n}"), USER).is_ok())).collect();
        asked.into_iter().filter(|_| true).map(|one| usize::from(one.join().unwrap())).sum()
    });
    assert_eq!(ordered, 1, "of six at once");
}

#[test]
fn a_transfer_s_names_are_no_longer_than_the_kernel_s_and_bounded_in_all() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let order = |asked: &NewTransfer| node.desk().transfer(asked, USER);
    let long = |bytes| Path::new("/pfs").join("x".repeat(bytes));
    let to = |bytes| NewTransfer { destination: long(bytes), ..out_of(&made, "f") };
    let refused = order(&to(4096)).unwrap_err().to_string();
    assert!(refused.contains("destination is too long"), "{refused}");
    for last in [vec!["x".repeat(100); 50], vec![String::new(); 5000]] {
        let options = TransferOptions { last, ..TransferOptions::default() };
        let asked = NewTransfer { options, ..out_of(&made, "f") };
        let refused = order(&asked).unwrap_err().to_string();
        assert!(refused.contains("--last: all patterns"), "{refused}");
    }
    let one = order(&to(4000)).unwrap();
    for n in 0..8 * 1024 * 1024 / one.names_bytes() - 1 {
        let more = Transfer { id: format!("t{n}"), ..one.clone() };
        node.book.put(&keys::wanted_transfer(&more.id), &more).unwrap();
    }
    let refused = order(&to(4000)).unwrap_err();
    assert!(refused.is(libc::EDQUOT) && refused.to_string().contains("names"), "{refused}");
}

/// Clocks may be set back, and those of two nodes be apart.
#[test]
fn a_transfer_has_a_higher_name_than_those_its_owner_ordered_before() {
    let bed = Bed::new();
    let node = bed.node("n1");
    for (name, asker) in [("w", USER), ("r", ROOT)] {
        let owner = Owner { uid: asker.uid, gid: asker.gid };
        let asked = NewInstance { owner, ..wish(name, Mode::Private, &["n1"]) };
        let made = node.desk().create(&asked).unwrap();
        let order = |to: &str| node.desk().transfer(&out_of(&made, to), asker).unwrap();
        let now = order("now");
        let ahead = Transfer { id: format!("tz{}", &now.id[2..]), ..now };
        node.book.put(&keys::wanted_transfer(&ahead.id), &ahead).unwrap();
        let next = order("next");
        assert!(next.id > ahead.id, "{} > {}", next.id, ahead.id);
        let all = std::thread::scope(|scope| {
            let asked: Vec<_> =
                (0..4).map(|n| scope.spawn(move || order(&format!("{n}")))).collect();
            asked.into_iter().map(|one| one.join().unwrap().id).collect::<BTreeSet<_>>()
        });
        let times: BTreeSet<&str> = all.iter().map(|id| &id[..9]).collect();
        assert_eq!(times.len(), 4, "one after the other: {all:?}");
    }
}

#[test]
fn what_was_told_of_a_transfer_goes_with_its_record() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let status = node.local.transfers().unwrap().path().join(format!("{}.jsonl", transfer.id));
    std::fs::write(&status, "").unwrap();
    let forget = |node: &Node| {
        let all = node.desk().transfers().unwrap();
        node.forget_transfers(&Wanted::of(&node.book).unwrap(), &all).unwrap();
        (status.exists(), node.desk().transfer_of(&transfer.id).is_ok())
    };
    let long_ago = TransferActual { since: 1, ..ended(&transfer, TransferState::Failed) };
    node.book.put(&keys::actual_transfer(&transfer.id), &long_ago).unwrap();
    assert_eq!(forget(&node), (true, true), "what it left is still wanted");
    let done = TransferActual { state: TransferState::Done, ..long_ago };
    node.book.put(&keys::actual_transfer(&transfer.id), &done).unwrap();
    assert_eq!(forget(&node), (false, false));
}

#[test]
fn transfers_that_end_at_once_do_not_take_each_other_s_lines() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let ordered: Vec<Transfer> = (0..8)
        .map(|n| node.desk().transfer(&out_of(&made, &format!("r{n}")), USER).unwrap())
        .collect();
    for attempt in 0..20 {
        std::thread::scope(|scope| {
            for transfer in &ordered {
                let (node, made) = (&node, &made);
                scope.spawn(move || node.failed(transfer, made));
            }
        });
        let lines = node.book.manifest().unwrap();
        assert_eq!(lines.len(), ordered.len(), "at the {attempt}th time");
        manifest::clear(&node.book, "n1", "w").unwrap();
    }
}

/// A transfer that the hands of a node refuse ends there, and does not wait.
#[test]
fn what_is_refused_has_failed_and_is_in_the_manifest_with_its_bytes() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    node.tend(&made).unwrap();
    let out = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let gone = node.desk().destroy("w", USER, Want::Gone).unwrap();
    *bed.hands.refuses.lock().unwrap() = Some("its account has expired".into());
    assert_eq!(node.carry_and_tell(&out, &gone), Next::After(Duration::from_secs(3600)));
    let told = node.desk().transfer_of(&out.id).unwrap().1.unwrap();
    assert_eq!((told.state, told.failures), (TransferState::Failed, 1));
    assert_eq!(told.why.as_deref(), Some("its account has expired"));
    let lines = manifest::of(&node.book, "n1", "w", &out.id).unwrap();
    assert_eq!((lines.len(), lines[0].bytes), (1, HELD), "{lines:?}");
    let Before::Wait(why, _) = node.before_leaving(&gone).unwrap() else { panic!("it goes") };
    assert!(why.contains("forebay stage resume"), "{why}");
    // The transfer is resumed when the obstacle is gone.
    *bed.hands.refuses.lock().unwrap() = None;
    let again = node.desk().resume(&out.id, USER).unwrap();
    node.carry_and_tell(&again, &gone);
    assert_eq!(node.before_leaving(&gone).unwrap(), Before::Nothing);
    node.tend(&gone).unwrap();
}

/// Method: the node forgets a transfer while a user calls it off, or takes it up again.
#[test]
fn a_transfer_that_is_forgotten_meanwhile_stays_forgotten() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let made = desk.create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = desk.transfer(&out_of(&made, "r"), USER).unwrap();
    let key = keys::wanted_transfer(&transfer.id);
    let altered = desk.alter(&transfer.id, USER, |_, transfer, _| {
        node.book.delete(&key)?;
        transfer.attempt += 1;
        Ok(())
    });
    assert_eq!(node.book.read::<Transfer>(&key).unwrap(), None, "{altered:?}");
    assert!(altered.unwrap_err().to_string().contains("no transfer"));
}
