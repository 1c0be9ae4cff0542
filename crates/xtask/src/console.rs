//! A machine's console, line by line.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result};

/// A machine that does not outlive this value; its console is its stdout.
pub struct MachineProcess(pub Child);

impl Drop for MachineProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl MachineProcess {
    /// Lines as they come, without what ends them, until the machine closes its end. Once.
    pub fn lines(&mut self) -> Result<Receiver<String>> {
        let console = self.0.stdout.take().context("the machine's stdout is a pipe")?;
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }
}
