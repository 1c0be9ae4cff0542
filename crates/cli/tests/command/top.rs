//! `top` on this process's own depot: in a terminal of 80 by 24 as a person sees it, and as text.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::COMMAND;
use crate::pty::{Pty, run, screen};
use pagedepot_linux::publish::{Publication, Publisher};
use pagedepot_linux::{Depot, Mode, Order, Scope};

/// Long, because nothing waits for it unless something is wrong.
const LONG: Duration = Duration::from_secs(60);

fn published(directory: &Path) -> (Depot, Publication) {
    let depot = Depot::builder(16 << 20).per_cpu_locks(true).build().unwrap();
    let published = Publisher::new(&depot).directory(directory).start().unwrap();
    (depot, published)
}

/// The command in a terminal.
struct Terminal {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: File,
    child: Child,
}

impl Terminal {
    fn new(arguments: &[&str]) -> Self {
        let (terminal, child) = Pty::start(arguments, (24, 80), &[]);
        let keys = terminal.keys();
        let screen = Arc::new(Mutex::new(screen((24, 80))));
        let seen = screen.clone();
        std::thread::spawn(move || terminal.read(|part| seen.lock().unwrap().process(part)));
        Terminal { screen, keys, child }
    }

    fn text(&self) -> String {
        let screen = self.screen.lock().unwrap();
        let screen = screen.screen();
        assert!((0..24).all(|row| !screen.row_wrapped(row)), "wider than the terminal");
        screen.contents()
    }

