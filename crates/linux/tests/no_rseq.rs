//! A depot without glibc's registration: all fronts take locks, and it works.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use common::mib;
use common::skip::skip;
use pagedepot_linux::stats::Fronts;
use pagedepot_linux::{Depot, RseqMissing};

const CHILD: &str = "PAGEDEPOT_TEST_WITHOUT_RSEQ";

/// The test itself: runs this program again, with the registration disabled.
#[test]
fn disabled_by_tunable() {
    if std::env::var_os(CHILD).is_some() {
        return without_rseq();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disabled_by_tunable", "--nocapture"])
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("hammered behind locks"), "{text}");
}

fn without_rseq() {
    let depot = Depot::builder(64 * mib()).build().unwrap();
    assert_eq!(depot.fronts(), Fronts::LocksWithoutRseq);
    assert!(depot.fronts().to_string().contains("glibc.pthread.rseq=0"), "{}", depot.fronts());
    common::hammer(&depot, Duration::from_millis(700));
    println!("hammered behind locks");
}

/// A depot that has no sequences for a reason that holds no more, or elsewhere, says so.
#[test]
fn a_reason_that_is_gone_is_named() {
    if RseqMissing::find().is_some() {
        return skip("no rseq registration");
    }
    let text = Fronts::LocksWithoutRseq.to_string();
    assert!(text.contains("where this depot was made"), "{text}");
}

/// The reason given is a sandbox that refuses or hides the system call, and not the tunables.
#[test]
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu"))]
fn disabled_by_a_filter() {
    if let Some(errno) = std::env::var_os(CHILD) {
        let errno = errno.to_str().unwrap().parse().unwrap();
        let depot = Depot::builder(64 * mib()).build().unwrap();
        assert_eq!(depot.fronts(), Fronts::LocksWithoutRseq);
        let (why, says) = match errno {
            libc::ENOSYS => (RseqMissing::Kernel, "CONFIG_RSEQ"),
            errno => (RseqMissing::Refused(errno), "seccomp"),
        };
        assert_eq!(RseqMissing::find(), Some(why));
        let text = depot.fronts().to_string();
        assert!(text.contains(says) && !text.contains("GLIBC_TUNABLES"), "{text}");
        return;
    }
    for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "disabled_by_a_filter"]).env_remove("GLIBC_TUNABLES");
        command.env(CHILD, errno.to_string());
        // SAFETY: between fork and exec; two system calls over the child's own stack.
        unsafe { command.pre_exec(move || common::refuse_with(libc::SYS_rseq, errno)) };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Platforms that have sequences use them.
#[test]
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu"))]
fn enabled_by_default() {
    if std::env::var_os(CHILD).is_none() && std::env::var_os("GLIBC_TUNABLES").is_none() {
        assert!(Depot::new(mib()).unwrap().fronts().are_sequences());
    }
}
