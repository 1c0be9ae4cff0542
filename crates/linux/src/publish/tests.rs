//! Programs that publish, readers that look, and files that no program wrote.

use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use pagedepot::{CpuId, Mode, Order};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::files::Parts;
use super::header::{LENGTH_AT, MESSAGE_AT, MESSAGE_BYTES_MAX, ProgramId, VERSION};
use super::*;
use crate::reclaim::Ceiling;
use crate::test_units::{mib, page_bytes};
use crate::{Depot, Flags, MemoryKind, Vmalloc};

/// Long, because nothing waits for it unless something is wrong.
const LONG: Duration = Duration::from_secs(60);

/// A directory of a test's own, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagedepot-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn readers_see_what_is_there_when_they_look() {
    let place = Place::new("looks");
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let published = Publisher::new(&depot).space(&space).directory(&place.0).start().unwrap();
    let mode = fs::metadata(published.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut reader = Reader::open(published.path()).unwrap();
    assert_eq!(reader.pid(), std::process::id());
    assert_eq!(reader.refresh(LONG).unwrap().ceiling_bytes, Some(16 * mib() as u64));
    Ceiling::of(&depot).set(14 * mib()).unwrap();
    assert_eq!(reader.refresh(LONG).unwrap().ceiling_bytes, Some(14 * mib() as u64));
    let mut held = Vec::new();
    let _buf = space.buf(3 * page_bytes()).unwrap();
    for round in 0..5 {
        held.push(depot.page(Order::PAGEBLOCK).unwrap());
        let seen = reader.refresh(LONG).unwrap();
        assert_eq!(
            seen.fragmentation.zones[0].whole,
            Snapshot::of(&depot, &[]).fragmentation.zones[0].whole,
            "{round}"
        );
        assert_eq!(
            (seen.bytes, seen.page_bytes, seen.areas_count),
            (16 * mib() as u64, page_bytes() as u64, 1)
        );
        assert_eq!(seen.sites.is_some(), cfg!(feature = "allocinfo"));
        assert_eq!(seen.drained, None);
    }
    drop(published);
    assert!(matches!(reader.refresh(LONG), Err(ReadError::Withdrawn { .. })));
}

/// The thread writes when a reader opens the file, and at no other time.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn nothing_is_written_while_nobody_looks() {
    use super::board::Cells as _;
    let place = Place::new("sleeps");
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let mut reader = Reader::open(published.path()).unwrap();
    reader.refresh(LONG).unwrap();
    // Opened before the thread settles: reading is no event.
    let file = File::open(published.path()).unwrap();
    let sequence = || Parts(&file).sequence().unwrap();
    let mut settled = sequence();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        if sequence() == settled {
            break;
        }
        settled = sequence();
    }
    for _ in 0..10 {
        drop(depot.page(Order::BASE).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(sequence(), settled);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn readers_drain_if_they_may() {
    let place = Place::new("drains");
    for may_drain in [true, false] {
        let depot = Depot::builder(16 * mib()).per_cpu_locks(true).build().unwrap();
        let publisher = Publisher::new(&depot).directory(&place.0).may_drain(may_drain);
        let published = publisher.start().unwrap();
        drop(depot.page(Order::BASE).unwrap());
        let mut reader = Reader::open(published.path()).unwrap();
        assert!(reader.refresh(LONG).unwrap().caches.cached_pages() > 0);
        let number = reader.ask(Request { mode: Mode::Full, cpu: None }).unwrap();
        let answer = loop {
            let seen = reader.refresh(LONG).unwrap();
            if let Some(answer) = seen.drained.filter(|answer| answer.request == number) {
                assert_eq!(seen.caches.cached_pages() == 0, may_drain);
                break answer;
            }
        };
        assert_eq!((answer.is_refused, answer.taken_pages > 0), (!may_drain, may_drain));
        assert!(!answer.has_failed);
        // Another reader's first request is another one.
        drop(depot.page(Order::BASE).unwrap());
        let mut other = Reader::open(published.path()).unwrap();
        let again = other.ask(Request { mode: Mode::Full, cpu: None }).unwrap();
        assert_ne!(again, number);
        while other.refresh(LONG).unwrap().drained.is_none_or(|answer| answer.request != again) {}
        assert_eq!(other.refresh(LONG).unwrap().caches.cached_pages() == 0, may_drain);
        // Of a CPU that there is not: nothing, and no harm.
        reader.ask(Request { mode: Mode::Quiet, cpu: Some(CpuId::new(u32::MAX)) }).unwrap();
        reader.refresh(LONG).unwrap();
    }
}

/// A forked child has a copy of the keys by which its parent's readers make numbers.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_child_asks_by_numbers_of_its_own() {
    let place = Place::new("numbers");
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let mut common = Reader::open(published.path()).unwrap();
    let mut ask = || {
        let mut own = Reader::open(published.path()).ok()?;
        let request = Request { mode: Mode::Quiet, cpu: None };
        Some([own.ask(request).ok()?, common.ask(request).ok()?])
    };
    let (mut read, mut write) = std::io::pipe().unwrap();
    // SAFETY: the child asks and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let numbers = ask().unwrap_or_default();
        let is_written = numbers.iter().all(|it| write.write_all(&it.to_ne_bytes()).is_ok());
        // SAFETY: ends this child.
        unsafe { libc::_exit(i32::from(!is_written)) };
    }
    drop(write);
    let own = ask().unwrap();
    let childs = [0; 2].map(|_| {
        let mut bytes = [0; 8];
        read.read_exact(&mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    });
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    let mut numbers = [own, childs].concat();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4, "{own:?} {childs:?}");
    assert!(numbers[0] > 0, "the child asked");
}

