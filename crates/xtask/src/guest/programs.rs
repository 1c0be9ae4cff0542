//! The programs of a guest, built here for its processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::CROSS;
use crate::tools;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The packages whose tests run.
const PACKAGES: [&str; 5] =
    ["pagedepot", "pagedepot-contiguity", "pagedepot-vmap", "pagedepot-rseq", "pagedepot-linux"];
/// Features of the crate for Linux whose unit tests run in a program of their own.
const FEATURES: &str = "allocator-api2,bytemuck,bytes,pprof,prometheus,publish";
/// Arguments that leave out unit tests which `pagedepot-linux-lib` has run, and whose code no
/// feature changes: they take ten minutes.
const BESIDE_FEATURES: [&str; 4] =
    ["--skip", "vmalloc::reserved_tests", "--skip", "cpus::sequences"];
/// Folder of the C library's tests and example, and programs there.
const C_FOLDER: &str = "crates/capi";
const C_PROGRAMS: [(&str, &str, &[&str]); 4] = [
    ("c-basic", "tests/c/basic.c", &[]),
    ("c-parts", "tests/c/parts.c", &[]),
    ("c-shared", "tests/c/shared.c", &[]),
    ("c-ring", "examples/ring/ring.c", &["20000"]),
];

/// A test of a program that runs in a guest without it.
const LITMUS_TABLE: &str = "the_table_names_what_is_there";

/// Programs, and tests, that do not run in a guest, and why.
pub const LEFT_OUT: [(&str, &str); 14] = [
    ("pagedepot-layers", "reads the repository"),
    ("pagedepot-pairs", "reads the repository"),
    ("pagedepot-total_order", "reads the repository"),
    ("pagedepot-vmap-examples", "runs examples that cargo builds"),
    ("pagedepot-vmap-layers", "reads the repository"),
    ("pagedepot-linux-layers", "reads the repository"),
    ("pagedepot-linux-pairs", "reads the repository"),
    ("pagedepot-linux-examples", "runs examples that cargo builds"),
    (LITMUS_TABLE, "reads the repository"),
    ("pagedepot-c-header", "reads the repository"),
    ("pagedepot-c-examples", "runs examples that cargo builds"),
    ("after_free.c", "is to fail under valgrind or AddressSanitizer"),
    ("owner.cpp", "needs a C++ compiler for AArch64: the header's part for C++ calls the same"),
    ("sites.c", "needs a library that notes call sites, which no processor does differently"),
];

/// Programs of each machine, also of a quick run, with what is asked of them.
const QUICK: [(&str, &[&str]); 5] = [
    ("pagedepot-rseq-lib", &[]),
    ("pagedepot-rseq-sequence", &[]),
    ("pagedepot-linux-lib", &["sequences::"]),
    ("pagedepot-linux-depot", &[]),
    ("pagedepot-linux-instructions", &[]),
];
/// Programs of each machine of a run that is not quick.
const OF_EACH: [&str; 9] = [
    "pagedepot-litmus",
    "pagedepot-reentry",
    "pagedepot-storm",
    "pagedepot-linux-handover",
    "pagedepot-linux-hammer",
    "pagedepot-linux-isolated",
    "pagedepot-linux-signals",
    "pagedepot-linux-storm",
    "c-ring",
];

/// Arguments that build these, but for the instructions.
const QUICK_BUILD: [&str; 9] = [
    "-p",
    "pagedepot-rseq",
    "-p",
    "pagedepot-linux",
    "--lib",
    "--test",
    "sequence",
    "--test",
    "depot",
];

/// Machines that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// The first one.
    First,
    Each,
    /// Each machine whose processor has atomic instructions (LSE).
    EachWithLse,
}

/// A program, its arguments, and its environment.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub file: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<&'static str>,
    pub machines: Machines,
}

impl Program {
    /// Whether the program concerns what the kernel does with sequences.
    fn is_of_linux(&self) -> bool {
        ["pagedepot-rseq", "pagedepot-linux", "c-"].iter().any(|it| self.name.starts_with(it))
    }

    /// A copy that runs where glibc registers no area.
    fn without_rseq(&self) -> Self {
        let mut program = self.clone();
        program.name += "-without-rseq";
        program.environment.push("GLIBC_TUNABLES=glibc.pthread.rseq=0");
        program
    }
}

