//! The screen.

use super::state::{Screen, Sort};
use super::tables::{Column, Tab};
use super::terminal::{Look, Row};
use super::text::heading;

/// The keys, and the same for narrow terminals.
const KEYS: [&str; 2] = [
    "q end  Tab view  s sort  r reverse  drain: d quiet h handover f full (DHF: all)",
    "q end Tab view s r sort  drain d h f: a CPU, D H F: all",
];
/// Columns that a text needs, at least, to say anything.
const TEXT_MIN: u16 = 12;

/// Rows above the view: the heading's two, and the tabs.
const HEAD: usize = 3;
/// Rows below it: the message, and the keys.
const FOOT: usize = 2;

/// Everything, as rows of a screen of this size. Marks do not rely on colours: what is selected is
/// reversed and has a mark.
pub(super) fn draw(screen: &mut Screen, (width, height): (usize, usize)) -> Vec<Row> {
    let heading = heading(&screen.looks.now, screen.pid);
    let mut rows: Vec<Row> = heading.lines().map(Row::from).collect();
    rows.resize(HEAD - 1, Row::default());
    rows.push(tabs(screen.tab_number()));
    let room = height.saturating_sub(HEAD + FOOT).max(1);
    let mut body = match screen.tab {
        Tab::Map => map(screen, room),
        _ => table(screen, width, room),
    };
    body.resize(room, Row::default());
    rows.append(&mut body);
    rows.push(Row::from(screen.message.as_str()));
    let fits = |text: &&str| text.len() <= width;
    let keys = KEYS.into_iter().find(fits).unwrap_or(KEYS[1]);
    rows.push(Row { look: Look::Reversed, ..Row::from(keys) });
    rows.truncate(height);
    rows.iter().map(|row| row.fitted(width)).collect()
}

/// The names of the views, of which one is shown.
fn tabs(shown: usize) -> Row {
    let names = Tab::ALL.map(|tab| format!(" {} ", tab.name()));
    let before: usize = names[..shown].iter().map(|name| name.len() + 1).sum();
    let look = Look::Marked(before + 1..before + names[shown].len() - 1);
    Row { text: names.join("|"), look }
}

fn map(screen: &mut Screen, room: usize) -> Vec<Row> {
    let text = screen.looks.now.fragmentation.to_string();
    let below = text.lines().count().saturating_sub(room);
    screen.scrolled = screen.scrolled.min(u16::try_from(below).unwrap_or(u16::MAX));
    text.lines().skip(screen.scrolled.into()).take(room).map(Row::from).collect()
}

