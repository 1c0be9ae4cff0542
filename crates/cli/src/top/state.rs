//! The state of the screen, and the keys that change it.

use pagedepot_linux::publish::{Request, Snapshot};
use pagedepot_linux::{CpuId, Mode};

use super::tables::{Line, Looks, Tab};
use super::terminal::Key;

/// The wish behind a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wish {
    Nothing,
    /// The wish to draw the screen again.
    Redraw,
    /// The wish to look again now.
    Look,
    Drain(Request),
    End,
}

/// The order of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub column: usize,
    pub descends: bool,
}

/// The state of the screen.
pub(super) struct Screen {
    pub looks: Looks,
    pub pid: u32,
    pub tab: Tab,
    pub sort: [Sort; Tab::ALL.len()],
    /// The row that is selected, by its id: rows move.
    selected: Option<String>,
    /// The place of that row.
    pub selected_at: Option<usize>,
    /// Rows of the table that are above the screen.
    pub table_top: usize,
    /// Lines that the map is scrolled by.
    pub scrolled: u16,
    pub message: String,
    /// The number of the last request, until it is answered.
    asked: Option<u64>,
}

impl Screen {
    pub fn new(first: Snapshot, pid: u32) -> Self {
        let sort = |column, descends| Sort { column, descends };
        Screen {
            looks: Looks { now: first, before: None },
            pid,
            tab: Tab::Cpus,
            // CPUs and zones by number, areas by address, sites by bytes.
            sort: [sort(0, false), sort(0, false), sort(0, false), sort(0, true), sort(0, false)],
            selected: None,
            selected_at: None,
            table_top: 0,
            scrolled: 0,
            message: String::new(),
            asked: None,
        }
    }

    /// Takes a new look.
    pub fn look(&mut self, now: Snapshot) {
        if let Some(answer) = now.drained.filter(|answer| Some(answer.request) == self.asked) {
            self.asked = None;
            self.message = match answer {
                answer if answer.is_refused => "the program lets nobody drain".to_owned(),
                answer if answer.has_failed => {
                    "the drain failed: see what the program has reported".to_owned()
                }
                answer => format!(
                    "drained: {} pages taken, {} out of reach, {} fences, {} CPUs asked",
                    answer.taken_pages,
                    answer.unreachable_pages,
                    answer.fences,
                    answer.pending_cpus
                ),
            };
        }
        self.looks.before = Some(std::mem::replace(&mut self.looks.now, now));
    }

    /// A drain was asked for.
    pub fn asked(&mut self, number: u64, request: Request) {
        self.asked = Some(number);
        let whose = request.cpu.map_or("all CPUs".to_owned(), |cpu| format!("CPU {}", cpu.get()));
        self.message = format!("asked for a {:?} drain of {whose}", request.mode).to_lowercase();
    }

    pub fn sort_now(&mut self) -> &mut Sort {
        &mut self.sort[self.tab_number()]
    }

    pub fn tab_number(&self) -> usize {
        Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0)
    }

    /// The rows in order; the selected one is selected again.
    pub fn lines(&mut self) -> Vec<Line> {
        let mut lines = self.tab.lines(&self.looks);
        let Sort { column, descends } = *self.sort_now();
        lines.sort_by(|a, b| {
            let order = a.cells[column].compare(&b.cells[column]);
            if descends { order.reverse() } else { order }
        });
        let at = lines.iter().position(|line| Some(&line.id) == self.selected.as_ref());
        self.selected_at = at.or((!lines.is_empty()).then_some(0));
        lines
    }

    fn selected_line(&mut self) -> Option<Line> {
        let mut lines = self.lines();
        let at = self.selected_at?;
        (at < lines.len()).then(|| lines.swap_remove(at))
    }

    fn step(&mut self, by: isize) {
        if self.tab == Tab::Map {
            self.scrolled = self.scrolled.saturating_add_signed(by as i16);
            return;
        }
        let lines = self.lines();
        let at = self.selected_at.unwrap_or(0).saturating_add_signed(by);
        self.selected =
            lines.get(at.min(lines.len().saturating_sub(1))).map(|line| line.id.clone());
    }

    /// Handles a key; returns the wish behind it.
    pub fn on(&mut self, key: Key) -> Wish {
        let all = Tab::ALL.len();
        match key {
            Key::Char('q') | Key::Escape | Key::Interrupt => return Wish::End,
            Key::Char(' ') => return Wish::Look,
            Key::Tab | Key::Right => self.show(Tab::ALL[(self.tab_number() + 1) % all]),
            Key::BackTab | Key::Left => {
                self.show(Tab::ALL[(self.tab_number() + all - 1) % all]);
            }
            Key::Char(digit @ '1'..='5') => self.show(Tab::ALL[digit as usize - '1' as usize]),
            Key::Char('s') if self.tab != Tab::Map => {
                let columns = self.tab.columns();
                let sort = self.sort_now();
                let column = (sort.column + 1) % columns.len();
                // Figures are looked at from the largest on, names from A.
                *sort = Sort { column, descends: !columns[column].is_text };
            }
            Key::Char('r') if self.tab != Tab::Map => {
                let sort = self.sort_now();
                sort.descends = !sort.descends;
            }
            Key::Down | Key::Char('j') => self.step(1),
            Key::Up | Key::Char('k') => self.step(-1),
            Key::PageDown => self.step(10),
            Key::PageUp => self.step(-10),
            Key::Char(letter) => return self.drain(letter),
        }
        Wish::Redraw
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.selected = None;
        self.scrolled = 0;
    }

    /// Small letters drain the selected CPU, capitals all of them.
    fn drain(&mut self, letter: char) -> Wish {
        let mode = match letter.to_ascii_lowercase() {
            'd' => Mode::Quiet,
            'h' => Mode::Handover,
            'f' => Mode::Full,
            _ => return Wish::Nothing,
        };
        if letter.is_ascii_uppercase() {
            return Wish::Drain(Request { mode, cpu: None });
        }
        match self.selected_line().and_then(|line| line.cpu) {
            Some(cpu) => Wish::Drain(Request { mode, cpu: Some(CpuId::new(cpu)) }),
            None => {
                self.message = "select a CPU (1), or drain all by a capital letter".to_owned();
                Wish::Redraw
            }
        }
    }
}
