//! Sandboxes that refuse a system call, and limits on threads: the command says what is refused and
//! what to do, and never shows figures that would mean something else there.
//!
//! Filters are installed between fork and exec, so that they hold for the command from its start.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

const HOT: [&str; 9] =
    ["bench", "hot", "--design", "floor-tls", "--quick", "--runs", "1", "--cpus", "1"];

fn pagedepot(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("pagedepot"));
    command.args(arguments).env_remove("GLIBC_TUNABLES");
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Makes a system call fail, as a sandbox does. Allocates nothing.
fn refuse(call: libc::c_long, errno: i32) -> io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let op =
        |code: u32, k: u32, skip: u8| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k };
    let mut filter = [
        // The first field of `struct seccomp_data`: the number.
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, call as u32, 1),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this process, of as many instructions as said.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn without(call: libc::c_long, errno: i32, arguments: &[&str]) -> Output {
    let mut command = pagedepot(arguments);
    // SAFETY: between fork and exec; two system calls over the child's own stack.
    unsafe { command.pre_exec(move || refuse(call, errno)) };
    command.output().unwrap()
}

/// The one line that says what the machine refuses.
fn failed(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    let line = stderr.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(line.starts_with("pagedepot: ") && !stderr.contains("panicked"), "{stderr}");
    line
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().unwrap().get() >= 2
}

fn has_sequences() -> bool {
    let output = pagedepot(&HOT).output().unwrap();
    !text(&output.stdout).contains("no restartable sequences")
}

#[test]
fn benches_that_cannot_pin_are_refused() {
    if !has_two_cpus() {
        return;
    }
    for arguments in [
        &HOT[..],
        &["bench", "drain", "--quick", "--runs", "1"],
        &["bench", "touch", "--quick", "--runs", "1", "--drains", "100"],
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

/// There is nowhere else to go.
#[test]
fn a_process_of_one_cpu_needs_no_pinning() {
    let mut command = pagedepot(&HOT);
    let to_one_cpu = || {
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
        refuse(libc::SYS_sched_setaffinity, libc::EPERM)
    };
    // SAFETY: between fork and exec; system calls over the child's own stack.
    unsafe { command.pre_exec(to_one_cpu) };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("floor-tls"));
}

/// The text as one line: where lines wrap depends on the width.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
    let json = directory.path().join("drain.json");
    let drain = ["bench", "drain", "--quick", "--runs", "1", "--design", "depot", "--json"];
    for (errno, says) in [(libc::EPERM, "a filter refuses membarrier"), (libc::ENOSYS, "hides it")]
    {
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
    }
    // Its owners would take locks, and be measured as what they are not.
    let output = without(libc::SYS_membarrier, libc::EPERM, &["bench", "hot", "--design", "local"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("needs to fence sequences"), "{}", text(&output.stderr));
}

#[test]
fn who_keeps_sequences_away_is_named() {
    if !has_sequences() {
        return;
    }
    let depot = ["bench", "hot", "--design", "depot", "--quick", "--runs", "1", "--cpus", "1"];
    for (errno, says) in
        [(libc::EPERM, "a filter refuses the system call rseq"), (libc::ENOSYS, "hides it")]
    {
        let output = without(libc::SYS_rseq, errno, &depot);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(said.contains("no restartable sequences: ") && said.contains(says), "{said}");
        assert!(!said.contains("GLIBC_TUNABLES"), "{said}");
    }
    let output = pagedepot(&depot).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").output().unwrap();
    assert!(
        text(&output.stdout).contains("GLIBC_TUNABLES turns them off"),
        "{}",
        text(&output.stdout)
    );
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

#[test]
fn affinity_that_cannot_be_asked_for_is_an_error() {
    let output = without(libc::SYS_sched_getaffinity, libc::EPERM, &HOT);
    assert!(failed(&output).contains("allow sched_getaffinity"), "{}", text(&output.stderr));
}
