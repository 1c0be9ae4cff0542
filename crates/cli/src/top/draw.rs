//! The screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line as TextLine;
use ratatui::widgets::{Paragraph, Row, Table, Tabs};

use super::state::{Screen, Sort};
use super::tables::{Column, Tab};
use super::text::heading;

/// The keys, and the same for narrow terminals.
const KEYS: [&str; 2] = [
    "q end  Tab view  s sort  r reverse  drain: d quiet h handover f full (DHF: all)",
    "q end Tab view s r sort  drain d h f: a CPU, D H F: all",
];
/// Columns that a text needs, at least, to say anything.
const TEXT_MIN: u16 = 12;

/// Draws everything. Marks do not rely on colours: what is selected is reversed and has a mark.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let [head, tabs, body, message, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(&screen.looks.now, screen.pid)), head);
    let names = Tab::ALL.map(Tab::name);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let shown = Tabs::new(names).select(screen.tab_number()).highlight_style(reversed);
    frame.render_widget(shown.divider("|"), tabs);
    match screen.tab {
        Tab::Map => draw_map(frame, screen, body),
        _ => draw_table(frame, screen, body),
    }
    frame.render_widget(Paragraph::new(screen.message.as_str()), message);
    let fits = |text: &&str| text.len() <= usize::from(keys.width);
    let text = KEYS.into_iter().find(fits).unwrap_or(KEYS[1]);
    frame.render_widget(Paragraph::new(text).style(reversed), keys);
}

fn draw_map(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let text = screen.looks.now.fragmentation.to_string();
    let lines = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
    screen.scrolled = screen.scrolled.min(lines.saturating_sub(area.height));
    frame.render_widget(Paragraph::new(text).scroll((screen.scrolled, 0)), area);
}

fn draw_table(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let sort = *screen.sort_now();
    let columns = fitting(screen.tab.columns(), area.width);
    let lines = screen.lines();
    if lines.is_empty() {
        frame.render_widget(Paragraph::new(nothing(screen)), area);
        return;
    }
    let titles = columns.iter().enumerate().map(|(at, column)| {
        let Sort { column: sorted, descends } = sort;
        let mark = if at != sorted {
            ""
        } else if descends {
            "▼"
        } else {
            "▲"
        };
        aligned(column, &format!("{}{mark}", column.title))
    });
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = lines.iter().map(|line| {
        Row::new(columns.iter().zip(&line.cells).map(|(column, cell)| aligned(column, &cell.text)))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let table = Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut screen.table);
}

/// The first columns, as many as fit beside each other; a text may be cut where it is the last.
fn fitting(columns: &[Column], width: u16) -> &[Column] {
    let mut left = width;
    let mut fits = |column: &&Column| {
        let needs = if column.is_text { column.width.min(TEXT_MIN) } else { column.width };
        let has_room = left >= needs;
        // And a blank before the next one.
        left = left.saturating_sub(column.width + 1);
        has_room
    };
    &columns[..columns.iter().take_while(|column| fits(column)).count()]
}

/// The reason why a table is empty.
fn nothing(screen: &Screen) -> &'static str {
    match screen.tab {
        Tab::Areas => "The program publishes no address space (Publisher::space), or has no areas.",
        Tab::Sites if screen.looks.now.sites.is_none() => {
            "The program was built without the feature allocinfo of pagedepot-linux."
        }
        Tab::Sites => "No call site holds pages.",
        _ => "There is nothing.",
    }
}

fn aligned(column: &Column, text: &str) -> TextLine<'static> {
    let line = TextLine::from(text.to_owned());
    if column.is_text { line.left_aligned() } else { line.right_aligned() }
}

#[cfg(test)]
mod tests {
    use pagedepot_linux::publish::{DrainAnswer, Request, Snapshot};
    use pagedepot_linux::views::MapCell;
    use pagedepot_linux::{CpuId, Mode};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::top::state::Wish;

