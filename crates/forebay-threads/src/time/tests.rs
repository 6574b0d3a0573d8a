use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Runs `work` on a thread that takes part in simulated time.
fn at_work<T: Send + 'static>(
    time: &Time,
    work: impl FnOnce(&Time) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let ((tell, told), part, time) = (mpsc::channel(), time.part(), time.clone());
    std::thread::spawn(move || {
        part.for_life();
        tell.send(work(&time)).expect("somebody listens");
    });
    told
}

#[test]
fn hours_pass_while_everybody_waits_and_none_otherwise() {
    let (time, _me) = Time::simulated();
    let (real, began, day) = (Instant::now(), time.now(), time.ms());
    time.sleep(3600 * SECOND);
    assert!(time.since(began) >= 3600 * SECOND && time.since(began) < 3601 * SECOND);
    assert!((3_600_000..3_601_000).contains(&(time.ms() - day)), "the time of day goes along");
    let before = time.now();
    std::thread::sleep(Duration::from_millis(20));
    assert!(time.since(before) < Duration::from_millis(1), "it stands");
    assert!(time.now() > before, "and no two looks are the same");
    assert!(real.elapsed() < 60 * SECOND, "nobody waited for it");
}

#[test]
fn each_sleeper_wakes_at_its_time_and_in_order() {
    const SLEEPERS: usize = 8;
    const ROUNDS: u32 = 200;
    let (time, _me) = Time::simulated();
    let woken = Arc::new(Mutex::new(Rank::Wake, Vec::<(Instant, Instant)>::new()));
    let sleepers: Vec<_> = (0..SLEEPERS as u32)
        .map(|n| {
            let woken = woken.clone();
            at_work(&time, move |time| {
                for _ in 0..ROUNDS {
                    let due = time.now() + (n + 1) * SECOND;
                    time.sleep((n + 1) * SECOND);
                    woken.lock().push((due, time.now()));
                }
            })
        })
        .collect();
    while woken.lock().len() < SLEEPERS * ROUNDS as usize {
        time.sleep(SECOND / 2);
    }
    sleepers.iter().for_each(|sleeper| sleeper.recv().expect("it ended"));
    let woken = woken.lock();
    let late = |(due, at): &(Instant, Instant)| *at < *due || *at - *due > SECOND / 1000;
    assert!(!woken.iter().any(late), "{:?}", woken.iter().find(|it| late(it)));
}

#[test]
fn a_notified_thread_wakes_before_its_time_and_another_after_it() {
    let (time, _me) = Time::simulated();
    let pair = Arc::new((Mutex::new(Rank::Wake, false), Condvar::new()));
    let other = pair.clone();
    let told = at_work(&time, move |time| {
        let began = time.now();
        let (_set, timed_out) =
            time.wait_while(&other.1, other.0.lock(), 100 * SECOND, |set| !*set);
        (timed_out, time.since(began))
    });
    time.sleep(10 * SECOND);
    *pair.0.lock() = true;
    pair.1.notify_all();
    let (timed_out, took) = told.recv().expect("it ended");
    assert!(!timed_out && took < 11 * SECOND, "{took:?}");
    let (_set, timed_out) = time.wait_while(&pair.1, pair.0.lock(), SECOND, |set| *set);
    assert!(timed_out);
}

/// Otherwise a thread that waits for another would believe that it hangs, while it is only about to
/// end.
#[test]
fn a_thread_ends_before_time_goes_on() {
    let (time, _me) = Time::simulated();
    for _ in 0..200 {
        let (part, other) = (time.part(), time.clone());
        let thread = std::thread::spawn(move || {
            part.for_life();
            other.sleep(SECOND);
        });
        let began = time.now();
        while !thread.is_finished() {
            time.sleep(SECOND / 100);
        }
        assert!(time.since(began) < 2 * SECOND, "{:?}", time.since(began));
        thread.join().unwrap();
    }
}

/// Work that was given away and not begun, and work that was begun and not done, take no time.
#[test]
fn work_takes_no_time_however_long_it_takes() {
    let (time, _me) = Time::simulated();
    let began = time.now();
    let part = time.part();
    let (go, wait) = mpsc::channel::<()>();
    let worker = std::thread::spawn({
        let time = time.clone();
        move || {
            wait.recv().expect("it goes on");
            let _at_work = part.begin();
            std::thread::sleep(Duration::from_millis(100));
            time.since(began)
        }
    });
    let starter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        go.send(()).expect("somebody waits");
    });
    time.sleep(SECOND);
    let took = worker.join().unwrap();
    starter.join().unwrap();
    assert!(took < SECOND / 1000, "{took:?}");
    assert!(time.since(began) >= SECOND);
}

#[test]
fn a_thread_that_hangs_holds_up_no_other_for_good() {
    let (time, _me) = Time::simulated();
    let (go, wait) = mpsc::channel::<()>();
    let hanging = at_work(&time, move |time| {
        let _ = wait.recv();
        // The thread takes part again from its end on: until it begins, time goes on without it.
        time.sleep(SECOND);
        let began = time.now();
        time.sleep(SECOND);
        time.since(began)
    });
    let began = time.now();
    time.sleep(3600 * SECOND);
    assert!(time.since(began) >= 3600 * SECOND);
    drop(go);
    let slept = loop {
        match hanging.try_recv() {
            Ok(slept) => break slept,
            Err(_) => time.sleep(SECOND / 10),
        }
    };
    assert!(slept >= SECOND && slept < 2 * SECOND, "the thread takes part again: {slept:?}");
}

/// Otherwise the threads of an engine that was never ended would spin for ever.
#[test]
fn without_a_driver_time_stands() {
    let (time, me) = Time::simulated();
    let ticks = Arc::new(AtomicUsize::new(0));
    let counted = ticks.clone();
    let _keeper = at_work(&time, move |time| {
        loop {
            time.sleep(SECOND);
            counted.fetch_add(1, SeqCst);
        }
        #[expect(unreachable_code, reason = "it keeps on")]
        ()
    });
    time.sleep(10 * SECOND);
    assert!(ticks.load(SeqCst) >= 9);
    drop(me);
    let before = ticks.load(SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    assert!(ticks.load(SeqCst) <= before + 1);
}
