//! Installing the C library: header, static and shared library, pkg-config file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::tools;

/// The version of the crates, which have one.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The part of it that programs find the shared library by, as in `crates/capi/build.rs`.
fn soname_version() -> String {
    match env!("CARGO_PKG_VERSION_MAJOR") {
        "0" => concat!("0.", env!("CARGO_PKG_VERSION_MINOR")).to_owned(),
        major => major.to_owned(),
    }
}

/// Options of `cargo xtask install`.
#[derive(Debug, Args)]
pub struct Options {
    /// Install below DIR: DIR/include, DIR/lib, DIR/lib/pkgconfig
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Poison free pages for AddressSanitizer and valgrind: for tests, slower
    #[arg(long)]
    poison: bool,
    /// Note which lines of programs hold pages, for pagedepot_allocinfo(): slower
    #[arg(long)]
    call_sites: bool,
}

impl Options {
    /// Installs into `prefix`, for programs.
    pub fn plain(prefix: &Path) -> Self {
        Options { prefix: prefix.to_owned(), poison: false, call_sites: false }
    }
}

/// Builds and installs.
///
/// # Errors
/// When cargo fails, or a file cannot be written; those written before stay.
pub fn run(options: &Options) -> Result<()> {
    let built = build(options)?;
    let prefix = &options.prefix;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let pkgconfig = lib.join("pkgconfig");
    for folder in [&include, &pkgconfig] {
        fs::create_dir_all(folder).with_context(|| {
            format!(
                "cannot make {}: give --prefix a folder that you may write to",
                folder.display()
            )
        })?;
    }
    // With the path that programs are told, which must hold wherever they are compiled.
    let prefix = prefix.canonicalize().with_context(|| format!("no {}", prefix.display()))?;
    let shared = format!("libpagedepot.so.{VERSION}");
    copy(&tools::root()?.join("crates/capi/include/pagedepot.h"), &include.join("pagedepot.h"))?;
    copy(&built.archive, &lib.join("libpagedepot.a"))?;
    copy(&built.shared, &lib.join(&shared))?;
    link(&shared, &lib.join(format!("libpagedepot.so.{}", soname_version())))?;
    link(&shared, &lib.join("libpagedepot.so"))?;
    let file = pkgconfig.join("pagedepot.pc");
    fs::write(&file, pkg_config(&prefix))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("installed pagedepot {VERSION} below {}", prefix.display());
    println!(
        "compile with: PKG_CONFIG_PATH={} pkg-config --cflags --libs pagedepot",
        pkgconfig.display()
    );
    Ok(())
}

/// The files that cargo made.
struct BuildFiles {
    archive: PathBuf,
    shared: PathBuf,
}

fn build(options: &Options) -> Result<BuildFiles> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tools::root()?).args([
        "build",
        "--release",
        "--package",
        "pagedepot-c",
        "--lib",
    ]);
    // One line of JSON for each thing that it makes, with the paths; errors as always.
    cargo.arg("--message-format=json-render-diagnostics");
    for (is_wanted, feature) in [(options.poison, "poison"), (options.call_sites, "allocinfo")] {
        if is_wanted {
            cargo.args(["--features", feature]);
        }
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo could not build the crate pagedepot-c");
    }
    let made: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|name| name.as_str().map(PathBuf::from))
        .collect();
    let find = |name: &str| {
        let is_it = |path: &&PathBuf| path.file_name().is_some_and(|file| file == name);
        made.iter().find(is_it).cloned().with_context(|| format!("cargo made no {name}"))
    };
    Ok(BuildFiles { archive: find("libpagedepot_c.a")?, shared: find("libpagedepot_c.so")? })
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         \n\
         Name: pagedepot\n\
         Description: A page allocator whose per-CPU caches can be taken back without interrupts\n\
         Version: {VERSION}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lpagedepot\n\
         Libs.private: -lgcc_s -lpthread -ldl -lm -lc\n",
        prefix.display()
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // A running program may have the old file mapped: a new one takes its name.
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn link(target: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    symlink(target, at).with_context(|| format!("cannot link {}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pkg_config_file_names_the_folders() {
        let text = pkg_config(Path::new("/opt/pd"));
        assert!(text.starts_with("prefix=/opt/pd\nincludedir=${prefix}/include\n"), "{text}");
        assert!(text.contains("Libs: -L${libdir} -lpagedepot\n"), "{text}");
    }
}
