//! Sandboxes that refuse a system call, and limits on threads: the command says what is refused and
//! what to do, and never shows figures that would mean something else there.
//!
//! Filters are installed between fork and exec, so that they hold for the command from its start.

use std::os::unix::process::CommandExt as _;

use serde_json::Value;

use crate::sandboxes::{
    HOT, failed, has_sequences, has_two_cpus, pagedepot, refuse, text, unwrapped, without,
};
use crate::scripts::check_all;

#[test]
fn benches_that_cannot_pin_are_refused() {
    if !has_two_cpus() {
        return;
    }
    for arguments in [&HOT[..], &["bench", "drain", "--quick", "--runs", "1"]] {
        let output = without(libc::SYS_sched_setaffinity, libc::EPERM, arguments);
        let line = failed(&output);
        assert!(line.contains("cannot keep a thread on CPU") && line.contains("seccomp"), "{line}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
}

/// Leaves this thread one CPU.
fn stay_on_one_cpu() {
    // SAFETY: plain arrays of bits.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        let first =
            (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// The machine lacks a CPU, and no option helps.
#[test]
fn workloads_of_two_cpus_say_that_there_is_one() {
    for arguments in [&["bench", "drain"][..], &["bench", "drain", "--cpus", "1"]] {
        let mut command = pagedepot(arguments);
        let to_one_cpu = || {
            stay_on_one_cpu();
            Ok(())
        };
        // SAFETY: between fork and exec; system calls over the child's own stack.
        unsafe { command.pre_exec(to_one_cpu) };
        let output = command.output().unwrap();
        let line = failed(&output);
        assert!(line.contains("this process may use one") && !line.contains("--cpus"), "{line}");
    }
}

/// There is nowhere else to go.
#[test]
fn a_process_of_one_cpu_needs_no_pinning() {
    let mut command = pagedepot(&HOT);
    let to_one_cpu = || {
        stay_on_one_cpu();
        refuse(libc::SYS_sched_setaffinity, libc::EPERM)
    };
    // SAFETY: between fork and exec; system calls over the child's own stack.
    unsafe { command.pre_exec(to_one_cpu) };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("floor-tls"));
}

#[test]
fn the_tour_goes_on_without_benches() {
    if !has_two_cpus() {
        return;
    }
    let output = without(libc::SYS_sched_setaffinity, libc::EPERM, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let last: Vec<_> = stdout.lines().rev().take(22).collect();
    assert!(last.contains(&"In short"), "a terminal of 24 lines shows what came out: {stdout}");
    let text = unwrapped(stdout);
    assert!(
        text.contains("An event of the recording costs")
            && text.contains("benches are left out: cannot keep"),
        "{text}"
    );
}

/// Full drains that cannot reach fronts would pass for cheap ones. Handovers (`full` 2) need no
/// fence.
#[test]
fn full_drains_without_fences_are_not_measured() {
    if !has_two_cpus() || !has_sequences() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let drain = ["bench", "drain", "--quick", "--runs", "1", "--design", "depot", "--json"];
    let cases = [(libc::EPERM, "a filter refuses membarrier"), (libc::ENOSYS, "hides it")];
    check_all(cases, |(errno, says)| {
        let json = directory.path().join(format!("{errno}.json"));
        let arguments: Vec<_> = drain.into_iter().chain([json.to_str().unwrap()]).collect();
        let output = without(libc::SYS_membarrier, errno, &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = unwrapped(text(&output.stdout));
        assert!(said.contains("sequences cannot be fenced: ") && said.contains(says), "{said}");
        assert!(said.contains("are not measured"), "{said}");
        let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let rows = document["results"].as_array().unwrap();
        let drained = rows.iter().filter(|row| row["metric"] == "drain_ns");
        assert!(
            drained.clone().count() > 0 && drained.clone().all(|row| row["params"]["full"] != 1)
        );
    });
}

#[test]
fn who_keeps_sequences_away_is_named() {
    if !has_sequences() {
        return;
    }
    let depot = ["bench", "hot", "--design", "depot", "--quick", "--runs", "1", "--cpus", "1"];
    let cases =
        [(libc::EPERM, "a filter refuses the system call rseq"), (libc::ENOSYS, "hides it")];
    check_all(cases, |(errno, says)| {
        let output = without(libc::SYS_rseq, errno, &depot);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(said.contains("no restartable sequences: ") && said.contains(says), "{said}");
        assert!(!said.contains("GLIBC_TUNABLES"), "{said}");
    });
    let output = pagedepot(&depot).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").output().unwrap();
    assert!(
        text(&output.stdout).contains("GLIBC_TUNABLES turns them off"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn affinity_that_cannot_be_asked_for_is_an_error() {
    let output = without(libc::SYS_sched_getaffinity, libc::EPERM, &HOT);
    assert!(failed(&output).contains("allow sched_getaffinity"), "{}", text(&output.stderr));
}
