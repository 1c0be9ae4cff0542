//! The CPUs and NUMA nodes of this machine, from sysfs and from this process's affinity.
//!
//! A depot is laid out for the CPUs that a thread may *ever* run on (*possible* CPUs). Cpusets,
//! affinities and hot-plugging change while a program runs, and numbers may have gaps. Containers
//! show fewer CPUs than the kernel schedules on, or have no sysfs at all (tcmalloc issues 188, 214
//! and 267, jemalloc 2181 and 2996). So the CPUs that this process may use now count too, by their
//! highest number: a cpuset of CPUs 32 and 96 needs 97 places, and not 2.

use std::fs;
use std::path::Path;

use pagedepot::{CpuId, NodeId};
use pagedepot_rseq::{CpuSet, affinity};

/// The CPUs and nodes of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// CPUs that may ever come online. Empty if sysfs does not list them.
    pub possible: CpuSet,
    /// CPUs that the calling thread may use now. Empty if a sandbox does not tell.
    pub allowed: CpuSet,
    /// CPUs taken out of scheduling (`isolcpus=`, or cpuset partitions).
    pub isolated: CpuSet,
    /// CPUs without a scheduler tick while one thread runs (`nohz_full=`).
    pub nohz_full: CpuSet,
    /// NUMA nodes, ascending, each with its CPUs, possibly none.
    pub nodes: Vec<(NodeId, CpuSet)>,
    /// Distances of each of `nodes` to each node (10 is itself), as far as sysfs lists them.
    distances: Vec<Vec<u32>>,
}

impl Topology {
    /// Reads `/sys/devices/system` and the calling thread's affinity. Missing files give empty
    /// sets: a sandbox may have no sysfs.
    pub fn read() -> Self {
        Self::read_from(Path::new("/sys/devices/system"), affinity::allowed().unwrap_or_default())
    }

    fn read_from(system: &Path, allowed: CpuSet) -> Self {
        let cpus = |name: &str| read_list(&system.join("cpu").join(name));
        let mut nodes = Vec::new();
        let mut distances = Vec::new();
        for id in read_list(&system.join("node/online")).iter() {
            let directory = system.join(format!("node/node{id}"));
            nodes.push((NodeId::new(id.get()), read_list(&directory.join("cpulist"))));
            let line = fs::read_to_string(directory.join("distance")).unwrap_or_default();
            distances.push(line.split_whitespace().map_while(|word| word.parse().ok()).collect());
        }
        Topology {
            possible: cpus("possible"),
            allowed,
            isolated: cpus("isolated"),
            nohz_full: cpus("nohz_full"),
            nodes,
            distances,
        }
    }

    /// One more than the highest CPU number that sysfs lists as possible, or that this process may
    /// use. Threads on higher CPUs are served by the store.
    pub fn cpu_count(&self) -> u32 {
        let highest = [&self.possible, &self.allowed].into_iter().filter_map(CpuSet::highest);
        // A sandbox that tells nothing still runs this thread on some CPU.
        highest.map(CpuId::get).max().unwrap_or_else(|| rustix::thread::sched_getcpu() as u32) + 1
    }

    /// CPUs that a full drain should leave alone: isolated or without a tick.
    pub fn quiet_cpus(&self) -> CpuSet {
        self.isolated.iter().chain(self.nohz_full.iter()).collect()
    }

    /// The node of each CPU below `cpus`; the first node for CPUs on none.
    pub fn cpu_nodes(&self, cpus: u32) -> Vec<NodeId> {
        let first = self.nodes.first().map_or(NodeId::new(0), |&(node, _)| node);
        let of = |cpu| {
            self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(first, |&(node, _)| node)
        };
        (0..cpus).map(|cpu| of(CpuId::new(cpu))).collect()
    }

    /// The distance between two nodes: 10 on the same node, more between others, and the most where
    /// sysfs lists none.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let place = |node| self.nodes.iter().position(|&(n, _)| n == node);
        if from == to {
            return 10;
        }
        place(from)
            .and_then(|row| self.distances.get(row)?.get(place(to)?).copied())
            .unwrap_or(u32::from(u8::MAX))
    }
}

/// A list of CPUs in a file. Empty if the file is missing or lists none (`(null)` where the kernel
/// has no `nohz_full`).
fn read_list(path: &Path) -> CpuSet {
    fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("pagedepot-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn sparse_numbers_and_two_nodes() {
        let root = tree(
            "sparse",
            &[
                ("cpu/possible", "0-1,64-65\n"),
                ("cpu/isolated", "65\n"),
                ("cpu/nohz_full", "1,65\n"),
                ("node/online", "0,2-3\n"),
                ("node/node0/cpulist", "0-1\n"),
                ("node/node0/distance", "10 30 20\n"),
                ("node/node2/cpulist", "64-65\n"),
                ("node/node2/distance", "30 10 20\n"),
                ("node/node3/cpulist", "\n"),
                ("node/node3/distance", "20 20 10\n"),
            ],
        );
        let topology = Topology::read_from(&root, CpuSet::new());
        fs::remove_dir_all(root).unwrap();
        assert_eq!(topology.cpu_count(), 66);
        assert_eq!(topology.quiet_cpus(), "1,65".parse().unwrap());
        let nodes = topology.cpu_nodes(66);
        assert_eq!([nodes[0], nodes[1], nodes[40], nodes[64]].map(NodeId::get), [0, 0, 0, 2]);
        let distance = |from, to| topology.distance(NodeId::new(from), NodeId::new(to));
        assert_eq!(
            [distance(0, 0), distance(0, 2), distance(0, 3), distance(3, 2)],
            [10, 30, 20, 20]
        );
        assert_eq!(distance(0, 7), 255);
    }

    #[test]
    fn no_sysfs_and_no_nohz_full() {
        let nowhere = Path::new("/nowhere");
        let topology = Topology::read_from(nowhere, CpuSet::new());
        assert_eq!(topology, Topology::default());
        assert!(topology.cpu_count() >= 1);
        assert_eq!(topology.cpu_nodes(2), [NodeId::new(0); 2]);
        // A number is not a count: two CPUs, of which the higher is 96.
        let sparse = Topology::read_from(nowhere, "32,96".parse().unwrap());
        assert_eq!(sparse.cpu_count(), 97);
        let root = tree("null", &[("cpu/possible", "0\n"), ("cpu/nohz_full", "(null)\n")]);
        assert!(Topology::read_from(&root, CpuSet::new()).quiet_cpus().is_empty());
        // A container whose sysfs lists fewer CPUs than its cpuset has.
        assert_eq!(Topology::read_from(&root, "0,5".parse().unwrap()).cpu_count(), 6);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn this_machine() {
        let topology = Topology::read();
        let here = rustix::thread::sched_getcpu() as u32;
        assert!(here < topology.cpu_count());
        assert!(topology.possible.is_empty() || topology.possible.contains(CpuId::new(here)));
    }
}
