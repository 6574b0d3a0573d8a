//! Renames of directories beside requests that wait for other members.

use forebay_backing::RenameMode;

use super::*;

/// B serves an open of A's program only while no gate stands, since a claim has to be put before.
fn served_without_gate(net: &Arc<Net>) {
    let weak = Arc::downgrade(net);
    net.fated(move |_, question| {
        let Some(net) = weak.upgrade().filter(|_| matches!(question, Question::Open { .. })) else {
            return Fate::Answered;
        };
        eventually("a gate stands", || net.gates.load(SeqCst) > 0);
        eventually("the gate is gone", || net.gates.load(SeqCst) == 0);
        Fate::Answered
    });
}

// S-5
#[test]
fn a_rename_of_a_directory_waits_for_no_request_that_waits_for_its_gate() {
    let bed = Bed::new(2);
    let backing = bed.root.join("backing");
    std::fs::create_dir(backing.join("d")).expect("it is writable");
    std::fs::write(backing.join("f"), "bytes").expect("it is writable");
    let a = &bed.mounts[0];
    lock(&bed.net.homes).insert(bed.mounts[1].key("f"), "b".into());
    a.lookup("d").expect("it is there");
    a.lookup("f").expect("it is there");
    served_without_gate(&bed.net);
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| a.read(a.opened("f")));
        let is_open = |q: &Question| matches!(q, Question::Open { .. });
        eventually("B is asked", || bed.net.count(is_open) > 0);
        let (from, to) = ((ROOT, OsStr::new("d")), (ROOT, OsStr::new("e")));
        a.vfs.rename(from, to, RenameMode::Replace).expect("the open ends");
        assert_eq!(opens.join().expect("no panic"), "bytes");
    });
    assert!(backing.join("e").is_dir());
    assert_eq!(bed.net.gates.load(SeqCst), 0);
}
