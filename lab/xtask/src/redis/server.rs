//! A Redis server, for as long as a measurement takes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Longest time for a server to start, answer or end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ended when dropped.
pub struct Server {
    child: Child,
    socket: PathBuf,
    report: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts `command`, which is `redis-server` with an environment, and waits until it answers.
    pub fn start(mut command: Command, folder: &Path) -> Result<Self> {
        // Paths of sockets are at most 107 bytes long.
        let socket =
            std::env::temp_dir().join(format!("pagedepot-redis-{}.sock", std::process::id()));
        let (report, log) = (folder.join("report"), folder.join("redis.log"));
        for stale in [&socket, &report] {
            let _ = fs::remove_file(stale);
        }
        let out =
            fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.env("PAGEDEPOT_JEMALLOC_REPORT", &report);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.args(["--loglevel", "warning"]).arg("--dir").arg(folder);
        command.arg("--unixsocket").arg(&socket);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().context("cannot run redis-server")?;
        let mut server = Server { child, socket, report, log };
        let end = Instant::now() + PATIENCE;
        while server.ask("PING").is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("redis-server ended with {status}: {}", server.said());
            }
            ensure!(Instant::now() < end, "redis-server does not answer: {}", server.said());
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a command; fails unless the answer is a simple string.
    pub fn ask(&self, command: &str) -> Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "{command}\r\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        ensure!(answer.starts_with('+'), "{command}: {}", answer.trim_end());
        Ok(())
    }

    /// Time that all its threads have spent on CPUs.
    pub fn cpu_ns(&self) -> Result<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        let of = |task: fs::DirEntry| -> Option<u64> {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        Ok(tasks.filter_map(Result::ok).filter_map(of).sum())
    }

    /// Anonymous memory that is present.
    pub fn resident_bytes(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib * 1024).context("smaps_rollup has no line `Anonymous: N kB`")
    }

    /// Reads the hooks' counters, as soon as they have written any.
    pub fn report(&self) -> Result<BTreeMap<String, u64>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&self.report).unwrap_or_default();
            let pair = |line: &str| {
                let (name, value) = line.split_once('=')?;
                Some((name.to_owned(), value.parse().ok()?))
            };
            let report: BTreeMap<_, _> = text.lines().filter_map(pair).collect();
            if report.len() >= 9 {
                return Ok(report);
            }
            ensure!(Instant::now() < end, "the hooks wrote no report: {}", self.said());
            sleep(Duration::from_millis(20));
        }
    }

    /// The server's output.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Ends it; fails if it does not end well.
    pub fn stop(mut self) -> Result<()> {
        // It closes the connection instead of an answer.
        let _ = self.ask("SHUTDOWN NOSAVE");
        let end = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("redis-server ended with {status}: {}", self.said()),
                None => ensure!(Instant::now() < end, "redis-server does not end"),
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_file(&self.socket);
    }
}