/// A request is written to the file that the reader opened first, whatever lies at its path now.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn requests_are_not_written_to_other_files() {
    let place = Place::new("replaced");
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let mut reader = Reader::open(published.path()).unwrap();
    let [moved, other] = ["moved", "other"].map(|name| place.0.join(name));
    fs::rename(published.path(), &moved).unwrap();
    // A file of another program, and one that begins as the published one does.
    for bytes in [vec![b'.'; 128], fs::read(&moved).unwrap()] {
        fs::write(&other, &bytes).unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&other, published.path()).unwrap();
        let refused = reader.ask(Request { mode: Mode::Quiet, cpu: None }).unwrap_err();
        let ReadError::Defect { defect, .. } = refused else { panic!("{refused}") };
        assert_eq!(defect, Defect::Replaced);
        assert!(matches!(reader.refresh(LONG), Err(ReadError::Defect { .. })));
        assert_eq!(fs::read(&other).unwrap(), bytes);
        fs::remove_file(published.path()).unwrap();
    }
    // The same file, whose beginning is another's by now.
    fs::rename(&moved, published.path()).unwrap();
    let file = File::options().write(true).open(published.path()).unwrap();
    file.write_all_at(b"PK", 0).unwrap();
    let refused = reader.ask(Request { mode: Mode::Quiet, cpu: None }).unwrap_err();
    assert!(refused.to_string().contains("no program's statistics"), "{refused}");
}

/// Checks that files which others made beforehand keep no process from publishing.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn names_that_are_taken_are_passed_by() {
    let place = Place::new("taken");
    let pid = std::process::id();
    for number in 0..100 {
        File::create_new(place.0.join(format!("pagedepot-{pid}-{number}.stats"))).unwrap();
    }
    let depot = Depot::new(4 * mib()).unwrap();
    let all = [0; 3].map(|_| Publisher::new(&depot).directory(&place.0).start().unwrap());
    for published in &all {
        assert_eq!(
            Reader::open(published.path()).unwrap().refresh(LONG).unwrap().bytes,
            4 * mib() as u64
        );
    }
    drop(all);
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 100);
}

/// A program that may open no file any more answers readers, and its thread ends.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_program_that_may_open_nothing_answers() {
    let place = Place::new("closed");
    let [ready, end] = ["ready", "end"].map(|name| place.0.join(name));
    // SAFETY: the child publishes and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let publish = || {
            let depot = Depot::new(4 * mib()).unwrap();
            let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a limit of this child, which ends by a signal if its thread does not.
            unsafe {
                assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
                libc::alarm(60);
            }
            fs::create_dir(&ready).unwrap();
            while !end.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(published);
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(publish));
        // SAFETY: ends this child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    while !ready.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The thread may sleep in the call to poll that it made before: the first look ends that.
    let path = place.0.join(format!("pagedepot-{pid}-0.stats"));
    let mut reader = Reader::open(&path).unwrap();
    let seen = [0; 3].map(|_| reader.refresh(LONG).map(|seen| seen.bytes));
    fs::create_dir(&end).unwrap();
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    seen.into_iter().for_each(|bytes| assert_eq!(bytes.unwrap(), 4 * mib() as u64));
    assert!(!path.exists());
}

