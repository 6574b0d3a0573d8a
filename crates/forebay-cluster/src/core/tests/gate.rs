//! The gate of a directory's rename, and the lease that it hangs on.

use super::*;

const RENAMES: u64 = 7;

fn at(core: &mut Core, millis: u64, input: Input) -> Vec<Effect> {
    core.handle(Duration::from_millis(millis), input)
}

fn lease(until: u64) -> Input {
    Input::Lease(Duration::from_millis(until))
}

fn put(key: &str, value: Vec<u8>, revision: u64) -> Input {
    Input::Seen(Revision(revision), vec![Event::Put(entry(key, value, revision))])
}

fn committed(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Commit(ticket, _) => Some(*ticket),
        _ => None,
    })
}

/// A's gate stands, and A has asked B to give back what it holds below. Returns the question's ticket, too.
fn gated(rules: Rules) -> (Core, u64) {
    let mut core = core(vec![entry("claims/a.1", claim("b"), 3)], rules);
    at(&mut core, 1, lease(1000));
    let ask = Ask::Change { files: vec![], dirs: vec![], below: Some("d".into()) };
    let effects = at(&mut core, 1, Input::Ask(RENAMES, ask));
    let effects = barrier(&mut core, &effects, 5);
    let gate = committed(&effects).expect("it puts a gate");
    at(&mut core, 2, Input::Committed(gate, Ok(Outcome::Committed(Revision(6)))));
    let gate = json(&keys::Gate { by: "a".into(), from: "d".into() });
    let effects = at(&mut core, 2, put("gate", gate, 6));
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Send { ticket, question: Peer::RecallBelow { .. }, .. } => Some(*ticket),
        _ => None,
    });
    (core, asked.expect("b is asked"))
}

/// The lease has run out while A stood still, and A has another. The watch has not told yet that the gate is gone.
fn renames_under_the_next_lease(rules: Rules) -> bool {
    let (mut core, asked) = gated(rules);
    at(&mut core, 2000, lease(3000));
    let effects = at(&mut core, 2001, Input::Answered(asked, Ok(Reply::Given(true))));
    way(&effects).is_some()
}

#[test]
fn a_gate_is_worth_nothing_under_the_next_lease() {
    assert!(!renames_under_the_next_lease(Rules::default()));
    assert!(renames_under_the_next_lease(Rules::without(Rule::GateStands)));
}

#[test]
fn whether_a_gate_stands_is_told_until_its_lease_runs_out() {
    let (mut core, asked) = gated(Rules::default());
    let effects = at(&mut core, 900, Input::Answered(asked, Ok(Reply::Given(true))));
    assert_eq!(way(&effects), Some(Way::Here));
    let may = |core: &Core, millis, task| core.may_rename(Duration::from_millis(millis), task);
    assert!(may(&core, 999, RENAMES) && !may(&core, 999, RENAMES + 1));
    assert!(!may(&core, 1000, RENAMES));
    at(&mut core, 1000, lease(5000));
    assert!(!may(&core, 1001, RENAMES), "the next lease is another");
}

/// The lapsed gate goes, and the rename puts another.
#[test]
fn a_rename_whose_gate_has_lapsed_begins_anew() {
    let (mut core, asked) = gated(Rules::default());
    at(&mut core, 2000, lease(9000));
    at(&mut core, 2001, Input::Answered(asked, Ok(Reply::Given(true))));
    let looks = |core: &mut Core, millis, effects: Vec<Effect>, revision| {
        let asked = effects.iter().find_map(|effect| match effect {
            Effect::Barrier(ticket) => Some(*ticket),
            _ => None,
        });
        let asked = asked.expect("it looks anew");
        committed(&at(core, millis, Input::Barrier(asked, Ok(Revision(revision)))))
    };
    let effects = at(&mut core, 3000, Input::Tick);
    let delete =
        looks(&mut core, 3001, effects, 6).expect("it takes the gate away, if that is there");
    at(&mut core, 3002, Input::Committed(delete, Ok(Outcome::Committed(Revision(8)))));
    let gone = Event::Deleted { key: "stores/s/gate".into(), revision: Revision(8) };
    let mut effects = at(&mut core, 3003, Input::Seen(Revision(8), vec![gone]));
    effects.extend(at(&mut core, 3100, Input::Tick));
    assert!(looks(&mut core, 3101, effects, 8).is_some(), "it puts another");
}

/// Without the gate others would begin below the directory.
#[test]
fn a_gate_stays_while_its_rename_is_made() {
    let (mut core, asked) = gated(Rules::default());
    let effects = at(&mut core, 900, Input::Answered(asked, Ok(Reply::Given(true))));
    assert_eq!(way(&effects), Some(Way::Here));
    at(&mut core, 1100, lease(5000));
    assert!(committed(&at(&mut core, 1200, Input::Tick)).is_none(), "it is being made");
    assert!(committed(&at(&mut core, 1300, Input::Changed(RENAMES))).is_some());
}
