//! Sandboxes that refuse a system call, and limits on threads: the command says what is refused and
//! what to do, and never shows figures that would mean something else there.
//!
//! Filters are installed between fork and exec, so that they hold for the command from its start.

#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;
#[path = "../../../crates/cli/tests/support/confined.rs"]
mod support;

use support::{failed, has_sequences, has_two_cpus, text, without};

const COMMAND: &str = env!("CARGO_BIN_EXE_pagedepot-lab");

#[test]
fn benches_that_cannot_pin_are_refused() {
    if !has_two_cpus() {
        return;
    }
    for arguments in [
        &["bench", "touch", "--quick", "--runs", "1", "--drains", "100"][..],
        &["bench", "replay-build", "--quick", "--runs", "1"],
        &["compare", "--workload", "hot", "--quick", "--runs", "1"],
        &["vmalloc", "--quick", "--runs", "1", "--test-loop-count", "1"],
        &["soak", "--minutes", "0.01"],
    ] {
        let output = without(libc::SYS_sched_setaffinity, libc::EPERM, arguments);
        let line = failed(&output);
        assert!(line.contains("cannot keep a thread on CPU") && line.contains("seccomp"), "{line}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
}

/// Owners would take locks without fences, and be measured as what they are not.
#[test]
fn designs_that_need_fences_are_refused_without() {
    if !has_sequences() {
        return;
    }
    let output = without(libc::SYS_membarrier, libc::EPERM, &["bench", "hot", "--design", "local"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("needs to fence sequences"), "{}", text(&output.stderr));
}

/// Checks that the part which refuses page faults is named, with a remedy; and so is a workload
/// that needs none.
#[test]
fn faults_that_cannot_be_served_are_refused() {
    let pft = ["bench", "pft", "--quick", "--runs", "1", "--design", "depot"];
    for (errno, says) in [
        (libc::EPERM, "allow userfaultfd in the sandbox's seccomp profile"),
        (libc::ENOSYS, "CONFIG_USERFAULTFD"),
        (libc::EINVAL, "use Linux 6.8 or newer"),
    ] {
        let output = without(libc::SYS_userfaultfd, errno, &pft);
        let line = failed(&output);
        assert!(line.contains(says) && line.contains("bench touch"), "{line}");
    }
}