#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn the_last_handle_ends_it() {
    let place = Place::new("ends");
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let weak = depot.downgrade();
    drop(depot);
    assert!(weak.upgrade().is_none(), "what is published owns no handle");
    let mut reader = Reader::open(published.path()).unwrap();
    assert!(matches!(reader.refresh(LONG), Err(ReadError::Withdrawn { .. })));
    drop(published);
    assert!(fs::read_dir(&place.0).unwrap().next().is_none(), "the file is removed");
}

/// A forked child has a copy of all descriptors, and lives on.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn no_child_is_waited_for() {
    let place = Place::new("forked");
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    // SAFETY: the child only sleeps, until it is killed or a minute is over.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls without memory.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    let (told, ended) = std::sync::mpsc::channel();
    let dropping = std::thread::spawn(move || {
        drop(published);
        told.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(50));
    // SAFETY: our child, which is not waited for elsewhere.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    ended.unwrap();
    dropping.join().unwrap();
    assert!(fs::read_dir(&place.0).unwrap().next().is_none(), "the file is removed");
}

/// A drain that reports a page which was freed twice panics, and the next look is answered.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_drain_that_panics_is_not_the_end() {
    let place = Place::new("panics");
    let depot = Depot::builder(16 * mib()).per_cpu_locks(true).build().unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let raw = depot.raw();
    let pfn = raw.alloc(Order::BASE, Flags::default()).unwrap();
    // SAFETY: nobody uses the page; that it is freed twice is reported.
    unsafe {
        raw.free(pfn, Order::BASE).unwrap();
        raw.free(pfn, Order::BASE).unwrap();
    }
    let mut reader = Reader::open(published.path()).unwrap();
    let number = reader.ask(Request { mode: Mode::Full, cpu: None }).unwrap();
    let answer = loop {
        let drained = reader.refresh(LONG).unwrap().drained;
        if let Some(answer) = drained.filter(|answer| answer.request == number) {
            break answer;
        }
    };
    assert!(answer.has_failed && !answer.is_refused, "{answer:?}");
    drop(published);
    assert!(fs::read_dir(&place.0).unwrap().next().is_none(), "the file is removed");
}

/// The thread drops the last handle, and so a callback of the program's, which panics.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_panic_of_a_callback_that_is_dropped_leaves_no_file() {
    static LAST: Mutex<Option<Depot>> = Mutex::new(None);
    struct Bug;
    impl Drop for Bug {
        fn drop(&mut self) {
            panic!("a bug in the program");
        }
    }
    let place = Place::new("last-panics");
    let depot = Depot::builder(16 * mib()).per_cpu_locks(true);
    let depot = depot.on_misuse(|_| drop(LAST.lock().unwrap().take())).build().unwrap();
    let bug = Bug;
    depot.on_pressure(move |_| size_of_val(&bug) as u64).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let pfn = depot.raw().alloc(Order::BASE, Flags::default()).unwrap();
    // SAFETY: nobody uses the page; that it is freed twice is reported.
    unsafe {
        depot.raw().free(pfn, Order::BASE).unwrap();
        depot.raw().free(pfn, Order::BASE).unwrap();
    }
    *LAST.lock().unwrap() = Some(depot);
    let mut reader = Reader::open(published.path()).unwrap();
    reader.ask(Request { mode: Mode::Full, cpu: None }).unwrap();
    while reader.refresh(LONG).is_ok() {}
    assert!(LAST.lock().unwrap().is_none());
    drop(published);
    assert!(fs::read_dir(&place.0).unwrap().next().is_none(), "the file is removed");
}

/// A callback for a ceiling drops a publication, whose thread waits for that ceiling.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_publication_that_a_callback_for_a_ceiling_drops() {
    let place = Place::new("ceiling");
    let depot = Depot::new(16 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let (given, (told, ended)) = (Mutex::new(Some(published)), std::sync::mpsc::channel());
    let weak = depot.downgrade();
    let drops = move |_| {
        let Some(mut published) = given.lock().unwrap().take() else { return 0 };
        let depot = weak.upgrade().unwrap();
        // As a waker that the publisher's thread runs, in a drain.
        let waits = std::thread::spawn(move || _ = Ceiling::of(&depot).set(usize::MAX));
        let publisher = published.thread.replace(waits);
        drop(published);
        told.send(publisher.unwrap()).unwrap();
        0
    };
    depot.on_pressure(drops).unwrap();
    let held: Vec<_> = (0..4).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    // Not joined: it would not end.
    std::thread::spawn(move || Ceiling::of(&depot).set(2 * mib()));
    let publisher = ended.recv_timeout(LONG).expect("it waits for itself");
    publisher.join().unwrap();
    assert!(fs::read_dir(&place.0).unwrap().next().is_none(), "the file is removed");
    drop(held);
}

