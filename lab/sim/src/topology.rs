//! Machines to simulate: how CPUs are grouped, and what accesses cost.

use std::fmt;

use pagedepot_sim_machine::{Costs, STORES_MAX};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A machine. Files have these fields, as JSON; those that are left out are
/// [`Topology::default`]'s. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Name of the machine, for results.
    pub name: String,
    /// The source of its figures.
    pub source: String,
    /// CPUs that share a last-level cache (a core complex).
    pub complex_cpus: u32,
    /// CPUs of a socket.
    pub socket_cpus: u32,
    /// Moving a line between caches of one core complex.
    pub complex_ns: f64,
    /// Latency between core complexes of one socket.
    pub socket_ns: f64,
    /// Latency between sockets.
    pub remote_ns: f64,
    /// Fetching a line from memory.
    pub memory_ns: f64,
    /// A load that hits, with the instructions around it.
    pub load_ns: f64,
    /// A store that hits, with the instructions around it.
    pub store_ns: f64,
    /// A load or store that hits in a restartable sequence.
    pub sequence_ns: f64,
    /// A step down a tree, to a node that is in no nearer cache than the last-level one.
    pub tree_step_ns: f64,
    /// A step of the depot's slow path besides its accesses: mispredicted branches, cold code.
    pub slow_step_ns: f64,
    /// An atomic read-modify-write that hits; also a full barrier.
    pub rmw_ns: f64,
    /// Reading the clock. A CPU that waits for a spinlock does so before and after, unless waiters
    /// stand in a queue.
    pub clock_ns: f64,
    /// A turn of a spin loop.
    pub spin_ns: f64,
    /// Reads of one shared line follow each other at this distance.
    pub read_queue_ns: f64,
    /// Whether a load takes a line that another CPU has changed from there, instead of sharing it.
    pub migratory: bool,
    /// Time after the load that fetched a line within which a store finds it fetched to write.
    pub window_ns: f64,
    /// Stores that may wait for lines while the CPU goes on.
    pub store_buffer: u32,
    /// Interrupting another CPU and waiting for its answer (`membarrier`).
    pub fence_ns: f64,
    /// Time that the interrupt takes from that CPU.
    pub interrupt_ns: f64,
    /// Switching to another thread.
    pub switch_ns: f64,
    /// Writing a page for the first time.
    pub touch_ns: f64,
    /// Time for a line while other CPUs do so, too; `None`: as long.
    #[serde(default)]
    pub touch_beside_ns: Option<f64>,
    /// Writing or reading a line of a buffer that the other CPU of a pair had, in a row of lines.
    pub stream_line_ns: f64,
    /// Time for a line of a buffer that no cache has any more.
    pub stream_memory_line_ns: f64,
    /// KiB of last-level cache that a pair of CPUs uses.
    pub cache_kib: u32,
    /// Allocating, mapping and clearing a page of vmalloc memory, without locks.
    pub vmalloc_page_ns: f64,
    /// Time of a call of each design besides its accesses; 0 if not named.
    pub calls_ns: std::collections::BTreeMap<String, f64>,
    /// Time by which a CPU may run ahead of others by accesses that hit its own cache.
    pub ahead_ns: f64,
}

impl Default for Topology {
    fn default() -> Self {
        serde_json::from_str(EPYC_2X128).expect("the shipped file is valid")
    }
}

const EPYC_2X128: &str = include_str!("../topologies/epyc-2x128.json");

/// The reason why a topology cannot be used.
#[derive(Debug, PartialEq)]
pub struct BadTopology(String);

impl fmt::Display for BadTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadTopology {}

