//! Tests of surroundings that misbehave: full disks, readers that go away, damaged files, names
//! that are not text. Each is answered with one line, and nothing that was measured is lost.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::surroundings::{bomb, pagedepot, refused, results, shipped, stderr, unread};

/// The shortest measurement.
const HOT: [&str; 9] =
    ["bench", "hot", "--design", "floor-tls", "--quick", "--runs", "1", "--cpus", "1"];

#[test]
fn samples_survive_readers_that_go_away_and_full_disks() {
    let directory = tempfile::tempdir().unwrap();
    let (gone, full) = (directory.path().join("gone.json"), directory.path().join("full.json"));
    let mut command = pagedepot(&HOT);
    command.arg("--json").arg(&gone);
    let output = unread(command);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(results(&gone)["results"][0]["metric"], "pair_ns");

    let mut command = pagedepot(&HOT);
    command.arg("--json").arg(&full).stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is the disk full?"), "{}", stderr(&output));
    assert_eq!(results(&full)["results"][0]["metric"], "pair_ns");
}

#[test]
fn a_file_keeps_what_it_has_until_there_are_results() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "of an earlier run, and longer than what replaces it".repeat(1000))
        .unwrap();
    let mut command = pagedepot(&["bench", "hot", "--design", "kernel", "--json"]);
    command.arg(file.path());
    assert!(refused(command).contains("cannot do `bench hot`"));
    assert!(fs::read_to_string(file.path()).unwrap().starts_with("of an earlier run"));

    let mut command = pagedepot(&HOT);
    assert!(command.arg("--json").arg(file.path()).output().unwrap().status.success());
    assert_eq!(results(file.path())["schema"], 1);

    // Nor does an empty file, or one beside it, stay when nothing is written.
    let directory = tempfile::tempdir().unwrap();
    let mut command = pagedepot(&["bench", "hot", "--design", "kernel", "--json"]);
    command.arg(directory.path().join("new.json"));
    refused(command);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn results_that_cannot_be_written_are_shown_all_the_same() {
    let mut command = pagedepot(&HOT);
    let output = command.args(["--json", "/dev/full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write /dev/full"), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains("floor-tls"));
}

/// A drawing that cannot be written costs neither the table nor the samples.
#[test]
fn drawings_that_cannot_be_written_lose_nothing_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = pagedepot(&["bench", "giveback", "--busy", "--design", "glibc", "--quick"]);
    command.args(["--svg", "/dev/full", "--json"]).arg(file.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = stderr(&output).lines().last().unwrap();
    assert!(
        line.contains("cannot write /dev/full") && line.contains("is the disk full?"),
        "{line}"
    );
    assert!(String::from_utf8(output.stdout).unwrap().contains("glibc"), "the table is shown");
    assert!(!results(file.path())["results"].as_array().unwrap().is_empty());
}