/// Programs that are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Tests that concern sequences.
    Quick,
    /// Tests of the crates for Linux, with and without glibc's registration.
    Registration,
    /// All tests, the README's first program and its first command.
    All,
}

/// A build of all programs.
pub struct Build<'b> {
    pub root: &'b Path,
    pub cache: &'b Path,
    pub extent: Extent,
    /// Parts of the names of the programs that are asked for. None: all.
    pub names: &'b [String],
}

impl Build<'_> {
    fn is_wanted(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Builds the programs, and strips them.
    pub fn programs(&self) -> Result<Vec<Program>> {
        eprintln!("building tests for {TARGET}");
        let is_quick = self.extent == Extent::Quick;
        let mut programs = Vec::new();
        for (name, file) in self.tests()? {
            let quick = QUICK.iter().find(|(program, _)| *program == name);
            if !self.is_wanted(&name) {
                continue;
            }
            if is_quick && quick.is_none() || LEFT_OUT.iter().any(|(out, _)| *out == name) {
                continue;
            }
            let words = quick.filter(|_| is_quick).map_or(&[][..], |(_, words)| words);
            programs.push(self.harness(name, &file, words)?);
        }
        if !is_quick {
            programs.extend(self.with_lse()?);
            programs.extend(self.with_features()?);
            programs.extend(self.c_programs()?);
        }
        match self.extent {
            Extent::Quick => {}
            Extent::Registration => {
                programs.retain(Program::is_of_linux);
                let without: Vec<_> = programs.iter().map(Program::without_rseq).collect();
                programs.extend(without);
            }
            Extent::All => programs.extend(self.of_readme()?),
        }
        programs.retain(|program| self.is_wanted(&program.name));
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(programs)
    }

    /// A program with the harness of Rust's tests.
    fn harness(&self, name: String, file: &Path, words: &[&str]) -> Result<Program> {
        let common = ["--test-threads=1", "--nocapture", "--skip", LITMUS_TABLE];
        let arguments = common.iter().chain(words);
        let of_each = OF_EACH.iter().chain(QUICK.iter().map(|(name, _)| name));
        let machines = match of_each.into_iter().any(|it| *it == name) {
            true => Machines::Each,
            false => Machines::First,
        };
        // An emulated processor does half as much in a second.
        let is_storm = name.ends_with("-storm");
        Ok(Program {
            file: self.strip(&name, file)?,
            name,
            arguments: arguments.map(|word| (*word).to_owned()).collect(),
            environment: is_storm.then_some("PAGEDEPOT_SOAK_SECONDS=2").into_iter().collect(),
            machines,
        })
    }

    /// Tests by package and name, with their files. Instructions are counted in a program that is
    /// optimised as users build theirs.
    fn tests(&self) -> Result<Vec<(String, PathBuf)>> {
        let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
        let all: Vec<&str> = match self.extent {
            Extent::Quick => QUICK_BUILD.to_vec(),
            _ => ["--lib", "--tests"].into_iter().chain(packages).collect(),
        };
        let counted = ["--release", "-p", "pagedepot-linux", "--test", "instructions"];
        let optimised = match self.is_wanted("pagedepot-linux-instructions") {
            true => self.test(&counted, None)?,
            false => Vec::new(),
        };
        let mut tests = self.test(&all, None)?;
        tests.retain(|(name, _)| optimised.iter().all(|(other, _)| name != other));
        tests.extend(optimised);
        Ok(tests)
    }

    /// The sequences as programs have them that are built for processors with atomic instructions.
    fn with_lse(&self) -> Result<Option<Program>> {
        const NAME: &str = "pagedepot-linux-lib-lse";
        if !self.is_wanted(NAME) {
            return Ok(None);
        }
        let built = self.test(&["-p", "pagedepot-linux", "--lib"], Some("+lse"))?;
        let Some((_, file)) = built.into_iter().next() else { return Ok(None) };
        let program = self.harness(NAME.to_owned(), &file, &["sequences::"])?;
        Ok(Some(Program { machines: Machines::EachWithLse, ..program }))
    }

    /// The unit tests of what features add.
    fn with_features(&self) -> Result<Option<Program>> {
        const NAME: &str = "pagedepot-linux-lib-features";
        if !self.is_wanted(NAME) {
            return Ok(None);
        }
        let built = self.test(&["-p", "pagedepot-linux", "--lib", "--features", FEATURES], None)?;
        let Some((_, file)) = built.into_iter().next() else { return Ok(None) };
        Ok(Some(self.harness(NAME.to_owned(), &file, &BESIDE_FEATURES)?))
    }

    /// Programs in C over the static library.
    fn c_programs(&self) -> Result<Vec<Program>> {
        if !C_PROGRAMS.iter().any(|(name, ..)| self.is_wanted(name)) {
            return Ok(Vec::new());
        }
        let made = self.cargo(&["build", "--release", "-p", "pagedepot-c", "--lib"], None)?;
        let archive = made_file(&made, "libpagedepot_c.a")?;
        let folder = self.root.join(C_FOLDER);
        let to = tools::folder(self.cache.join("c"))?;
        C_PROGRAMS
            .iter()
            .map(|(name, source, words)| {
                let mut compiler = Command::new(format!("{CROSS}gcc"));
                compiler.arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
                compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-I"]);
                compiler.arg(folder.join("include")).arg(folder.join(source)).arg(&archive);
                compiler.args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-o"]).arg(to.join(name));
                tools::run(&mut compiler, &self.cache.join("cc.log"))?;
                let arguments = words.iter().map(|word| (*word).to_owned()).collect();
                let program = self.harness((*name).to_owned(), &to.join(name), &[])?;
                Ok(Program { arguments, ..program })
            })
            .collect()
    }

    /// The README's first program, a package of its own, and its first command.
    fn of_readme(&self) -> Result<Vec<Program>> {
        if !["readme-program", "readme-command"].into_iter().any(|name| self.is_wanted(name)) {
            return Ok(Vec::new());
        }
        let package = tools::folder(self.cache.join("first"))?;
        tools::folder(package.join("src"))?;
        let readme = fs::read_to_string(self.root.join("README.md"))?;
        let program = first_program(&readme).context("the README has no first program")?;
        let linux = self.root.join("crates/linux");
        let manifest = format!(
            "[package]\nname = \"first\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\npagedepot-linux = {{ path = {:?} }}\n\n[workspace]\n",
            linux.display().to_string()
        );
        tools::write_if_changed(&package.join("Cargo.toml"), manifest.as_bytes())?;
        tools::write_if_changed(&package.join("src/main.rs"), program.as_bytes())?;
        // The versions of this workspace.
        fs::copy(self.root.join("Cargo.lock"), package.join("Cargo.lock"))?;
        let manifest = package.join("Cargo.toml").display().to_string();
        let first = self.cargo(&["build", "--release", "--manifest-path", &manifest], None)?;
        let command = self.cargo(&["build", "--release", "--bin", "pagedepot"], None)?;
        [("readme-program", first, "first"), ("readme-command", command, "pagedepot")]
            .into_iter()
            .map(|(name, made, file)| {
                let program = self.harness(name.to_owned(), &made_file(&made, file)?, &[])?;
                Ok(Program { arguments: Vec::new(), ..program })
            })
            .collect()
    }

    /// Builds tests, for processors with a feature.
    fn test(&self, what: &[&str], feature: Option<&str>) -> Result<Vec<(String, PathBuf)>> {
        let messages = self.cargo(&[&["test", "--no-run"], what].concat(), feature)?;
        Ok(messages.iter().filter_map(built).collect())
    }

    /// Runs cargo for the guest's processor. Returns its messages.
    fn cargo(&self, what: &[&str], feature: Option<&str>) -> Result<Vec<serde_json::Value>> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.root).args(what).args(["--target", TARGET, "--target-dir"]);
        match feature {
            None => cargo.arg(self.cache),
            Some(feature) => cargo.arg(self.cache.join(feature.trim_start_matches('+'))).env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
                format!("-Ctarget-feature={feature}"),
            ),
        };
        cargo.arg("--message-format=json-render-diagnostics");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", format!("{CROSS}gcc"));
        // Lines for backtraces would take a fifth of the time, and the memory of the machine.
        for profile in ["DEV", "TEST", "RELEASE"] {
            cargo.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
        }
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!(
                "cargo could not build for {TARGET}; its standard library comes with `rustup \
                 target add {TARGET}`"
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    fn strip(&self, name: &str, file: &Path) -> Result<PathBuf> {
        let folder = tools::folder(self.cache.join("stripped"))?;
        let to = folder.join(name);
        let mut strip = Command::new(format!("{CROSS}strip"));
        tools::run(strip.arg("-o").arg(&to).arg(file), &self.cache.join("strip.log"))?;
        Ok(to)
    }
}