/// The reason for which a file with one change is refused.
fn refusal(place: &Place, change: impl FnOnce(&Path)) -> String {
    refusal_within(LONG, place, change)
}

fn refusal_within(limit: Duration, place: &Place, change: impl FnOnce(&Path)) -> String {
    let path = place.0.join("pagedepot-1-0.stats");
    let _ = fs::remove_file(&path);
    let _ = fs::remove_dir(&path);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let began = process::began(std::process::id()).unwrap();
    let parts = Parts(&file);
    parts.set_fixed(ProgramId { pid: std::process::id(), began }).unwrap();
    board::publish(&parts, || Ok(b"{}".to_vec())).unwrap();
    change(&path);
    let mut reader = match Reader::open(&path) {
        Ok(reader) => reader,
        Err(error) => return error.to_string(),
    };
    // This process publishes nothing: what a program would write is written for it.
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    let mut sequence = board::Cells::sequence(&Parts(&writer)).unwrap_or(0);
    let (read, reading) = std::sync::mpsc::channel::<()>();
    let answering = std::thread::spawn(move || {
        let pause = Duration::from_millis(2);
        while reading.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            sequence += 2;
            let _ = board::Cells::set_sequence(&Parts(&writer), sequence);
        }
    });
    let refused = reader.refresh(limit).unwrap_err().to_string();
    drop(read);
    answering.join().unwrap();
    refused
}

#[test]
#[cfg_attr(miri, ignore = "needs /proc")]
fn files_that_no_program_wrote_are_refused() {
    let place = Place::new("hostile");
    let write = |at: u64, bytes: &'static [u8]| {
        move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(bytes, at).unwrap();
        }
    };
    let truncate = |bytes: u64| {
        move |path: &Path| File::options().write(true).open(path).unwrap().set_len(bytes).unwrap()
    };
    let number = |at: u64, number: u64| {
        move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&number.to_le_bytes(), at).unwrap();
        }
    };
    let replaced = |with: fn(&Path)| {
        move |path: &Path| {
            fs::remove_file(path).unwrap();
            with(path);
        }
    };
    for (says, refused) in [
        ("no program's statistics", refusal(&place, write(0, b"PK"))),
        ("it has version 9 and this reader knows 1", refusal(&place, write(8, &[9]))),
        ("ends after 0 bytes", refusal(&place, truncate(0))),
        ("ends after 31 bytes", refusal(&place, truncate(31))),
        ("ends after 4097 bytes", refusal(&place, truncate(MESSAGE_AT + 1))),
        ("ends after 4098 bytes", refusal(&place, number(LENGTH_AT, 3))),
        ("claims to have", refusal(&place, number(LENGTH_AT, MESSAGE_BYTES_MAX + 1))),
        ("claims to have", refusal(&place, number(LENGTH_AT, u64::MAX))),
        ("contents are damaged: missing field", refusal(&place, |_| {})),
        ("contents are damaged: expected value", refusal(&place, write(MESSAGE_AT, b"\xff\xff"))),
        ("has ended", refusal(&place, number(24, 1))),
        ("has ended", refusal(&place, write(16, &[0xff, 0xff, 0xff, 0x7f]))),
        (
            "permissions are 644",
            refusal(&place, |path| {
                fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
            }),
        ),
        (
            "no regular file",
            refusal(&place, replaced(|path| symlink("/etc/passwd", path).unwrap())),
        ),
        ("no regular file", refusal(&place, replaced(|path| symlink(path, path).unwrap()))),
        ("no regular file", refusal(&place, replaced(|path| fs::create_dir(path).unwrap()))),
        (
            "no regular file",
            refusal(
                &place,
                replaced(|path| {
                    rustix::fs::mknodat(
                        rustix::fs::CWD,
                        path,
                        rustix::fs::FileType::Fifo,
                        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                        0,
                    )
                    .unwrap();
                }),
            ),
        ),
        ("No such file", refusal(&place, replaced(|_| {}))),
    ] {
        assert!(refused.contains(says), "{says}: {refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
    assert_eq!(VERSION, 1, "the text above names it");
}

/// A program that stops answering, in the middle of a write too, is no reason to wait for ever.
#[test]
#[cfg_attr(miri, ignore = "needs /proc")]
fn a_program_that_does_not_answer_is_named() {
    let place = Place::new("stopped");
    let odd = refusal_within(Duration::from_millis(100), &place, |path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        board::Cells::set_sequence(&Parts(&file), 7).unwrap();
    });
    assert!(odd.contains("does not answer"), "{odd}");
}

