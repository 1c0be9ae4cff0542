//! The command in a terminal of its own. The file that includes this one names the program:
//! `COMMAND`.

#![allow(dead_code, reason = "each file that includes this one uses a part of it")]

use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZero;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use super::COMMAND;

/// Rows and columns of a terminal.
pub type Size = (u16, u16);

/// The near end of a terminal: what the command writes is read here, and keys are written.
pub struct Pty(File);

impl Pty {
    /// A terminal of this size in which the command runs.
    pub fn start(arguments: &[&str], size: Size, variables: &[(&str, &str)]) -> (Pty, Child) {
        let (near, far) = pair(size);
        let end = || far.try_clone().unwrap();
        let mut command = Command::new(COMMAND);
        command.args(arguments).env("TERM", "xterm").env_remove("NO_COLOR");
        command.envs(variables.iter().copied()).stdin(end()).stdout(end()).stderr(end());
        // SAFETY: between fork and exec; system calls alone.
        unsafe { command.pre_exec(own_terminal) };
        (Pty(File::from(near)), command.spawn().unwrap())
    }

    /// A second handle, to write keys to.
    pub fn keys(&self) -> File {
        self.0.try_clone().unwrap()
    }

    /// Hands on what the command writes, until it has ended.
    pub fn read(mut self, mut seen: impl FnMut(&[u8])) {
        let mut part = [0; 4096];
        // The end of a terminal is an error of reading (EIO).
        while let Ok(n @ 1..) = self.0.read(&mut part) {
            seen(&part[..n]);
        }
    }
}

/// The two ends of a terminal.
fn pair((rows, cols): Size) -> (OwnedFd, OwnedFd) {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut near, mut far) = (-1, -1);
    let nothing = std::ptr::null_mut();
    // SAFETY: two integers and a size, which the call only reads.
    let opened = unsafe { libc::openpty(&mut near, &mut far, nothing, nothing.cast(), &size) };
    assert_eq!(opened, 0, "{}", io::Error::last_os_error());
    // SAFETY: opened above, and owned by nothing else.
    let ends = unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
    for end in [&ends.0, &ends.1] {
        // SAFETY: a flag of a descriptor that is open; the child has copies.
        unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    ends
}

/// Makes the terminal at stdin the child's own, so that it turns Ctrl-C into a signal, and has the
/// child receive that also where these tests run in the background, with signals ignored.
fn own_terminal() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: the default action is no function.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: system calls without pointers.
    let owned = unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
    if owned { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An emulation of a terminal that shows what was written to it.
pub fn screen((rows, cols): Size) -> vt100::Parser {
    vt100::Parser::new(NonZero::new(rows).unwrap(), NonZero::new(cols).unwrap(), 0)
}

/// The screen and what scrolled off it, line by line, with the raw bytes.
pub struct Seen {
    pub lines: Vec<String>,
    pub raw: String,
    pub exit_code: i32,
}

/// Runs the command to its end in a terminal of this size.
pub fn run(arguments: &[&str], (rows, cols): Size, variables: &[(&str, &str)]) -> Seen {
    let (terminal, mut child) = Pty::start(arguments, (rows, cols), variables);
    let mut bytes = Vec::new();
    terminal.read(|part| bytes.extend_from_slice(part));
    let exit_code = child.wait().unwrap().code().unwrap();
    // Far more rows than the terminal has, so that nothing scrolls off; its own columns.
    let mut parser = screen((2000, cols));
    parser.process(&bytes);
    let screen = parser.screen();
    // A row that wraps was wider than the terminal.
    let wraps = (0..2000).filter(|&row| screen.row_wrapped(row)).count();
    let lines: Vec<String> = screen.rows(0, cols).map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(wraps, 0, "{arguments:?} is wider than {cols}:\n{}", lines.join("\n").trim_end());
    Seen { lines, raw: String::from_utf8(bytes).unwrap(), exit_code }
}

impl Seen {
    /// The lines, up to the last that is not empty.
    pub fn text(&self) -> String {
        self.lines.join("\n").trim_end().to_owned()
    }
}
