//! `forebay top`: reads the daemon's figures every second and draws them until it is told to stop. The
//! terminal is restored, however the command ends.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::{DefaultTerminal, Frame, Terminal};
use serde_json::Value;

use crate::http::Client;
use crate::mounts::Mounts;
use crate::signals;
use crate::ui::members::Members;
use crate::ui::say;
use crate::ui::top::{REFRESH, Screen};

const EXAMPLES: &str = "\
Examples:
  forebay top
  forebay top /mnt/fast
  forebay top --once /mnt/fast > snapshot.txt
  forebay top --cluster /mnt/fast

Rates are of the last second, latencies and shares of hits of the last minute. q, Esc or Ctrl-C
quits. On the bar, l, h and H are the watermarks dirty-low, dirty-high and dirty-hard. What the kernel
passes through to the fast tier or answers from its page cache does not come to the daemon: of that
only new bytes are known, as files grow by them, not what is read or replaced, nor by which process.
--json prints what is drawn.";

/// Watch a mount: throughput, dirty level, governor, latencies, who is busy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount [default: where we are, or the only mount].
    mountpoint: Option<PathBuf>,

    /// Print one screen as plain text, 80 by 24.
    #[arg(long)]
    once: bool,

    /// Print the figures of one screen as JSON.
    #[arg(long, conflicts_with = "once")]
    json: bool,

    /// Show a line for each member of the store, on all nodes.
    #[arg(long)]
    cluster: bool,
}

/// The screen, and where its figures come from.
enum Shown {
    One(Box<Screen>),
    All(Members),
}

impl Shown {
    fn path(&self) -> &'static str {
        match self {
            Shown::One(_) => "/v1/top",
            Shown::All(_) => "/v1/cluster/top",
        }
    }

    fn update(&mut self, answer: Result<Value>) {
        match (self, answer) {
            (Shown::One(screen), Ok(answer)) => screen.update(answer),
            (Shown::One(screen), Err(error)) => screen.trouble = Some(error.to_string()),
            (Shown::All(members), Ok(answer)) => members.update(answer),
            (Shown::All(members), Err(error)) => members.trouble = Some(error.to_string()),
        }
    }

    fn draw(&self, frame: &mut Frame) {
        match self {
            Shown::One(screen) => screen.draw(frame),
            Shown::All(members) => members.draw(frame),
        }
    }
}

const SIZE: (u16, u16) = (80, 24);

pub fn run(args: &Args) -> Result<u8> {
    let place = Mounts::read()?.daemon_or_implied(args.mountpoint.as_deref())?;
    let client = Client::new(&place.tier);
    let mut screen = match args.cluster {
        true => Shown::All(Members::default()),
        false => Shown::One(Box::default()),
    };
    let first = client.get(screen.path())?;
    if args.json {
        crate::ui::say_json(&first);
        return Ok(0);
    }
    screen.update(Ok(first));
    if args.once {
        as_text(&screen)?.lines().for_each(say);
        return Ok(0);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "there is no terminal to draw on: add --once or --json";
        return Err(Error::new(Kind::Usage, message));
    }
    signals::catch_interrupts();
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch(&mut terminal, &client, &mut screen);
    ratatui::restore();
    ended.map(|()| 0).map_err(failed)
}

fn failed(error: io::Error) -> Error {
    Error::io(error, "the terminal")
}

fn watch(terminal: &mut DefaultTerminal, client: &Client, screen: &mut Shown) -> io::Result<()> {
    let mut next = Instant::now() + REFRESH;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        // Signals do not end the wait for a key, so the wait is short.
        let patience = next.saturating_duration_since(Instant::now());
        if event::poll(patience.min(Duration::from_millis(200)))? && wants_to_quit(&event::read()?)
        {
            return Ok(());
        }
        if signals::take_interrupt().is_some() {
            return Ok(());
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + REFRESH;
        screen.update(client.get(screen.path()));
    }
}

fn wants_to_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || (control && matches!(key.code, KeyCode::Char('c')))
}

fn as_text(screen: &Shown) -> Result<String> {
    let (width, height) = SIZE;
    let unfit = |_| Error::new(Kind::Usage, "a buffer cannot fail");
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(unfit)?;
    terminal.draw(|frame| screen.draw(frame)).map_err(unfit)?;
    Ok(plain(terminal.backend().buffer()))
}

fn plain(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_string()
    };
    buffer.content.chunks(width).map(line).collect::<Vec<_>>().join("\n")
}