/// The files' side of `board`, which the model explores over memory: what is read is of one write.
#[test]
#[cfg_attr(miri, ignore = "long for an interpreter")]
fn messages_in_files_are_read_whole() {
    const MESSAGES: u64 = 2000;
    let place = Place::new("board");
    let path = place.0.join("board");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let parts = Parts(&file);
    parts.set_fixed(ProgramId { pid: 1, began: 1 }).unwrap();
    board::publish(&parts, || Ok(vec![0; 100])).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=MESSAGES {
                // Longer and shorter ones, over several pages.
                let bytes = 100 + (number * 7919 % 20_000) as usize;
                board::publish(&parts, || Ok(vec![number as u8; bytes])).unwrap();
            }
        });
        let (mut last, mut read) = (0, 0);
        while !writer.is_finished() {
            let Some((sequence, message)) = board::read(&parts).unwrap() else { continue };
            assert!(sequence >= last && sequence % 2 == 0);
            (last, read) = (sequence, read + 1);
            let number = sequence / 2 - 1;
            assert!(message.iter().all(|&byte| byte == number as u8), "message {number} is torn");
        }
        println!("{read} of {MESSAGES} messages were read");
    });
    assert_eq!(board::read(&parts).unwrap().unwrap().0, 2 * (MESSAGES + 1));
}

/// Run by the next test, in a process of its own.
#[test]
#[ignore = "publishes until it is killed"]
fn publishes_until_it_is_killed() {
    let Some(directory) = std::env::var_os("PAGEDEPOT_TEST_PUBLISH") else { return };
    let depot = Depot::new(4 * mib()).unwrap();
    let published = Publisher::new(&depot).directory(directory).start().unwrap();
    println!("\npublished {}", published.path().display());
    loop {
        std::thread::park();
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_program_that_died_is_named() {
    let place = Place::new("died");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "publish::tests::publishes_until_it_is_killed", "--ignored"])
        .arg("--nocapture")
        .env("PAGEDEPOT_TEST_PUBLISH", &place.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let path = lines.into_iter().find_map(|line| Some(line.strip_prefix("published ")?.to_owned()));
    let path = path.expect("the child publishes");
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.refresh(LONG).unwrap().bytes, 4 * mib() as u64);
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = [reader.refresh(LONG).unwrap_err(), Reader::open(&path).unwrap_err()];
    for error in gone {
        let pid = format!("process {}", child.id());
        assert!(error.to_string().contains(&pid), "{error}");
        assert!(matches!(error, ReadError::Gone { .. }), "{error}");
    }
}

/// Run by the next test, in a process that may make files of a few KiB alone.
#[test]
#[ignore = "needs a limit"]
fn publishes_beyond_a_limit() {
    let Some(directory) = std::env::var_os("PAGEDEPOT_TEST_PUBLISH") else { return };
    let depot = Depot::new(4 * mib()).unwrap();
    let error = Publisher::new(&depot).directory(directory).start().unwrap_err();
    assert!(error.to_string().contains("ulimit -f"), "{error}");
}

/// A file that would become too large is an error, and no signal that ends the program.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn too_large_a_file_is_an_error() {
    let place = Place::new("limit");
    // Less than the header, and more than that but no message.
    for bytes in [512, 9 * 512] {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "publish::tests::publishes_beyond_a_limit", "--ignored"])
            .env("PAGEDEPOT_TEST_PUBLISH", &place.0);
        // SAFETY: the child makes a system call, and touches no memory of its parent's.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Fsize, limit)?)) };
        let child = command.output().unwrap();
        let out = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && out.contains("1 passed"), "{}: {out}", child.status);
    }
}

/// A callback may own a publication, and the publisher's thread may drop the last handle.
#[test]
#[cfg_attr(miri, ignore = "needs inotify")]
fn a_publication_that_its_own_thread_drops() {
    let place = Place::new("own");
    let depot = Depot::new(4 * mib()).unwrap();
    let mut published = Publisher::new(&depot).directory(&place.0).start().unwrap();
    let (hand_over, handed) = std::sync::mpsc::channel::<Publication>();
    let (tell, told) = std::sync::mpsc::channel();
    let own = std::thread::spawn(move || {
        drop(handed.recv().unwrap());
        tell.send(()).unwrap();
    });
    let publisher = published.thread.replace(own).unwrap();
    hand_over.send(published).unwrap();
    told.recv().expect("it joined itself");
    publisher.join().unwrap();
}
