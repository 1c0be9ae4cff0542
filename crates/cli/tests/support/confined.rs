//! Running the command in sandboxes that refuse a system call. The file that includes this one
//! names the program: `COMMAND`.

#![allow(dead_code, reason = "each file that includes this one uses a part of it")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use pagedepot_rseq::RseqMissing;

use super::COMMAND;
use crate::skip::skip;

/// The shortest measurement.
pub const HOT: [&str; 9] =
    ["bench", "hot", "--design", "floor-tls", "--quick", "--runs", "1", "--cpus", "1"];

pub fn pagedepot(arguments: &[&str]) -> Command {
    let mut command = Command::new(COMMAND);
    command.args(arguments).env_remove("GLIBC_TUNABLES");
    command
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Makes a system call fail, as a sandbox does. Allocates nothing.
pub fn refuse(call: libc::c_long, errno: i32) -> io::Result<()> {
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

pub fn without(call: libc::c_long, errno: i32, arguments: &[&str]) -> Output {
    let mut command = pagedepot(arguments);
    // SAFETY: between fork and exec; two system calls over the child's own stack.
    unsafe { command.pre_exec(move || refuse(call, errno)) };
    command.output().unwrap()
}

/// The one line that says what the machine refuses.
pub fn failed(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    let line = stderr.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(line.starts_with("pagedepot") && !stderr.contains("panicked"), "{stderr}");
    line
}

/// Whether there are two CPUs; otherwise a part of the test is skipped, which it says.
pub fn has_two_cpus() -> bool {
    let has_two = std::thread::available_parallelism().unwrap().get() >= 2;
    if !has_two {
        skip("there is one CPU");
    }
    has_two
}

/// Whether there are restartable sequences; otherwise the test is skipped, which it says.
pub fn has_sequences() -> bool {
    RseqMissing::find().inspect(|why| skip(why)).is_none()
}

/// The text as one line: where lines wrap depends on the width.
pub fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
