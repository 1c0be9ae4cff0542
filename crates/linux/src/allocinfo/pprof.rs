//! Sites as a profile of pprof's format (feature `pprof`): the messages of
//! `github.com/google/pprof/proto/profile.proto` that a profile of call sites needs, by `prost`.

use prost::Message;

use super::AllocInfo;

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
    #[prost(int64, tag = "3")]
    column: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// The strings of a profile: the first is empty.
struct Strings(Vec<String>);

impl Strings {
    fn number(&mut self, string: String) -> i64 {
        let known = self.0.iter().position(|known| *known == string);
        let at = known.unwrap_or_else(|| {
            self.0.push(string);
            self.0.len() - 1
        });
        at as i64
    }
}

impl AllocInfo {
    /// The sites as a profile for `pprof`, which takes it compressed or not; this one is not. Its
    /// samples are `inuse_objects` and `inuse_space`, and a site is a function, named by its file
    /// and line.
    ///
    /// ```
    /// use pagedepot_linux::Depot;
    /// use pagedepot_linux::allocinfo::AllocInfo;
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let path = std::env::temp_dir().join(format!("pages-{}.pb", std::process::id()));
    /// std::fs::write(&path, AllocInfo::of(&depot).pprof())?;
    /// // $ pprof -top pages-4711.pb
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pprof(&self) -> Vec<u8> {
        self.profile().encode_to_vec()
    }

    fn profile(&self) -> Profile {
        let mut strings = Strings(vec![String::new()]);
        let mut sample_type = |kind: &str, unit: &str| ValueType {
            kind: strings.number(kind.to_owned()),
            unit: strings.number(unit.to_owned()),
        };
        let sample_types =
            vec![sample_type("inuse_objects", "count"), sample_type("inuse_space", "bytes")];
        let mut profile = Profile {
            default_sample_type: sample_types[1].kind,
            sample_type: sample_types,
            ..Profile::default()
        };
        for (id, info) in (1..).zip(&self.sites) {
            let site = &info.site;
            let name =
                strings.number(format!("{}:{} [{}]", site.file, site.line, site.kind.name()));
            let filename = strings.number(site.file.clone());
            let (line, column) = (site.line.into(), site.column.into());
            profile.function.push(Function {
                id,
                name,
                system_name: name,
                filename,
                start_line: line,
            });
            let line = vec![Line { function_id: id, line, column }];
            profile.location.push(Location { id, line });
            let value = vec![info.calls as i64, info.bytes as i64];
            profile.sample.push(Sample { location_id: vec![id], value });
        }
        profile.string_table = strings.0;
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocinfo::{Site, SiteInfo, SiteKind};

    fn info() -> AllocInfo {
        let site = |line, bytes| SiteInfo {
            site: Site { file: "src/a.rs".to_owned(), line, column: 9, kind: SiteKind::Pages },
            bytes,
            calls: 2,
        };
        AllocInfo { sites: vec![site(31, 8192), site(7, 4096)] }
    }

    /// Checks the properties that readers of the format rely upon: identifiers are not 0 and lead
    /// somewhere, the first string is empty, each sample has a value of each type.
    #[test]
    fn a_profile_is_read_again() {
        let profile = Profile::decode(&*info().pprof()).unwrap();
        let string = |at: i64| profile.string_table[at as usize].as_str();
        assert_eq!(profile.string_table[0], "");
        let types: Vec<_> =
            profile.sample_type.iter().map(|of| (string(of.kind), string(of.unit))).collect();
        assert_eq!(types, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
        let mut seen = Vec::new();
        for sample in &profile.sample {
            let location =
                profile.location.iter().find(|at| at.id == sample.location_id[0]).unwrap();
            let line = &location.line[0];
            let function = profile.function.iter().find(|at| at.id == line.function_id).unwrap();
            assert!(location.id > 0 && function.id > 0);
            seen.push((string(function.filename), string(function.name), line.line, &sample.value));
        }
        assert_eq!(
            seen,
            [
                ("src/a.rs", "src/a.rs:31 [pages]", 31, &vec![2, 8192]),
                ("src/a.rs", "src/a.rs:7 [pages]", 7, &vec![2, 4096])
            ]
        );
    }
}