/// A file that is written in a folder where none can be made beside it.
#[test]
fn files_without_room_beside_them_are_written_in_place() {
    let mut command = pagedepot(&HOT);
    let output = command.args(["--json", "/proc/self/comm"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let (longest, link) = (folder.path().join("x".repeat(255)), folder.path().join("link"));
    std::os::unix::fs::symlink(&longest, &link).unwrap();
    for path in [&link, &longest, &link] {
        let mut command = pagedepot(&HOT);
        let output = command.arg("--json").arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(results(&longest)["schema"], 1);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn pipes_get_all_results_by_one_open() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = pagedepot(&HOT);
    let mut child = command.arg("--json").arg(&pipe).stdout(Stdio::null()).spawn().unwrap();
    let text = fs::read_to_string(&pipe).unwrap();
    if text.is_empty() {
        child.kill().unwrap();
    }
    assert!(child.wait().unwrap().success() && text.starts_with("{\"schema\":1"), "{text}");
}

#[test]
fn help_and_tables_end_quietly_with_their_reader() {
    for arguments in [&["--help"][..], &["help", "bench"]] {
        let output = unread(pagedepot(arguments));
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn damaged_and_misplaced_files_get_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let short = directory.path().join("short.zst");
    let whole = fs::read(shipped()).unwrap();
    // Nothing is left of a first block that ends early.
    let early = (whole[..50].to_vec(), "ends early");
    let mut damaged = (whole.clone(), "is damaged");
    damaged.0[whole.len() / 2..][..100].fill(0xff);
    for (bytes, says) in [early, damaged] {
        fs::write(&short, bytes).unwrap();
        let mut command = pagedepot(&["replay"]);
        command.arg(&short);
        let line = refused(command);
        assert!(line.contains(says) && line.contains("; copy or record it again"), "{line}");
    }
    for (arguments, says) in [
        (&["replay"][..], "give the path of a recorded trace"),
        (&["bench", "hot", "--json"], "directory that you may write to"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(directory.path());
        let line = refused(command);
        assert!(line.contains("directory") && line.contains(says), "{line}");
    }
    let mut command = pagedepot(&["replay"]);
    command.arg(shipped()).arg("--zoneinfo").arg(directory.path());
    assert!(refused(command).contains("give the path of a recorded trace or zoneinfo"));
}

/// A copy that ended early: what was written before the end is replayed, and the report says so.
#[test]
fn what_can_be_read_of_a_file_cut_short_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let short = directory.path().join("short.zst");
    let whole = fs::read(shipped()).unwrap();
    fs::write(&short, &whole[..whole.len() - 100]).unwrap();
    let output = pagedepot(&["replay", "--quick"]).arg(&short).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(
        report.contains("the file is cut short after line ")
            && report.contains("lines unfinished, first")
    );
    assert!(report.contains(" 0 lost"), "{report}");
}

#[test]
fn names_that_are_not_text_get_one_line() {
    let name = OsStr::from_bytes(b"no\xffname");
    for (arguments, says) in [
        (&["bench"][..], "UTF-8"),
        (&["bench", "hot", "--design"], "UTF-8"),
        (&["replay"], "cannot open"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(name);
        let output = command.output().unwrap();
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn numbers_too_large_are_told_the_largest() {
    for (arguments, says) in [
        (&["bench", "hot", "--runs", "4294967295"][..], "at most 100000"),
        (&["bench", "hot", "--cpus", "99999999999"], "at most 4294967295"),
    ] {
        let line = refused(pagedepot(arguments));
        assert!(line.contains(says), "{line}");
    }
}

/// Checks that the figures say which part runs slower, or not at all, for lack of sequences.
#[test]
fn programs_without_restartable_sequences_are_told() {
    let without = |arguments: &[&str]| {
        let mut command = pagedepot(arguments);
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        command
    };
    let depot = ["bench", "hot", "--design", "depot", "--quick", "--runs", "1", "--cpus", "1"];
    let output = without(&depot).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("no restartable sequences: ") && text.contains("a lock per CPU"),
        "{text}"
    );
}

#[test]
fn traces_with_nothing_to_replay_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for event in [
        "mm_page_alloc: page=0x0 pfn=0 order=0 migratetype=1 gfp_flags=X",
        "mm_page_free: pfn=0x9 order=0",
    ] {
        fs::write(file.path(), format!(" a 1 [000] 1.0: kmem:{event}\n")).unwrap();
        let mut command = pagedepot(&["replay", "--quick"]);
        command.arg(file.path());
        assert!(refused(command).contains("nothing to replay"));
    }
}

/// A damaged time: centuries of a tick per second and CPU.
#[test]
fn traces_that_last_too_long_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let free = |seconds: u64| {
        format!(
            " a 1 [000] {seconds}.0: kmem:mm_page_alloc: pfn=0x9 order=0 migratetype=1 \
             gfp_flags=X\n"
        )
    };
    fs::write(file.path(), free(1) + &free(1 << 33)).unwrap();
    let mut command = pagedepot(&["replay", "--quick"]);
    command.arg(file.path());
    assert!(refused(command).contains("is a time damaged? give a shorter part of it"));
    let mut command = pagedepot(&["replay", "--quick", "-"]);
    command.stdin(File::open(file.path()).unwrap());
    assert!(refused(command).contains("standard input goes on for"));
}

/// Zoneinfo files that were cut, edited, or are of other machines.
#[test]
fn zoneinfos_that_cannot_be_are_refused() {
    let text = fs::read_to_string(shipped().with_file_name("build.zoneinfo.before.txt")).unwrap();
    let in_zone = text.find("start_pfn:").unwrap();
    let one_zone = in_zone + text[in_zone..].find('\n').unwrap();
    for (text, says) in [
        (text[..in_zone].to_owned(), "zone DMA lacks its last line, start_pfn"),
        (text.replace("count:    0", "count:    99999999"), "CPUs cache 199999998 of them"),
        (text.replace("start_pfn:", "unknown:"), "lacks its last line"),
        (text.replace("min      34", "min      18446744073709551615"), "is not a number of pages"),
        // Whole zones are missing.
        (text[..=one_zone].to_owned(), "has the zoneinfo all zones"),
        (text[..one_zone].to_owned(), "has no line end, so the rest may be missing"),
        (
            text.replace("pages free     3840", "pages free     5000"),
            "zone DMA has 3840 pages, and 5000 of them are free",
        ),
        (
            text.replace("     3840", "     4294967301")
                .replace("managed  3840", "managed  4294967301"),
            "zone 0 ends beyond frame 2^32",
        ),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut command = pagedepot(&["replay", "--quick", "--design", "spin", "--zoneinfo"]);
        let output = command.arg(file.path()).arg(shipped()).output().unwrap();
        let line = stderr(&output).lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn machines_that_no_replay_can_have_are_refused() {
    let text = fs::read_to_string(shipped().with_file_name("build.zoneinfo.before.txt")).unwrap();
    let zoneinfo = tempfile::NamedTempFile::new().unwrap();
    fs::write(zoneinfo.path(), text.replace("managed  1114112", "managed  4294967301")).unwrap();
    let mut command = pagedepot(&["replay", "--quick", "--design", "depot", "--zoneinfo"]);
    let output = command.arg(zoneinfo.path()).arg(shipped()).output().unwrap();
    let line = stderr(&output).lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("is a number of the zoneinfo damaged?"), "{line}");
}

/// A recording of a machine that is larger than this one, or of a process that may have little.
#[test]
fn machines_too_large_to_set_up_are_refused() {
    let zoneinfo = tempfile::NamedTempFile::new().unwrap();
    let text = fs::read_to_string(shipped().with_file_name("build.zoneinfo.before.txt")).unwrap();
    let large = text.replacen("  pages free     3840", "  pages free     1500000000", 1);
    let large = large.replacen("  managed  3840", "  managed  1500000000", 1);
    assert_ne!(large, text);
    fs::write(zoneinfo.path(), large).unwrap();
    for design in ["spin", "depot"] {
        // SAFETY: between fork and exec; sets a limit of the child.
        let limited = || unsafe {
            let limit = libc::rlimit { rlim_cur: 2 << 30, rlim_max: 2 << 30 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
            Ok(())
        };
        let mut command = pagedepot(&["replay", "--quick", "--design", design, "--zoneinfo"]);
        command.arg(zoneinfo.path()).arg(shipped());
        // SAFETY: as above.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, limited) };
        let output = command.output().unwrap();
        let line = stderr(&output).lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.contains("ulimit -v") && line.contains("vm.overcommit_memory"), "{line}");
    }
}

/// Names of processes, and traces, may come from anywhere.
#[test]
fn nothing_in_a_file_moves_the_cursor() {
    // A control sequence, by its one-byte name too; a bell; a mark that turns the text around.
    let evil = "\u{1b}[2J\u{9b}31m\u{7}\u{202e}x";
    let obeyed = |text: &str| text.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']);
    let directory = tempfile::tempdir().unwrap();
    // Also the file's own name.
    let trace = directory.path().join(format!("{evil}.txt"));
    let event = |comm: &str, n: u32| {
        format!(
            "{comm} 1 [000] 1.{n:06}: kmem:mm_page_alloc: page=0x1 pfn={n} order=0 migratetype=1 \
             gfp_flags=X\n"
        )
    };
    fs::write(&trace, format!("{}{}{evil}\n", event(evil, 1), event(evil, 2))).unwrap();
    let output = pagedepot(&["replay", "--quick"]).arg(&trace).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(said.contains("most events from: ?[2J?31m??x 2"), "{said}");
    assert!(!obeyed(&said) && !obeyed(stderr(&output)), "{said:?}");

    let gone = directory.path().join(format!("{evil}-gone"));
    for arguments in [&["replay"][..], &["bench", "hot", "--json"]] {
        let mut command = pagedepot(arguments);
        command.arg(gone.join("x"));
        let line = refused(command);
        assert!(!obeyed(&line) && line.contains("?[2J"), "{line:?}");
    }
}

/// A small file that expands to a large one does so up to a limit, which can be raised.
#[test]
fn traces_that_expand_too_far_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large.zst");
    let mib = bomb();
    fs::write(&large, mib.repeat(300)).unwrap();
    assert!(mib.len() * 300 < 2 << 20, "{} bytes are no bomb", mib.len());
    for (arguments, says) in [
        (&["replay"][..], "expand to more than 256 MiB"),
        (&["replay", "--expand-limit", "1"], "expand to more than 1 MiB"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(&large);
        let line = refused(command);
        assert!(line.contains(says) && line.contains("--expand-limit MIB"), "{line}");
    }
    // Below a limit nothing changes.
    let output =
        pagedepot(&["replay", "--quick", "--expand-limit", "64"]).arg(shipped()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Devices and pipes without an end, where a file is expected.
#[test]
fn files_without_an_end_are_refused() {
    let shipped = shipped();
    for (arguments, says) in [
        (&["replay", "/dev/zero"][..], "is a binary file; a trace is needed here"),
        (&["replay", shipped.to_str().unwrap(), "--zoneinfo", "/dev/zero"], "more than 64 MiB"),
    ] {
        let line = refused(pagedepot(arguments));
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
}

/// A limit on the size of files is an error like a full disk, not the end of the process.
#[test]
fn files_that_may_not_grow_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = pagedepot(&HOT);
    command.arg("--json").arg(directory.path().join("x.json"));
    // SAFETY: between fork and exec; sets a limit of the child.
    let limited = || unsafe {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        Ok(())
    };
    // SAFETY: as above.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, limited) };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains("floor-tls"), "the table is shown");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}