impl Topology {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Says what is wrong in it.
    pub fn parse(text: &str) -> Result<Self, BadTopology> {
        let bad = |error: serde_json::Error| BadTopology(error.to_string());
        let given: Map<String, Value> = serde_json::from_str(text).map_err(bad)?;
        let mut all: Map<String, Value> = serde_json::from_str(EPYC_2X128).map_err(bad)?;
        all.extend(given);
        let topology: Topology = serde_json::from_value(Value::Object(all)).map_err(bad)?;
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<(), BadTopology> {
        if self.complex_cpus == 0 || !self.socket_cpus.is_multiple_of(self.complex_cpus) {
            return Err(BadTopology(format!(
                "socket_cpus, {}, must be a multiple of complex_cpus, {}, which is at least 1",
                self.socket_cpus, self.complex_cpus
            )));
        }
        if self.socket_cpus == 0 {
            return Err(BadTopology("socket_cpus must be at least 1".to_owned()));
        }
        if !(1..=STORES_MAX as u32).contains(&self.store_buffer) {
            return Err(BadTopology(format!(
                "store_buffer is {}: give 1 to {STORES_MAX} stores",
                self.store_buffer
            )));
        }
        let calls = self.calls_ns.iter().map(|(name, &ns)| (name.as_str(), ns));
        for (name, ns) in self.times().into_iter().chain(calls) {
            if !(0.0..=1e9).contains(&ns) {
                return Err(BadTopology(format!("{name} is {ns}: give 0 to 1e9 nanoseconds")));
            }
        }
        Ok(())
    }

    fn times(&self) -> [(&'static str, f64); 23] {
        [
            ("complex_ns", self.complex_ns),
            ("socket_ns", self.socket_ns),
            ("remote_ns", self.remote_ns),
            ("memory_ns", self.memory_ns),
            ("load_ns", self.load_ns),
            ("store_ns", self.store_ns),
            ("sequence_ns", self.sequence_ns),
            ("tree_step_ns", self.tree_step_ns),
            ("slow_step_ns", self.slow_step_ns),
            ("rmw_ns", self.rmw_ns),
            ("clock_ns", self.clock_ns),
            ("spin_ns", self.spin_ns),
            ("window_ns", self.window_ns),
            ("read_queue_ns", self.read_queue_ns),
            ("fence_ns", self.fence_ns),
            ("interrupt_ns", self.interrupt_ns),
            ("switch_ns", self.switch_ns),
            ("touch_ns", self.touch_ns),
            ("touch_beside_ns", self.touch_beside_ns.unwrap_or(self.touch_ns)),
            ("stream_line_ns", self.stream_line_ns),
            ("stream_memory_line_ns", self.stream_memory_line_ns),
            ("vmalloc_page_ns", self.vmalloc_page_ns),
            ("ahead_ns", self.ahead_ns),
        ]
    }

    /// The part of it that the machine knows.
    pub fn costs(&self) -> Costs {
        Costs {
            complex_cpus: self.complex_cpus,
            socket_cpus: self.socket_cpus,
            transfer_ps: [self.complex_ns, self.socket_ns, self.remote_ns].map(ps),
            memory_ps: ps(self.memory_ns),
            load_ps: ps(self.load_ns),
            store_ps: ps(self.store_ns),
            sequence_ps: ps(self.sequence_ns),
            tree_step_ps: ps(self.tree_step_ns),
            slow_step_ps: ps(self.slow_step_ns),
            rmw_ps: ps(self.rmw_ns),
            clock_ps: ps(self.clock_ns),
            spin_ps: ps(self.spin_ns).max(1),
            read_queue_ps: ps(self.read_queue_ns),
            is_migratory: self.migratory,
            window_ps: ps(self.window_ns),
            store_buffer: self.store_buffer,
            fence_ps: ps(self.fence_ns),
            interrupt_ps: ps(self.interrupt_ns),
            switch_ps: ps(self.switch_ns),
            ahead_ps: ps(self.ahead_ns),
        }
    }

    /// The cost of a call of a design besides its accesses, in picoseconds.
    pub fn call_ps(&self, design: &str) -> u64 {
        ps(self.calls_ns.get(design).copied().unwrap_or(0.0))
    }
}

/// Nanoseconds as picoseconds.
pub fn ps(ns: f64) -> u64 {
    (ns * 1000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_the_default() {
        let given = Topology::parse(r#"{"name": "mine", "complex_ns": 30}"#).unwrap();
        let expected =
            Topology { name: "mine".to_owned(), complex_ns: 30.0, ..Topology::default() };
        assert_eq!(given, expected);
        assert_eq!(given.costs().transfer_ps[0], 30_000);
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        for (text, says) in [
            ("", "EOF"),
            ("[]", "invalid"),
            (r#"{"complex_cpu": 4}"#, "unknown field"),
            (r#"{"complex_cpus": 0}"#, "multiple"),
            (r#"{"socket_cpus": 0}"#, "at least 1"),
            (r#"{"complex_cpus": 3}"#, "multiple"),
            (r#"{"load_ns": -1}"#, "load_ns"),
            (r#"{"migratory": 1}"#, "expected a boolean"),
            (r#"{"store_buffer": 0}"#, "1 to 64 stores"),
            (r#"{"store_buffer": 65}"#, "1 to 64 stores"),
            (r#"{"load_ns": 1e12}"#, "load_ns"),
            (r#"{"calls_ns": {"spin": -1}}"#, "spin"),
        ] {
            let error = Topology::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