/// The file of this name that cargo made.
fn made_file(messages: &[serde_json::Value], name: &str) -> Result<PathBuf> {
    let files = messages.iter().flat_map(|it| it["filenames"].as_array().into_iter().flatten());
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    paths
        .find(|path| path.file_name().is_some_and(|file| file == name))
        .with_context(|| format!("cargo made no {name}"))
}

/// The first program in Rust of a page.
fn first_program(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("\n```rust\n")?;
    Some(rest.split_once("\n```")?.0)
}

/// The test that a message of cargo tells of: by package and name, with its file.
fn built(message: &serde_json::Value) -> Option<(String, PathBuf)> {
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let package = message["manifest_path"].as_str()?.strip_suffix("/Cargo.toml")?;
    let package = match package.rsplit('/').next()? {
        "core" => "pagedepot".to_owned(),
        folder => format!("pagedepot-{folder}"),
    };
    let is_lib = message["target"]["kind"][0] == "lib";
    let name = if is_lib { "lib" } else { message["target"]["name"].as_str()? };
    Some((format!("{package}-{name}"), file))
}

/// Compiles the machine's first program.
pub fn init(cache: &Path) -> Result<PathBuf> {
    let source = cache.join("init.c");
    fs::write(&source, include_str!("init.c"))?;
    let program = cache.join("init");
    let mut compiler = Command::new(format!("{CROSS}gcc"));
    compiler.args(["-O2", "-Wall", "-Wextra", "-static", "-o"]).arg(&program).arg(&source);
    tools::run(&mut compiler, &cache.join("cc.log"))
        .context("a static program needs the C library's archive (libc6-dev-arm64-cross)")?;
    Ok(program)
}

