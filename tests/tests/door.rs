//! The control socket and the metrics port under malicious clients: their use of the daemon is
//! bounded, and honest clients are answered meanwhile.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::{
    Bed, Mounted, PATIENCE, Rng, Tier, free_port, is_alive, needs_forebay, open_fds, proof, text,
    within,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

trait Client: Read + Write {}
impl<T: Read + Write> Client for T {}

fn control(bed: &Bed) -> UnixStream {
    let run = fs::File::open(bed.tier.join("run")).unwrap();
    let dir = Path::new("/proc/self/fd").join(run.as_raw_fd().to_string());
    let stream = UnixStream::connect(dir.join("control.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn port(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends the bytes that the server takes, and returns its answer up to the close.
fn told(mut client: impl Client, bytes: &[u8]) -> String {
    let _ = client.write_all(bytes);
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A number of `/proc/PID/status`.
fn figure(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {status}"))
}

fn mount(bed: &Bed) -> (Mounted, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mounted = bed.mount(&["--metrics-listen", &address.to_string()]);
    (mounted, address)
}

const SCRAPE: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";

fn assert_serves(mounted: &Mounted, address: SocketAddr) {
    assert!(is_alive(mounted.pid));
    assert_eq!(mounted.number("pid"), mounted.pid as u64, "another daemon answers");
    let page = told(port(address), SCRAPE);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("forebay_"), "{page}");
}

/// An announced length does not take memory.
#[test]
fn a_length_beyond_all_bounds_is_refused() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (mounted, address) = mount(&bed);
    let attack = b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx";
    for answer in [told(port(address), attack), told(control(&bed), attack)] {
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
    assert_serves(&mounted, address);
    mounted.umount();
    proof!("refused on both doors");
}

/// A connection that is begun and abandoned: it may still be on its way.
fn half_open(address: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let _ = rustix::net::connect(&socket, &address);
    socket
}

#[test]
fn thousands_of_half_open_connections_cost_no_thread_and_hold_nobody_up() {
    needs_forebay!();
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let many = limit.maximum.unwrap_or(9_000).saturating_sub(500).min(9_000);
    let bed = Bed::new(Tier::Disk);
    let (mounted, address) = mount(&bed);
    assert_serves(&mounted, address);
    let (threads, descriptors) = (figure(mounted.pid, "Threads"), open_fds(mounted.pid));
    let flood: Vec<OwnedFd> = (0..many).map(|_| half_open(address)).collect();
    let began = Instant::now();
    assert_eq!(mounted.number("pid"), mounted.pid as u64);
    let status = began.elapsed();
    assert!(status < Duration::from_secs(10), "status took {status:?}");
    // A scrape has to pass the kernel's queue of the port, among all those connections.
    let page = told(port(address), SCRAPE);
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let now = figure(mounted.pid, "Threads");
    assert!(now <= threads + 8, "{now} threads, and {threads} before");
    assert!(open_fds(mounted.pid) < descriptors + 200, "{} descriptors", open_fds(mounted.pid));
    drop(flood);
    within(PATIENCE, "they are let go", || open_fds(mounted.pid) < descriptors + 8);
    mounted.umount();
    proof!("{many} connections, status in {status:?}");
}

/// Requests that are nearly right: pieces of good requests, cut, repeated, with changed bytes.
fn mutated(rng: &mut Rng) -> Vec<u8> {
    let whole: [&[u8]; 8] = [
        b"GET /metrics HTTP/1.1\r\nHost: forebay\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"PUT /v1/config HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"max-age\": \"30 s\"}\n",
        b"POST /v1/jobs HTTP/1.0\r\nContent-Length: 44\r\n\r\n{\"kind\":\"evict\",\"paths\":[\"no-such-file-here\"]}",
        b"GET /v1/files?prefix=%61%zz&a=b+c HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
        b"POST /v1/rules HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[[[[[\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
        b"\r\n\r\n\r\nHEAD /v1/top HTTP/1.1\r\nX: y\r\n\r\n",
    ];
    let mut bytes = rng.pick(&whole).to_vec();
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes.truncate(at + 1),
            2 => drop(bytes.splice(at..at, rng.bytes(8))),
            3 => bytes.extend_from_slice(rng.pick::<&[u8]>(&whole)),
            4 => drop(bytes.splice(at..at, vec![b'9'; 12])),
            _ => {
                let piece = vec![*rng.pick(b"[{ \n:a"); 1 << rng.below(17)];
                drop(bytes.splice(at..at, piece));
            }
        }
    }
    bytes
}

/// Sends and leaves, or half-closes and reads to the end; neither may do harm.
fn try_one(bed: &Bed, address: SocketAddr, rng: &mut Rng) -> bool {
    let bytes = mutated(rng);
    let reads = rng.below(2) == 0;
    match rng.below(2) {
        0 => {
            let mut client = control(bed);
            let _ = client.write_all(&bytes);
            let _ = client.shutdown(std::net::Shutdown::Write);
            reads && !told(client, b"").is_empty()
        }
        _ => {
            let mut client = port(address);
            let _ = client.write_all(&bytes);
            let _ = client.shutdown(std::net::Shutdown::Write);
            reads && !told(client, b"").is_empty()
        }
    }
}

#[test]
fn thousands_of_broken_requests_leave_the_daemon_as_it_was() {
    needs_forebay!();
    const ROUNDS: u64 = 4_000;
    let bed = Bed::new(Tier::Disk);
    let (mounted, address) = mount(&bed);
    let mut rng = Rng::new(0xf0e1);
    // The memory and threads for serving at all are allocated by then.
    let warm = (0..200).filter(|_| try_one(&bed, address, &mut rng)).count();
    let before = ["VmHWM", "Threads"].map(|name| figure(mounted.pid, name));
    let answered = warm + (0..ROUNDS).filter(|_| try_one(&bed, address, &mut rng)).count();
    let after = ["VmHWM", "Threads"].map(|name| figure(mounted.pid, name));
    assert!(answered > 500, "only {answered} had an answer");
    assert!(after[0] < before[0] + (32 << 10), "{} KiB, and {} before", after[0], before[0]);
    assert!(after[1] <= before[1] + 8, "{} threads, and {} before", after[1], before[1]);
    assert_serves(&mounted, address);
    mounted.umount();
    proof!("{answered} answers, {} KiB at most", after[0]);
}

fn limit(mounted: &Mounted, resource: Resource, to: u64) -> Rlimit {
    let pid = Pid::from_raw(mounted.pid);
    let ours = getrlimit(resource);
    prlimit(pid, resource, Rlimit { current: Some(to), ..ours }).expect("root may set limits")
}

/// Clients wait while no descriptor is free for them, and are served when one is.
#[test]
fn a_client_that_finds_no_descriptor_left_waits_for_one() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (mounted, address) = mount(&bed);
    assert_serves(&mounted, address);
    // Every new descriptor has a number beyond this limit.
    let before = limit(&mounted, Resource::Nofile, 3);
    let mut waiting = [control(&bed), control(&bed)];
    for client in &mut waiting {
        client.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n").unwrap();
    }
    let log = || fs::read_to_string(bed.tier.join("run/forebay.log")).unwrap();
    within(PATIENCE, "the log says so", || log().contains("lets nobody in for now"));
    waiting[0].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(waiting[0].read(&mut [0]).is_err(), "there is an answer");
    waiting[0].set_read_timeout(Some(PATIENCE)).unwrap();
    limit(&mounted, Resource::Nofile, before.current.unwrap_or(1024));
    for client in waiting {
        let answer = told(client, b"");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(log().matches("lets nobody in for now").count(), 1, "once is enough");
    assert_serves(&mounted, address);
    mounted.umount();
    proof!("two clients waited");
}

/// A daemon in the background that dies of itself says why in its log. Method: an order whose
/// values do not fit into its allowed memory.
#[test]
fn the_last_words_of_a_dying_daemon_are_in_its_log() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (mounted, _) = mount(&bed);
    let room = (figure(mounted.pid, "VmSize") << 10) + (100 << 20);
    limit(&mounted, Resource::As, room);
    limit(&mounted, Resource::Core, 0);
    let body = format!("[{}0]", "0,".repeat(7 << 20));
    let head = format!("POST /v1/jobs HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    told(control(&bed), (head + &body).as_bytes());
    within(PATIENCE, "it dies", || !is_alive(mounted.pid));
    let log = fs::read_to_string(bed.tier.join("run/forebay.log")).unwrap();
    assert!(log.contains("memory allocation of"), "{log}");
    let out = mounted.forebay(&["umount", text(&mounted.path)]).ok();
    assert!(out.stdout.contains("died"), "{out:#?}");
    proof!("{}", log.lines().last().unwrap_or_default());
}
