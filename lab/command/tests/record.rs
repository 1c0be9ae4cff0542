//! Recording. What needs permissions is skipped where they are missing, and says so.

#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

fn pagedepot() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line that refuses.
fn refused(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    stderr
}

fn skipped(why: &str) {
    skip::skip(format_args!("this process may not record: {}", why.trim_end()));
}

/// Whether it was refused for lack of permissions, and for nothing else.
fn may_not_record(output: &Output) -> bool {
    output.status.code() == Some(2) && text(&output.stderr).contains("cannot record; ")
}

/// Runs a command in a mount namespace of its own, after `prepare`, which may mount there; `None`
/// where that is not allowed.
fn in_own_mounts(prepare: &str, arguments: &[&str]) -> Option<Command> {
    let test = Command::new("unshare").args(["-m", "true"]).output();
    if !test.is_ok_and(|output| output.status.success()) {
        skipped("no mount namespace can be had");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]);
    // A shell that started the tests in the background ignores signals that they send, and so does
    // `nohup`.
    // SAFETY: `signal` is all that the child calls, and may be called there.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command.arg(env!("CARGO_BIN_EXE_pagedepot-lab")).args(arguments);
    Some(command)
}

/// `record` as it is run where tracefs may not be mounted, with tracefs.
const WITH_TRACEFS: &str =
    "{ test -d /sys/kernel/tracing/events || mount -t tracefs none /sys/kernel/tracing; }";

/// Trace instances of the process of that number.
fn instances_of(id: u32) -> usize {
    let list = format!("{WITH_TRACEFS} && ls /sys/kernel/tracing/instances");
    let output = Command::new("unshare").args(["-m", "sh", "-c", &list]).output().unwrap();
    // Older versions knew no more than the number.
    let (name, prefix) = (format!("pagedepot-{id}"), format!("pagedepot-{id}-"));
    text(&output.stdout).lines().filter(|line| *line == name || line.starts_with(&prefix)).count()
}

/// The names of what lies in a directory.
fn files_in(directory: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    std::fs::read_dir(directory).unwrap().map(name).collect()
}

/// The names of the files of a whole recording. What is free is told where this process may read
/// it: `pagetypeinfo` is for root, and kernels without migratetypes have none.
fn files_of(recording: &str) -> BTreeSet<String> {
    let readable = |name: &str| std::fs::read_to_string(format!("/proc/{name}")).is_ok();
    let states = ["buddyinfo", "pagetypeinfo"].into_iter().filter(|name| readable(name));
    let states = ["zoneinfo"].into_iter().chain(states);
    let texts = states.flat_map(|name| [format!("{name}.before.txt"), format!("{name}.after.txt")]);
    let always = ["perf.txt.zst", "machine.json"].map(str::to_owned);
    texts.chain(always).map(|ending| format!("{recording}.{ending}")).collect()
}

