//! The files in which the kernel says how short memory is.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::follower::Room;
use super::policy::Policy;
use super::reading::{self, Reading};

/// Longest file of figures that is read; the kernel's are far shorter.
const FILE_MAX: u64 = 64 << 10;

/// The files that a [`Monitor`](super::Monitor) reads.
///
/// ```
/// use pagedepot_linux::pressure::Sources;
///
/// // The system, and one cgroup alone.
/// let sources = Sources::none()
///     .and_stalls("/proc/pressure/memory")
///     .and_cgroup_v2("/sys/fs/cgroup/system.slice/example.service");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Files of PSI.
    pub(super) stalls: Vec<PathBuf>,
    pub(super) groups: Vec<Group>,
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub version: Version,
    pub directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Sources {
    /// Makes an empty list: the monitor only gives back what rests.
    pub fn none() -> Self {
        Sources::default()
    }

    /// All there are for this process: PSI of the system, its memory cgroup, v1 or v2, and the
    /// cgroup's ancestors as far as they are mounted.
    pub fn find() -> Self {
        Self::find_below(Path::new("/proc"))
    }

    /// Adds a file of PSI.
    pub fn and_stalls(mut self, file: impl Into<PathBuf>) -> Self {
        self.stalls.push(file.into());
        self
    }

    /// Adds a cgroup of version 2, by its directory, and its `memory.pressure`.
    pub fn and_cgroup_v2(mut self, directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        self.stalls.push(directory.join("memory.pressure"));
        self.groups.push(Group { version: Version::V2, directory });
        self
    }

    /// Adds a cgroup of version 1, by its directory.
    pub fn and_cgroup_v1(mut self, directory: impl Into<PathBuf>) -> Self {
        self.groups.push(Group { version: Version::V1, directory: directory.into() });
        self
    }

    fn find_below(proc: &Path) -> Self {
        let mut sources = Sources::none();
        let system = proc.join("pressure/memory");
        if system.exists() {
            sources.stalls.push(system);
        }
        // Bytes, all of them: a path need not be text, and there may be thousands of mounts.
        let file = |name: &str| fs::read(proc.join(name)).unwrap_or_default();
        let (memberships, mounts) = (file("self/cgroup"), file("self/mountinfo"));
        for line in memberships.split(|&byte| byte == b'\n') {
            let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let version = match controllers {
                b"" => Version::V2,
                _ if has_memory(controllers) => Version::V1,
                _ => continue,
            };
            let path = Path::new(OsStr::from_bytes(path));
            let lines = mounts.split(|&byte| byte == b'\n');
            let of_version: Vec<_> = lines.filter_map(|line| Mount::of(line, version)).collect();
            // Another cgroup may be mounted somewhere by itself, too.
            let holds = |mount: &&Mount| path.starts_with(&mount.root);
            if let Some(mount) = of_version.iter().find(holds).or(of_version.first()) {
                sources.add_line(version, mount, path);
            }
        }
        sources
    }

    /// Whether the memory controller counts huge pages of the system's pool in these cgroups.
    fn count_huge_pages(&self, proc: &Path) -> bool {
        // Those of version 1 never count them; of version 2 all do, by an option of any mount.
        let is_option = |line: &[u8]| {
            let options = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            options.split(|&byte| byte == b',').any(|option| option == b"memory_hugetlb_accounting")
        };
        self.groups.iter().any(|group| group.version == Version::V2)
            && fs::read(proc.join("self/mountinfo"))
                .is_ok_and(|mounts| mounts.split(|&byte| byte == b'\n').any(is_option))
    }

    /// Adds a cgroup and its ancestors, those that have what counts.
    fn add_line(&mut self, version: Version, mount: &Mount, path: &Path) {
        // In a container the path may lie outside of what is mounted: then the mount is the cgroup.
        let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        for below in inside.ancestors() {
            let directory = mount.point.join(below);
            let is_group = directory.join(version.usage()).exists();
            let stalls = directory.join("memory.pressure");
            // The root's are the system's, and it has no `memory.current`. The container's own
            // cgroup may be mounted as the root is: it has.
            if (is_group || below != Path::new("")) && stalls.exists() {
                self.stalls.push(stalls);
            }
            if is_group {
                self.groups.push(Group { version, directory });
            }
        }
    }
}

