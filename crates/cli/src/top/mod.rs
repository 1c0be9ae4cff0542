//! `top`: a live view of a program that publishes its depot (`pagedepot_linux::publish`).
//!
//! | module | what |
//! |---|---|
//! | `choose` | which program |
//! | `tables` | rows of figures, and rates between two looks |
//! | `state` | what is shown, and what keys change |
//! | `draw` | the screen |
//! | `terminal` | the terminal it is drawn on, and its keys |
//! | `text` | the same once, for files and pipes |

mod choose;
mod draw;
mod state;
mod tables;
mod terminal;
mod text;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use pagedepot_linux::publish::{Reader, Snapshot};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::choose::refused;
use self::state::{Screen, Wish};
use self::terminal::Terminal;
use crate::args;
use crate::failure::Failure;
use crate::report::terminal::moves_cursor;

/// Time that a program may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Time between two looks for keys and signals.
const KEYS: Duration = Duration::from_millis(100);

/// Options of `top`.
#[derive(Clone, Debug, Args)]
pub struct TopOptions {
    /// The program: its process id, or the file that it publishes (default: the only one there
    /// is); of a segment that processes share, what `inspect` shows
    #[arg(value_name = "PID|FILE")]
    pub program: Option<String>,
    /// Print what is there once, and end; also where stdout is no terminal that can be drawn on
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        value_parser = args::whole::<3600>,
        allow_negative_numbers = true,
    )]
    pub every: u32,
}

/// Shows a program until the user or the program ends; returns what is to be printed, for
/// `--once`.
///
/// # Errors
/// When there is no such program, or it cannot be read, or ends.
pub fn run(options: &TopOptions) -> Result<Option<String>, Failure> {
    let mut reader = choose::reader(options.program.as_deref())?;
    let first = reader.refresh(ANSWER_MAX).map_err(refused)?;
    if options.once || !io::stdout().is_terminal() || !moves_cursor() {
        return Ok(Some(text::page(&first, reader.pid())));
    }
    let ends =
        ends().map_err(|error| Failure::Run(format!("cannot listen for signals: {error}")))?;
    let terminal = Terminal::new()
        .map_err(|error| Failure::Run(format!("no terminal to draw on: {error}; see --once")))?;
    let every = Duration::from_secs(options.every.into());
    Live { reader, terminal, every, ends }.show(first).map(|()| None)
}

/// Set by signals that end the process: the terminal is restored first.
fn ends() -> io::Result<Arc<AtomicBool>> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    Ok(ends)
}

/// The state of a view that goes on.
struct Live {
    reader: Reader,
    terminal: Terminal,
    every: Duration,
    ends: Arc<AtomicBool>,
}

impl Live {
    fn show(mut self, first: Snapshot) -> Result<(), Failure> {
        let mut screen = Screen::new(first, self.reader.pid());
        let mut looked = Instant::now();
        loop {
            let size = self.terminal.size();
            self.terminal.draw(draw::draw(&mut screen, size), size)?;
            // Relaxed: nothing else is published with it.
            if self.ends.load(Ordering::Relaxed) {
                return Ok(());
            }
            let left = self.every.saturating_sub(looked.elapsed());
            // Of keys that came at once the last wish counts, but for redrawing.
            let mut wish = Wish::Nothing;
            for key in self.terminal.keys(left.min(KEYS))? {
                wish = match (wish, screen.on(key)) {
                    (earlier, Wish::Nothing | Wish::Redraw) if earlier != Wish::Nothing => earlier,
                    (_, next) => next,
                };
            }
            match wish {
                Wish::Nothing if looked.elapsed() < self.every => continue,
                Wish::Nothing | Wish::Look => {}
                Wish::Redraw => continue,
                Wish::End => return Ok(()),
                Wish::Drain(request) => {
                    let number = self.reader.ask(request).map_err(refused)?;
                    screen.asked(number, request);
                }
            }
            screen.look(self.reader.refresh(ANSWER_MAX).map_err(refused)?);
            looked = Instant::now();
        }
    }
}