/// Records a command that allocates a few thousand pages, and replays it; `None` where this process
/// may not record.
fn record(with: &str, directory: &Path) -> Option<()> {
    let name = directory.join("sort run");
    let command =
        ["sh", "-c", "head -c 16000000 /dev/zero | sort | wc -c; echo to stderr >&2; exit 3"];
    let arguments = ["record", "--with", with, "-o", name.to_str()?, "--"];
    let arguments: Vec<_> = arguments.into_iter().chain(command).collect();
    let output = in_own_mounts(WITH_TRACEFS, &arguments)?.output().unwrap();
    if may_not_record(&output) {
        skipped(refused(&output));
        return None;
    }
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "to stderr\n", "what the command says there is its user's");
    assert!(said.starts_with("16000001\n") || said.starts_with("16000000\n"), "{said}");
    assert!(said.contains("the command exited with 3") && said.contains(with), "{said}");
    let file = |ending: &str| directory.join(format!("sort run.{ending}"));
    let machine: Value =
        serde_json::from_slice(&std::fs::read(file("machine.json")).unwrap()).unwrap();
    assert_eq!((&machine["status"], &machine["command"][0]), (&3.into(), &"sh".into()));
    assert!(machine["machine"]["kernel"].is_string() && machine["lost_samples"].is_u64());
    assert_eq!(files_in(directory), files_of("sort run"), "nothing else is left behind");

    let json = directory.join("replay.json");
    let trace = file("perf.txt.zst");
    let mut replay = pagedepot();
    replay
        .args(["replay", "--quick", "--design", "spin", "--design", "kernel", "--json"])
        .arg(&json);
    let output = replay.arg(trace).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let rows = document["results"].as_array().unwrap();
    let of = |design: &str, metric: &str| -> f64 {
        let its = rows.iter().filter(|row| row["design"] == design && row["metric"] == metric);
        its.map(|row| row["median"].as_f64().unwrap()).sum()
    };
    assert!(of("spin", "allocs") > 1000.0 && of("spin", "lost_frames") == 0.0);
    assert!(of("kernel", "cached_pages") > 0.0, "zoneinfo from after the command");
    assert!(of("spin", "whole_pageblocks") > 0.0);
    if file("buddyinfo.after.txt").exists() {
        assert!(of("kernel", "whole_pageblocks") > 0.0, "buddyinfo from after the command");
    }
    Some(())
}

#[test]
fn perf_records_what_replays() {
    record("perf", tempfile::tempdir().unwrap().path());
}

#[test]
fn tracefs_records_what_replays() {
    record("tracefs", tempfile::tempdir().unwrap().path());
}