/// A mount of cgroups.
struct Mount {
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// A line of `mountinfo` (proc(5)), if it is of memory cgroups of this version.
    fn of(line: &[u8], version: Version) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let (root, point) = (unescaped(fields.nth(3)?), unescaped(fields.next()?));
        let mut kind = fields.skip_while(|&field| field != b"-").skip(1);
        let is_meant = match (version, kind.next()?) {
            (Version::V2, b"cgroup2") => true,
            (Version::V1, b"cgroup") => has_memory(kind.nth(1)?),
            _ => false,
        };
        is_meant.then_some(Mount { root, point })
    }
}

/// Whether a list has the controller of memory.
fn has_memory(list: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|name| name == b"memory")
}

/// A path of `mountinfo`, in which spaces and the like are octal numbers.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::new(), field);
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let escaped = digits.and_then(|digits| str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(path).into()
}

impl Version {
    /// The file with the bytes in use.
    pub fn usage(self) -> &'static str {
        match self {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }
}

/// Events of a cgroup since it was made.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    high: u64,
    max: u64,
    oom: u64,
}

impl Group {
    fn read(&self, name: &str) -> Option<String> {
        read(&self.directory.join(name)).ok()
    }

    /// The limit in force, if there is one. An error: it is not known.
    pub fn limit(&self) -> io::Result<Option<u64>> {
        let names: &[&str] = match self.version {
            Version::V1 => &["memory.limit_in_bytes"],
            Version::V2 => &["memory.high", "memory.max"],
        };
        let mut lowest = None;
        for name in names {
            match read(&self.directory.join(name)) {
                Ok(text) => lowest = lowest.into_iter().chain(reading::limit(&text)).min(),
                // The root's cgroup has no limit, and one that was removed has no files.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lowest)
    }

    /// Bytes that could not be dropped at no cost: all in use, less the page cache that rests.
    fn working_set(&self) -> Option<u64> {
        let used = self.read(self.version.usage()).as_deref().and_then(reading::bytes)?;
        let key = match self.version {
            Version::V1 => "total_inactive_file",
            Version::V2 => "inactive_file",
        };
        let stat = self.read("memory.stat").unwrap_or_default();
        Some(used.saturating_sub(reading::value(&stat, key).unwrap_or(0)))
    }

    /// Bytes that the kernel could not drop to make room: all in use, less the page cache.
    fn kept_bytes(&self) -> io::Result<u64> {
        let used = read(&self.directory.join(self.version.usage()))?;
        let used = reading::bytes(&used).ok_or(io::ErrorKind::InvalidData)?;
        let keys = match self.version {
            Version::V1 => ["total_inactive_file", "total_active_file"],
            Version::V2 => ["inactive_file", "active_file"],
        };
        let stat = match read(&self.directory.join("memory.stat")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            stat => stat?,
        };
        let cache = keys.into_iter().filter_map(|key| reading::value(&stat, key));
        Ok(cache.fold(used, u64::saturating_sub))
    }

    /// The room that this cgroup leaves for depots; `None`: it has no limit.
    fn room(&self, margin_percent: u32) -> io::Result<Option<Room>> {
        let Some(limit_bytes) = self.limit()? else { return Ok(None) };
        let kept_bytes = i64::try_from(self.kept_bytes()?).unwrap_or(i64::MAX);
        let usable = u128::from(limit_bytes) * u128::from(100 - margin_percent) / 100;
        Ok(Some(Room { limit_bytes, left_bytes: usable as i64 - kept_bytes }))
    }

    fn events(&self) -> Events {
        match self.version {
            Version::V1 => {
                let failures = self.read("memory.failcnt").as_deref().and_then(reading::bytes);
                let control = self.read("memory.oom_control").unwrap_or_default();
                let oom = reading::value(&control, "oom_kill");
                Events { high: 0, max: failures.unwrap_or(0), oom: oom.unwrap_or(0) }
            }
            Version::V2 => {
                let events = self.read("memory.events").unwrap_or_default();
                let count = |key| reading::value(&events, key).unwrap_or(0);
                Events { high: count("high"), max: count("max"), oom: count("oom") }
            }
        }
    }
}

/// Reads all sources, and knows what they said before.
#[derive(Debug)]
pub(super) struct Reader {
    pub sources: Sources,
    /// The events of each group at the last look.
    seen: Vec<Events>,
    /// The room that each group left when it was last read.
    rooms: Vec<Option<Room>>,
    /// Whether limits count huge pages of the system's pool.
    pub counts_huge_pages: bool,
}

impl Reader {
    pub fn new(sources: Sources) -> Self {
        let seen = sources.groups.iter().map(Group::events).collect();
        let rooms = vec![None; sources.groups.len()];
        let counts_huge_pages = sources.count_huge_pages(Path::new("/proc"));
        Reader { sources, seen, rooms, counts_huge_pages }
    }

    /// Reads all sources; also returns the number of those that could not be understood.
    pub fn read(&mut self, policy: &Policy) -> (Reading, u64) {
        let mut all = Reading::default();
        let mut unreadable = 0;
        for file in &self.sources.stalls {
            match read(file).ok().as_deref().and_then(reading::stalled_percent) {
                Some(percent) => all.stalled_percent = all.stalled_percent.max(percent),
                None => unreadable += 1,
            }
        }
        for (group, seen) in self.sources.groups.iter().zip(&mut self.seen) {
            let events = group.events();
            all.high_events += events.high.saturating_sub(seen.high);
            all.max_events += events.max.saturating_sub(seen.max);
            all.oom_events += events.oom.saturating_sub(seen.oom);
            *seen = events;
            let Some(used) = group.working_set() else {
                unreadable += 1;
                continue;
            };
            let Ok(Some(limit)) = group.limit() else { continue };
            let percent = used as f64 / limit.max(1) as f64 * 100.0;
            if percent > all.used_percent {
                let relaxed = (limit as f64 * policy.relaxed_share()) as u64;
                (all.used_percent, all.over_bytes) = (percent, used.saturating_sub(relaxed));
            }
        }
        (all, unreadable)
    }

    /// The room that the tightest cgroup leaves for depots; `None`: there is no limit to follow. A
    /// cgroup that cannot be read now leaves what it left before: its limit is still there.
    pub fn room(&mut self, policy: &Policy) -> Option<Room> {
        let margin_percent = policy.margin_percent?;
        for (group, room) in self.sources.groups.iter().zip(&mut self.rooms) {
            *room = group.room(margin_percent).unwrap_or(*room);
        }
        self.rooms.iter().flatten().copied().min_by_key(|room| room.left_bytes)
    }

    /// Asks the kernel to reclaim from the cgroup nearest to this process; whether it could.
    pub fn ask_kernel(&self, bytes: u64) -> bool {
        let is_v2 = |group: &&Group| group.version == Version::V2;
        let Some(group) = self.sources.groups.iter().find(is_v2) else { return false };
        // `EAGAIN` says that it found less, which is no failure to ask.
        match fs::write(group.directory.join("memory.reclaim"), bytes.to_string()) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

fn read(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for files that stand for the kernel's; removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir();
            Tree(root.join(format!("pagedepot-sources-{name}-{}", std::process::id())))
        }

        fn put(&self, file: &str, text: impl AsRef<[u8]>) -> &Self {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_cgroup_and_its_ancestors_are_found() {
        let tree = Tree::new("v2");
        let point = tree.0.join("cg roup");
        let escaped = point.to_str().unwrap().replace(' ', "\\040");
        tree.put("self/cgroup", "1:cpu:/elsewhere\n0::/outer/inner\n")
            .put("self/mountinfo", format!("31 23 0:28 / {escaped} rw - cgroup2 none rw\n"))
            .put("pressure/memory", "")
            .put("cg roup/memory.pressure", "")
            .put("cg roup/outer/memory.current", "1")
            .put("cg roup/outer/memory.pressure", "")
            .put("cg roup/outer/inner/memory.current", "1");
        let group = |below: &str| Group { version: Version::V2, directory: point.join(below) };
        let found = Sources::find_below(&tree.0);
        assert_eq!(found.groups, [group("outer/inner"), group("outer")]);
        let stalls = [tree.0.join("pressure/memory"), point.join("outer/memory.pressure")];
        assert_eq!(found.stalls, stalls);
    }

    /// A container's own cgroup is mounted in its namespace as the root is elsewhere, and has files
    /// that the root has not.
    #[test]
    fn a_containers_own_cgroup_may_look_like_the_root() {
        let tree = Tree::new("namespace");
        let point = tree.0.join("mount");
        tree.put("self/cgroup", "0::/\n")
            .put("self/mountinfo", format!("31 23 0:28 / {} - cgroup2 none rw\n", point.display()))
            .put("mount/memory.pressure", "");
        assert_eq!(Sources::find_below(&tree.0), Sources::none(), "the root's are the system's");
        tree.put("mount/memory.current", "1");
        let own = Sources::none().and_cgroup_v2(&point);
        assert_eq!(Sources::find_below(&tree.0), own);
    }

    /// The cgroup of another program is mounted by itself, before all of them are.
    #[test]
    fn the_mount_that_holds_the_cgroup_counts() {
        let tree = Tree::new("mounts");
        let [other, all] = ["other", "all"].map(|name| tree.0.join(name));
        let line = |root: &str, point: &Path| {
            format!("31 23 0:28 {root} {} rw - cgroup2 none rw\n", point.display())
        };
        tree.put("self/mountinfo", line("/theirs", &other) + &line("/", &all))
            .put("self/cgroup", "0::/own\n")
            .put("other/memory.current", "1")
            .put("all/own/memory.current", "1");
        let groups = Sources::find_below(&tree.0).groups;
        assert_eq!(groups, [Group { version: Version::V2, directory: all.join("own") }]);
    }

    /// Mounts whose paths are no text, and more of them than anyone expects.
    #[test]
    fn cgroups_are_found_among_any_mounts() {
        let tree = Tree::new("bytes");
        let point = tree.0.join(OsStr::from_bytes(b"m\xff\\nt"));
        let group = point.join(OsStr::from_bytes(b"own\xe4"));
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.current"), "1").unwrap();
        let other = b"29 23 8:1 / /mnt/\xfc\\040\xe4 rw,relatime shared:7 - ext4 /dev/sda rw\n";
        let mut mounts = other.repeat(FILE_MAX as usize / other.len() + 1);
        mounts.extend(b"31 23 0:28 / ");
        mounts.extend(tree.0.as_os_str().as_bytes());
        mounts.extend(b"/m\xff\\134nt rw shared:9 master:1 - cgroup2 none rw\n");
        tree.put("self/mountinfo", mounts).put("self/cgroup", b"0::/own\xe4\n");
        let groups = Sources::find_below(&tree.0).groups;
        assert_eq!(groups, [Group { version: Version::V2, directory: group }]);
    }

    #[test]
    fn huge_pages_count_by_an_option() {
        let tree = Tree::new("huge");
        let sources = [
            Sources::none().and_cgroup_v1("one"),
            Sources::none().and_cgroup_v1("one").and_cgroup_v2("two"),
        ];
        let counts = || sources.each_ref().map(|sources| sources.count_huge_pages(&tree.0));
        assert_eq!(counts(), [false, false]);
        for (options, counted) in [
            ("rw,nsdelegate", false),
            ("rw,nsdelegate,memory_hugetlb_accounting", true),
            ("rw,memory_hugetlb_accounting,memory_recursiveprot", true),
        ] {
            let mounts = format!("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 {options}\n");
            tree.put("self/mountinfo", mounts);
            assert_eq!(counts(), [false, counted], "{options}");
        }
    }

    #[test]
    fn version_1_and_a_container() {
        let tree = Tree::new("v1");
        let point = tree.0.join("memory");
        let line =
            format!("35 31 0:32 /docker/abc {} rw - cgroup none rw,memory\n", point.display());
        tree.put("self/cgroup", "4:cpu,memory:/docker/abc/own\n").put("self/mountinfo", &line);
        tree.put("memory/own/memory.usage_in_bytes", "1").put("memory/memory.usage_in_bytes", "2");
        let found = Sources::find_below(&tree.0);
        let group = |below: &str| Group { version: Version::V1, directory: point.join(below) };
        assert_eq!(found.groups, [group("own"), group("")]);
        assert_eq!(Sources::find_below(Path::new("/nowhere")), Sources::none());
    }

    #[test]
    fn the_fullest_group_decides_and_cache_that_rests_does_not_count() {
        let tree = Tree::new("full");
        tree.put("a/memory.current", "900\n").put("a/memory.max", "1000\n");
        tree.put("a/memory.high", "max\n").put("a/memory.stat", "file 9\ninactive_file 500\n");
        tree.put("a/memory.events", "low 0\nhigh 2\nmax 1\noom 0\n");
        tree.put("b/memory.usage_in_bytes", "950\n").put("b/memory.limit_in_bytes", "1000\n");
        let sources =
            Sources::none().and_cgroup_v2(tree.0.join("a")).and_cgroup_v1(tree.0.join("b"));
        let mut reader = Reader::new(sources);
        let policy = Policy::default();
        let (reading, unreadable) = reader.read(&policy);
        assert_eq!((reading.used_percent, reading.over_bytes), (95.0, 950 - 807));
        assert_eq!(
            (reading.high_events, reading.max_events),
            (0, 0),
            "none since it began to look"
        );
        assert_eq!(unreadable, 1, "a has no memory.pressure");
        // Page cache does not count for a ceiling. The tighter group decides.
        let room = |left_bytes| Some(Room { limit_bytes: 1000, left_bytes });
        assert_eq!(reader.room(&policy), room(800 - 950));
        tree.put("b/memory.stat", "total_active_file 400\ntotal_inactive_file 100\n");
        assert_eq!(reader.room(&policy), room(800 - 450));
        assert_eq!(reader.sources.groups[0].room(20).unwrap(), room(800 - 400));
        assert_eq!(reader.room(&Policy { margin_percent: None, ..policy }), None);
        fs::remove_file(tree.0.join("b/memory.stat")).unwrap();
        tree.put("a/memory.events", "low 0\nhigh 5\nmax 1\noom 1\n");
        tree.put("b/memory.failcnt", "4\n").put("b/memory.usage_in_bytes", "nonsense\n");
        let (reading, unreadable) = reader.read(&policy);
        assert_eq!(reading.used_percent, 40.0);
        assert_eq!((reading.high_events, reading.max_events, reading.oom_events), (3, 4, 1));
        assert_eq!(unreadable, 2);
        // A limit stays while it is not known how much is used. More than any machine has is used,
        // too.
        assert_eq!(reader.room(&policy), room(800 - 450));
        for used in [1 << 63, u64::MAX] {
            tree.put("b/memory.usage_in_bytes", used.to_string());
            assert_eq!(reader.room(&policy), room(800 - i64::MAX));
        }
        fs::remove_dir_all(tree.0.join("b")).unwrap();
        assert_eq!(reader.room(&policy), room(800 - 400), "the other is left");
    }
}