/// The C library's files that tests load: those in `newer` if they are there, or the cross
/// compiler's.
pub fn libraries(newer: Option<&Path>) -> Result<Vec<PathBuf>> {
    ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]
        .into_iter()
        .map(|name| {
            if let Some(path) = newer.map(|at| at.join(name)).filter(|path| path.exists()) {
                return Ok(path);
            }
            let mut compiler = Command::new(format!("{CROSS}gcc"));
            let found = tools::output(compiler.arg(format!("-print-file-name={name}")))?;
            let path = PathBuf::from(found.trim());
            // Without a folder: it knows of no such file.
            match path.is_absolute() {
                true => Ok(path),
                false => bail!("the cross compiler has no {name}: install libc6-arm64-cross"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_are_named_by_package() {
        let message = |folder: &str, kind: &str, name: &str, test: bool| {
            json!({
                "manifest_path": format!("/a/crates/{folder}/Cargo.toml"),
                "target": { "kind": [kind], "name": name },
                "profile": { "test": test },
                "executable": "/a/b",
            })
        };
        let name = |message| built(&message).map(|(name, _)| name);
        assert_eq!(name(message("core", "lib", "pagedepot", true)).unwrap(), "pagedepot-lib");
        assert_eq!(name(message("linux", "test", "depot", true)).unwrap(), "pagedepot-linux-depot");
        assert_eq!(name(message("linux", "test", "depot", false)), None);
    }

    #[test]
    fn the_readme_has_a_first_program() {
        let page = include_str!("../../../../README.md");
        let program = first_program(page).unwrap();
        assert!(program.contains("fn main()") && !program.contains("```"), "{program}");
    }

    #[test]
    fn a_program_runs_without_registration_under_a_name_of_its_own() {
        let program = Program {
            name: "pagedepot-linux-depot".to_owned(),
            file: PathBuf::from("/a/b"),
            arguments: vec![],
            environment: vec![],
            machines: Machines::First,
        };
        let without = program.without_rseq();
        assert_ne!(without.name, program.name);
        assert_eq!(without.environment, ["GLIBC_TUNABLES=glibc.pthread.rseq=0"]);
        assert!(program.is_of_linux());
    }
}