#[test]
fn what_is_missing_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("x");
    let mut record = pagedepot();
    record.env("PATH", "/nonexistent").args(["record", "--with", "perf", "-o"]).arg(&name);
    let output = record.args(["--", "true"]).output().unwrap();
    let line = refused(&output);
    assert!(line.contains("perf: not installed"), "{line}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn places_that_cannot_be_written_are_refused_before_anything_runs() {
    let output =
        pagedepot().args(["record", "-o", "/no/such/place/x", "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("cannot write /no/such/place/x."));
    let directory = tempfile::tempdir().unwrap();
    let name = format!("{}/", directory.path().display());
    let output = pagedepot().args(["record", "-o", &name, "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("give -o a name in it"));
    std::fs::create_dir(directory.path().join("x.machine.json")).unwrap();
    let output =
        pagedepot().args(["record", "-o", &format!("{name}x"), "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("x.machine.json is a directory"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
}

/// Ctrl-C ends the command; what was recorded until then is kept.
#[test]
fn interrupted_commands_are_recorded() {
    for with in ["tracefs", "perf"] {
        let directory = tempfile::tempdir().unwrap();
        let (name, ready) = (directory.path().join("x"), directory.path().join("ready"));
        let script =
            format!("head -c 16000000 /dev/zero | sort | wc -c; > '{}'; sleep 60", ready.display());
        let arguments =
            ["record", "--with", with, "-o", name.to_str().unwrap(), "--", "sh", "-c", &script];
        let Some(mut record) = in_own_mounts(WITH_TRACEFS, &arguments) else { return };
        record.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = record.spawn().unwrap();
        while !ready.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if child.try_wait().unwrap().is_none() {
            kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if may_not_record(&output) {
            skipped(refused(&output));
            continue;
        }
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(130), "{with}: {said}{}", text(&output.stderr));
        assert!(said.contains("the command was ended by signal 2"), "{with}: {said}");
        std::fs::remove_file(&ready).unwrap();
        assert_eq!(files_in(directory.path()), files_of("x"), "{with}: nothing else is left");
    }
}

#[test]
fn commands_that_do_not_exist_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = directory.path().join("x.perf.txt.zst");
    std::fs::write(&earlier, "an earlier recording").unwrap();
    let mut record = pagedepot();
    record
        .args(["record", "--force", "-o"])
        .arg(directory.path().join("x"))
        .args(["--", "/no/such/command"]);
    let output = record.output().unwrap();
    let line = refused(&output);
    if line.contains("cannot record") {
        skipped(line);
        return;
    }
    assert!(line.contains("cannot run /no/such/command"), "{line}");
    assert_eq!(std::fs::read(earlier).unwrap(), b"an earlier recording");
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        1,
        "nothing else is left behind"
    );
}

/// A signal to this process alone, as a service manager sends it, or `kill`: the command gets it.
#[test]
fn signals_end_the_command_and_keep_the_recording() {
    for with in ["tracefs", "perf"] {
        for (signal, number) in [(Signal::HUP, 1), (Signal::QUIT, 3), (Signal::TERM, 15)] {
            let directory = tempfile::tempdir().unwrap();
            let (name, ready) = (directory.path().join("x"), directory.path().join("ready"));
            // Not by the signal itself: a shell that waits for a child would wait on.
            let script = format!(
                "head -c 16000000 /dev/zero | sort | wc -c; > '{}'; exec sleep 60",
                ready.display()
            );
            let arguments =
                ["record", "--with", with, "-o", name.to_str().unwrap(), "--", "sh", "-c", &script];
            let Some(mut record) = in_own_mounts(WITH_TRACEFS, &arguments) else { return };
            record.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = record.spawn().unwrap();
            let id = child.id();
            while !ready.exists() && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(10));
            }
            if child.try_wait().unwrap().is_none() {
                kill_process(Pid::from_child(&child), signal).unwrap();
            }
            let output = child.wait_with_output().unwrap();
            if may_not_record(&output) {
                skipped(refused(&output));
                break;
            }
            let said = text(&output.stdout);
            assert_eq!(
                output.status.code(),
                Some(128 + number),
                "{with}: {said}{}",
                text(&output.stderr)
            );
            assert!(
                said.contains(&format!("the command was ended by signal {number}")),
                "{with}: {said}"
            );
            std::fs::remove_file(&ready).unwrap();
            assert_eq!(files_in(directory.path()), files_of("x"), "{with}: nothing else is left");
            assert_eq!(instances_of(id), 0, "{with}: nothing traces on");
        }
    }
}

/// Checks that an early signal, whenever it comes, either keeps the command from running or ends
/// it.
#[test]
fn an_early_signal_is_not_lost() {
    for with in ["tracefs", "perf"] {
        for delay_ms in [0, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 250] {
            let directory = tempfile::tempdir().unwrap();
            let name = directory.path().join("x");
            let arguments =
                ["record", "--with", with, "-o", name.to_str().unwrap(), "--", "sleep", "20"];
            let Some(mut record) = in_own_mounts(WITH_TRACEFS, &arguments) else { return };
            record.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = record.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(delay_ms));
            if child.try_wait().unwrap().is_none() {
                let group = Pid::from_child(&child);
                kill_process_group(group, Signal::INT).unwrap();
            }
            let output = child.wait_with_output().unwrap();
            if may_not_record(&output) {
                skipped(refused(&output));
                break;
            }
            // By the signal itself before this command took it up; later as shells tell of it. Were
            // it lost, the command would end well, after 20 s.
            let by = output.status.signal().or(output.status.code().map(|code| code - 128));
            assert_eq!(by, Some(2), "{with}, {delay_ms} ms: {}", text(&output.stderr));
            let files = files_in(directory.path());
            let whole = files.is_empty() || files == files_of("x");
            assert!(whole, "{with}, {delay_ms} ms: {files:?}");
        }
    }
}

#[test]
fn instances_of_killed_recorders_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let (name, ready) = (directory.path().join("x"), directory.path().join("ready"));
    let script = format!("> '{}'; exec sleep 60", ready.display());
    let arguments =
        ["record", "--with", "tracefs", "-o", name.to_str().unwrap(), "--", "sh", "-c", &script];
    let Some(mut record) = in_own_mounts(WITH_TRACEFS, &arguments) else { return };
    let mut child = record.process_group(0).stderr(Stdio::null()).spawn().unwrap();
    while !ready.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    if child.try_wait().unwrap().is_some() {
        skipped("tracefs cannot be used");
        return;
    }
    let id = child.id();
    let left = || instances_of(id);
    // One that records is left alone, also by others that begin.
    let other = directory.path().join("y");
    let arguments = ["record", "--with", "tracefs", "-o", other.to_str().unwrap(), "--", "true"];
    assert!(in_own_mounts(WITH_TRACEFS, &arguments).unwrap().output().unwrap().status.success());
    assert_eq!(left(), 1);
    kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(left(), 1, "nothing could remove it");
    let arguments =
        ["record", "--force", "--with", "tracefs", "-o", other.to_str().unwrap(), "--", "true"];
    assert!(in_own_mounts(WITH_TRACEFS, &arguments).unwrap().output().unwrap().status.success());
    assert_eq!(left(), 0);
}