fn table(screen: &mut Screen, width: usize, room: usize) -> Vec<Row> {
    let Sort { column: sorted, descends } = *screen.sort_now();
    let columns = fitting(screen.tab.columns(), u16::try_from(width).unwrap_or(u16::MAX));
    let lines = screen.lines();
    if lines.is_empty() {
        return vec![Row::from(nothing(screen))];
    }
    let titles = columns.iter().enumerate().map(|(at, column)| {
        let mark = match (at == sorted, descends) {
            (false, _) => "",
            (true, true) => "▼",
            (true, false) => "▲",
        };
        aligned(column, &format!("{}{mark}", column.title))
    });
    let mut rows = vec![Row { text: titles.collect::<Vec<_>>().join(" "), look: Look::Bold }];
    // The selected row stays in sight.
    let (shown, selected) = (room.saturating_sub(1).max(1), screen.selected_at.unwrap_or(0));
    screen.table_top = screen.table_top.clamp((selected + 1).saturating_sub(shown), selected);
    for (at, line) in lines.iter().enumerate().skip(screen.table_top).take(shown) {
        let cells =
            columns.iter().zip(&line.cells).map(|(column, cell)| aligned(column, &cell.text));
        let text = cells.collect::<Vec<_>>().join(" ");
        let look = if at == selected { Look::Reversed } else { Look::Plain };
        rows.push(Row { text, look });
    }
    rows
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

/// A cell as wide as its column; a text that is wider is cut.
fn aligned(column: &Column, text: &str) -> String {
    let width = usize::from(column.width);
    let text: String = text.chars().take(width).collect();
    if column.is_text { format!("{text:width$}") } else { format!("{text:>width$}") }
}

#[cfg(test)]
mod tests {
    use pagedepot_linux::publish::{DrainAnswer, Request, Snapshot};
    use pagedepot_linux::views::MapCell;
    use pagedepot_linux::{CpuId, Mode};

    use super::*;
    use crate::top::state::Wish;
    use crate::top::terminal::Key;

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

    fn drawn_in(screen: &mut Screen, columns: usize) -> String {
        let rows = draw(screen, (columns, 24));
        assert_eq!(rows.len(), 24);
        rows.iter().map(|row| format!("{}|\n", row.text)).collect()
    }

    fn press(screen: &mut Screen, key: Key) -> Wish {
        screen.on(key)
    }

    /// Compares with `snapshots/NAME.txt`. `PAGEDEPOT_SNAPSHOTS=write` writes that file anew.
    fn assert_looks_like(name: &str, shown: &str) {
        let file = format!("{}/src/top/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("PAGEDEPOT_SNAPSHOTS").is_some_and(|what| what == "write") {
            std::fs::write(&file, shown).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap();
        assert!(
            shown == expected,
            "{name} was\n{expected}\nand is\n{shown}\nIf that is meant: PAGEDEPOT_SNAPSHOTS=write"
        );
    }

    #[test]
    fn every_view_looks_like_this() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        screen.look(later);
        for tab in ["cpus", "zones", "areas", "sites", "map"] {
            assert_looks_like(tab, &drawn(&mut screen));
            assert_eq!(press(&mut screen, Key::Tab), Wish::Redraw);
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
        assert_eq!(press(&mut screen, Key::Char('d')), drain(Mode::Quiet, Some(0)));
        press(&mut screen, Key::Down);
        assert_eq!(press(&mut screen, Key::Char('f')), drain(Mode::Full, Some(1)));
        assert_eq!(press(&mut screen, Key::Char('H')), drain(Mode::Handover, None));
        // The row stays selected when it moves.
        press(&mut screen, Key::Char('r'));
        assert_eq!(press(&mut screen, Key::Char('d')), drain(Mode::Quiet, Some(1)));
        for _ in 0..4 {
            press(&mut screen, Key::Char('s'));
        }
        assert!(drawn(&mut screen).contains("cached▼"));
        assert_eq!(press(&mut screen, Key::Char('4')), Wish::Redraw);
        assert_eq!(press(&mut screen, Key::Char('d')), Wish::Redraw);
        assert!(drawn(&mut screen).contains("select a CPU"));

        let changes: [(fn(&mut DrainAnswer), _); 3] = [
            (|answer| answer.taken_pages = 99, "drained: 99 pages taken"),
            (|answer| answer.is_refused = true, "lets nobody drain"),
            (|answer| answer.has_failed = true, "the drain failed"),
        ];
        for (change, says) in changes {
            screen.asked(7, Request { mode: Mode::Full, cpu: None });
            assert!(drawn(&mut screen).contains("asked for a full drain of all cpus"));
            let mut answer = DrainAnswer::default();
            answer.request = 7;
            change(&mut answer);
            let mut answered = later.clone();
            answered.drained = Some(answer);
            screen.look(answered);
            assert!(drawn(&mut screen).contains(says));
        }
        assert_eq!(press(&mut screen, Key::Char('q')), Wish::End);
    }

    /// A look may have fewer CPUs, areas and zones than the one before.
    #[test]
    fn what_vanishes_is_not_looked_for() {
        let [earlier, later] = looks();
        let mut screen = Screen::new(earlier, 4711);
        press(&mut screen, Key::Down);
        let mut fewer = later;
        fewer.caches.caches.clear();
        fewer.zones.zones.clear();
        fewer.areas.areas.clear();
        fewer.fragmentation.zones.clear();
        fewer.sites = None;
        screen.look(fewer);
        for _ in Tab::ALL {
            drawn(&mut screen);
            for key in [Key::Down, Key::PageUp, Key::Char('s'), Key::Char('d')] {
                press(&mut screen, key);
            }
            press(&mut screen, Key::Tab);
        }
    }
}