    fn wait_for(&self, what: &str) -> String {
        let begin = Instant::now();
        loop {
            let text = self.text();
            if text.contains(what) {
                return text;
            }
            assert!(begin.elapsed() < LONG, "{what} does not come:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap();
        // What was printed last may still be on its way.
        std::thread::sleep(Duration::from_millis(100));
        let screen = self.screen.lock().unwrap();
        assert!(!screen.screen().alternate_screen(), "the terminal is as it was");
        // A path in a message may be longer than a line.
        (code, screen.screen().contents().replace('\n', ""))
    }
}

#[test]
fn it_shows_views_and_drains() {
    let directory = tempfile::tempdir().unwrap();
    let (depot, published) = published(directory.path());
    drop(depot.page(Order::BASE).unwrap());
    let cached = || depot.zone_stats(depot.zone_ids().next().unwrap()).unwrap().cached_pages;
    assert!(cached() > 0);
    let mut top = Terminal::new(&["top", published.path().to_str().unwrap()]);
    let text = top.wait_for("hits%");
    assert!(text.contains("depot of 16.0 MiB") && text.contains("q end"), "{text}");
    assert!(text.contains(&format!("({})", std::process::id())), "{text}");
    top.press("s");
    top.wait_for("zone▲");
    top.press("2");
    top.wait_for("refills/s");
    top.press("3");
    top.wait_for("publishes no address space");
    top.press("5");
    top.wait_for("pageblocks, ");
    top.press("F");
    let text = top.wait_for("drained: ");
    assert!(text.contains(" pages taken, 0 out of reach"), "{text}");
    assert_eq!(cached(), 0);
    top.press("q");
    let (code, text) = top.end();
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_program_that_stops_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let (_depot, published) = published(directory.path());
    let top = Terminal::new(&["top", published.path().to_str().unwrap()]);
    top.wait_for("hits%");
    drop(published);
    let (code, text) = top.end();
    assert!(code == 1 && text.contains("no longer publishes"), "{code}: {text}");
}

#[test]
fn a_dumb_terminal_gets_the_text_once() {
    let directory = tempfile::tempdir().unwrap();
    let (_depot, published) = published(directory.path());
    let seen = run(&["top", published.path().to_str().unwrap()], (24, 80), &[("TERM", "dumb")]);
    assert_eq!(seen.exit_code, 0, "{}", seen.text());
    assert!(
        seen.text().contains("depot of 16.0 MiB") && !seen.raw.contains('\x1b'),
        "{}",
        seen.raw
    );
}

/// Runs it without a terminal.
fn once(arguments: &[&str], directory: &Path) -> (i32, String, String) {
    let output = std::process::Command::new(COMMAND)
        .arg("top")
        .args(arguments)
        .env("XDG_RUNTIME_DIR", directory)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn text_fits_and_is_found_by_process() {
    let directory = tempfile::tempdir().unwrap();
    let (depot, _published) = published(directory.path());
    let _held = depot.page(Order::BASE).unwrap();
    depot.drain(Scope::ALL, Mode::Quiet);
    let (code, text, errors) = once(&[&std::process::id().to_string()], directory.path());
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(text.contains("depot of 16.0 MiB") && text.contains("8 pageblocks, 7 whole"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn what_cannot_be_shown_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (_depot, published) = published(directory.path());
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let whole = std::fs::read(published.path()).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        use std::os::unix::fs::OpenOptionsExt as _;
        let options = &mut File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(path(name));
        file.unwrap().write_all(bytes).unwrap();
        path(name)
    };
    let mut other = whole.clone();
    other[8] = 77;
    let mut dead = whole.clone();
    dead[24] ^= 1;
    let open = path("open");
    std::fs::write(&open, &whole).unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&open, readable).unwrap();
    let link = path("link");
    std::os::unix::fs::symlink(published.path(), &link).unwrap();
    for (name, says) in [
        (write("empty", b""), "ends after 0 bytes"),
        (write("short", &whole[..20]), "ends after 20 bytes"),
        (write("text", &[b'x'; 5000]), "no program's statistics"),
        (write("version", &other), "version 77"),
        (write("dead", &dead), "has ended"),
        (open, "permissions"),
        (link, "no regular file"),
        (path(""), "no regular file"),
        ("/dev/zero".to_owned(), "no regular file"),
        (path("none"), "No such file"),
        ("4194304".to_owned(), "process 4194304 publishes no depot"),
        ("99999999999".to_owned(), "No such file"),
    ] {
        let (code, text, errors) = once(&[&name], directory.path());
        assert!(code != 0 && text.is_empty() && errors.contains(says), "{name}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{name}: {errors}");
    }
}

/// The readers of the kernel's files read the views that have its formats: a program's own zones
/// take the place of a kernel's in a replay.
#[test]
fn readers_of_the_kernels_files_read_views() {
    use pagedepot_linux::views::{BuddyInfo, FragmentationInfo, PageTypeInfo, ZoneInfo};
    use pagedepot_trace::{Buddyinfo, Pagetypeinfo, Zoneinfo};

    let depot = Depot::builder(64 << 20).build().unwrap();
    // Every third page stays held.
    let _held: Vec<_> = depot.alloc_pages(Order::BASE, 3000).unwrap().step_by(3).collect();
    let zones = Zoneinfo::parse(&ZoneInfo::of(&depot).to_string(), "ours").unwrap();
    let zone = &zones.zones[0];
    let stats = depot.zone_stats(depot.zone_ids().next().unwrap()).unwrap();
    assert_eq!((zone.name.as_str(), zone.managed, zone.free), ("Normal", 16384, stats.free_pages));
    assert_eq!((zone.low, zone.high), (stats.watermarks.low, stats.watermarks.high));
    assert_eq!(zone.cached(), stats.cached_pages);
    assert_eq!(zone.pagesets[0].batch, stats.limits.batch);
    assert_eq!(zone.pagesets[0].high_max, Some(stats.limits.high_max));

    let blocks = Buddyinfo::parse(&BuddyInfo::of(&depot).to_string(), "ours").unwrap();
    assert_eq!(blocks.free_pages(), stats.free_pages);
    let map = &FragmentationInfo::of(&depot).zones[0];
    assert_eq!(blocks.whole_pageblocks(), map.whole);
    let nine = blocks.unusable_index(Order::PAGEBLOCK);
    assert!((nine - map.unusable[9]).abs() < 1e-9, "{nine} {map:?}");

    let types = Pagetypeinfo::parse(&PageTypeInfo::of(&depot).to_string(), "ours").unwrap();
    assert_eq!(types.pageblocks.iter().map(|(_, count)| count).sum::<u64>(), 32);
    assert_eq!(types.pageblocks[1], ("Movable".to_owned(), 32));
}