#[test]
fn earlier_recordings_are_replaced_only_by_force() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("x");
    for ending in ["perf.txt.zst", "zoneinfo.before.txt", "zoneinfo.after.txt", "machine.json"] {
        let earlier = directory.path().join(format!("x.{ending}"));
        std::fs::write(&earlier, "earlier").unwrap();
        let output =
            pagedepot().args(["record", "-o"]).arg(&name).args(["--", "true"]).output().unwrap();
        let line = refused(&output);
        assert!(line.contains(ending) && line.contains("--force"), "{line}");
        assert_eq!(std::fs::read(&earlier).unwrap(), b"earlier");
        std::fs::remove_file(earlier).unwrap();
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
    let output = pagedepot().args(["record", "-o", "", "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("a value is required for '--output <NAME>'"));
}

#[test]
fn a_full_disk_is_named() {
    let arguments = |with| ["record", "--with", with, "-o", "/mnt/x", "--", "true"];
    // Even the first look at the machine takes more.
    let prepare = format!("{WITH_TRACEFS} && mount -t tmpfs -o size=8k none /mnt");
    for with in ["perf", "tracefs"] {
        let Some(mut command) = in_own_mounts(&prepare, &arguments(with)) else { return };
        let output = command.output().unwrap();
        if text(&output.stderr).contains("cannot record") {
            skipped(refused(&output));
            continue;
        }
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{with}: {line}");
        assert!(line.to_lowercase().contains("no space left"), "{with}: {line}");
        assert!(line.contains("/mnt/x"), "{with}: {line}");
    }
}

#[test]
fn an_unmounted_tracefs_is_said_to_be_unmounted() {
    let prepare = "{ ! mountpoint -q /sys/kernel/tracing || umount /sys/kernel/tracing; } && \
                   { ! mountpoint -q /sys/kernel/debug || umount -R /sys/kernel/debug; }";
    for with in ["perf", "tracefs"] {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("x");
        let arguments = ["record", "--with", with, "-o", name.to_str().unwrap(), "--", "true"];
        let Some(mut command) = in_own_mounts(prepare, &arguments) else { return };
        let output = command.output().unwrap();
        let line = refused(&output);
        if line.contains("perf: not installed") {
            skipped(line);
            continue;
        }
        assert!(line.contains("tracefs is not mounted: mount -t tracefs"), "{line}");
    }
}

/// Arguments are bytes, and so are names.
#[test]
fn commands_and_names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join(std::ffi::OsStr::from_bytes(b"x\xff"));
    let Some(mut record) = in_own_mounts(WITH_TRACEFS, &["record", "--with", "tracefs", "-o"])
    else {
        return;
    };
    record.arg(&name).args(["--", "printf", "%s"]).arg(std::ffi::OsStr::from_bytes(b"\xff"));
    let output = record.output().unwrap();
    if may_not_record(&output) {
        skipped(refused(&output));
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output.stdout[0], 0xff, "what the command says is its own");
    // The trace, the machine, and two pairs of files; root can read pagetypeinfo, too.
    let count = std::fs::read_dir(directory.path()).unwrap().count();
    assert!([6, 8].contains(&count), "{count} files");
}
