//! Without glibc's registration the whole depot takes locks, and works.

mod common;

use std::process::Command;
use std::time::Duration;

use pagedepot_linux::{Depot, Fronts};

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
    let mut depot = Depot::builder(64 << 20).build().unwrap();
    assert_eq!(depot.fronts(), Fronts::LocksWithoutRseq);
    assert!(depot.fronts().to_string().contains("glibc.pthread.rseq"), "{}", depot.fronts());
    common::hammer(&mut depot, Duration::from_millis(700));
    println!("hammered behind locks");
}

/// On the platforms that have them, sequences are what one gets.
#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn enabled_by_default() {
    if std::env::var_os(CHILD).is_none() && std::env::var_os("GLIBC_TUNABLES").is_none() {
        assert!(Depot::new(1 << 20).unwrap().fronts().are_sequences());
    }
}