    /// A program with two CPUs, a second apart.
    fn looks() -> [Snapshot; 2] {
        let text = include_str!("../../tests/data/top.json");
        let mut later: Snapshot = serde_json::from_str(text).unwrap();
        // Pageblocks of every symbol, in turn.
        let free_pages = [512, 512, 400, 300, 200, 100, 0].into_iter().cycle();
        let cell = |(nth, free_pages): (usize, u64)| MapCell {
            pages: 512,
            free_pages,
            is_evacuating: nth % 50 == 2,
        };
        let map = &mut later.fragmentation.zones[0];
        map.cells = free_pages.take(map.pageblocks as usize).enumerate().map(cell).collect();
        let mut earlier = later.clone();
        earlier.at -= std::time::Duration::from_secs(1);
        earlier.caches.caches[0].hits -= 2_500_000;
        *earlier.zones.zones[0].counters.get_mut("refills").unwrap() -= 7;
        earlier.sites.as_mut().unwrap().sites[0].bytes -= 512 * 1024;
        [earlier, later]
    }

    fn drawn(screen: &mut Screen) -> String {
        drawn_in(screen, 80)
    }

    fn drawn_in(screen: &mut Screen, columns: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, 24)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Wish {
        screen.on(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn every_view_looks_like_this() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        screen.look(later);
        for tab in ["cpus", "zones", "areas", "sites", "map"] {
            insta::assert_snapshot!(format!("top_{tab}"), drawn(&mut screen));
            assert_eq!(press(&mut screen, KeyCode::Tab), Wish::Redraw);
        }
    }

    /// Columns that do not fit are left out; none is cut, so that no figure loses digits.
    #[test]
    fn narrow_terminals_have_fewer_columns() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        screen.look(later);
        let narrow = drawn_in(&mut screen, 60);
        for whole in ["hits%", "ops/s", "cached", "fronts", "shelves", "handed"] {
            assert!(narrow.contains(whole), "{whole}: {narrow}");
        }
        assert!(!narrow.contains("high") && narrow.contains("D H F: all"), "{narrow}");
        for tab in Tab::ALL.into_iter().filter(|tab| *tab != Tab::Map) {
            for width in 20..100 {
                let shown = fitting(tab.columns(), width);
                let (last, others) = shown.split_last().unwrap();
                let wide: u16 = others.iter().map(|column| column.width + 1).sum();
                let least = if last.is_text { last.width.min(TEXT_MIN) } else { last.width };
                assert!(wide + least <= width, "{tab:?} in {width} columns");
            }
        }
    }

    #[test]
    fn keys_sort_select_and_drain() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        let drain =
            |mode, cpu: Option<u32>| Wish::Drain(Request { mode, cpu: cpu.map(CpuId::new) });
        assert_eq!(press(&mut screen, KeyCode::Char('d')), drain(Mode::Quiet, Some(0)));
        press(&mut screen, KeyCode::Down);
        assert_eq!(press(&mut screen, KeyCode::Char('f')), drain(Mode::Full, Some(1)));
        assert_eq!(press(&mut screen, KeyCode::Char('H')), drain(Mode::Handover, None));
        // The row stays selected when it moves.
        press(&mut screen, KeyCode::Char('r'));
        assert_eq!(press(&mut screen, KeyCode::Char('d')), drain(Mode::Quiet, Some(1)));
        for _ in 0..4 {
            press(&mut screen, KeyCode::Char('s'));
        }
        assert!(drawn(&mut screen).contains("cached▼"));
        assert_eq!(press(&mut screen, KeyCode::Char('4')), Wish::Redraw);
        assert_eq!(press(&mut screen, KeyCode::Char('d')), Wish::Redraw);
        assert!(drawn(&mut screen).contains("select a CPU"));

        screen.asked(7, Request { mode: Mode::Full, cpu: None });
        assert!(drawn(&mut screen).contains("asked for a full drain of all cpus"));
        let mut answer = DrainAnswer::default();
        (answer.request, answer.taken_pages) = (7, 99);
        let mut answered = later.clone();
        answered.drained = Some(answer);
        screen.look(answered);
        assert!(drawn(&mut screen).contains("drained: 99 pages taken"));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Wish::End);
    }

    /// A look may have fewer CPUs, areas and zones than the one before.
    #[test]
    fn what_vanishes_is_not_looked_for() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        press(&mut screen, KeyCode::Down);
        let mut fewer = later;
        fewer.caches.caches.clear();
        fewer.zones.zones.clear();
        fewer.areas.areas.clear();
        fewer.fragmentation.zones.clear();
        fewer.sites = None;
        screen.look(fewer);
        for _ in Tab::ALL {
            drawn(&mut screen);
            for key in [KeyCode::Down, KeyCode::PageUp, KeyCode::Char('s'), KeyCode::Char('d')] {
                press(&mut screen, key);
            }
            press(&mut screen, KeyCode::Tab);
        }
    }
}
