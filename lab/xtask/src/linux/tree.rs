//! A source tree with our hooks, the glue, and the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::hooks::{Hooks, parse_version};
use xtask::source::Source;
use xtask::tools::{self, run, write_if_changed};

/// Files of `examples/linux/glue` that go into the kernel's build, and their names in `mm/`.
const GLUE: [(&str, &str); 5] = [
    ("pagedepot.h", "pagedepot.h"),
    ("pagedepot.c", "pagedepot.c"),
    ("rivals.c", "pagedepot_rivals.c"),
    ("zone_shelf.c", "pagedepot_zone_shelf.c"),
    ("bench.c", "pagedepot_bench.c"),
];
/// Suffix of the copy beside each file with hooks: the file as it was before.
const ORIGINAL: &str = "before-pagedepot";

/// Builds `examples/linux` to one object whose only global symbols are its C functions.
pub fn library(root: &Path, cache: &Path, log: &Path) -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-none";
    let target_dir = cache.join("library");
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(root.join("examples/linux"))
        .args(["build", "--release", "--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    run(&mut build, log).with_context(|| {
        format!(
            "examples/linux does not build; it needs the core library: rustup target add {TARGET}"
        )
    })?;
    let release = target_dir.join(TARGET).join("release");
    let archive = release.join("libpagedepot_in_linux.a");
    let members = tools::output(Command::new("ar").arg("t").arg(&archive))?;
    let member = members
        .lines()
        .find(|member| member.starts_with("pagedepot_in_linux"))
        .context("the library has no object of ours")?
        .to_owned();
    run(Command::new("ar").current_dir(&release).arg("x").arg(&archive).arg(&member), log)?;
    let object = release.join("pagedepot_lib.o");
    // One section per kind; names of functions are longer than Linux's symbol table allows.
    let script = root.join("examples/linux/glue/merge.ld");
    let mut link = Command::new("ld");
    link.current_dir(&release).args(["-r", "-x", "-T"]).arg(script).arg("-o").arg(&object);
    run(link.arg(&member), log)?;
    run(
        Command::new("objcopy")
            .args(["--strip-debug", "--wildcard"])
            .args(["--keep-global-symbol", "depot_*"])
            .arg(&object),
        log,
    )?;
    let _ = fs::remove_file(release.join(member));
    Ok(object)
}

/// Puts hooks, glue and library into a tree. What is as it was before keeps its time, so that a
/// second build is short.
pub fn hook(root: &Path, source: &Source, library: &Path, native_barriers: bool) -> Result<usize> {
    let glue = root.join("examples/linux/glue");
    let text = fs::read_to_string(glue.join("hooks.txt"))?;
    let version = parse_version(&source.version).context("a version of Linux")?;
    let hooks = Hooks::parse(&text, version)?;
    for file in hooks.files() {
        let path = source.folder.join(file);
        let original = original(&path);
        if !original.exists() {
            fs::copy(&path, &original).with_context(|| format!("there is no {file}"))?;
        }
    }
    let patched = hooks.patched(|file| {
        let path = original(&source.folder.join(file));
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    })?;
    for (file, text) in patched {
        write_if_changed(&source.folder.join(file), text.as_bytes())?;
    }
    for (from, to) in GLUE {
        write_if_changed(&source.folder.join("mm").join(to), &fs::read(glue.join(from))?)?;
    }
    write_if_changed(&source.folder.join("mm/pagedepot_lib.o_shipped"), &fs::read(library)?)?;
    if native_barriers {
        let barriers = fs::read(glue.join("um-barrier.h"))?;
        write_if_changed(&source.folder.join("arch/x86/um/asm/barrier.h"), &barriers)?;
    }
    Ok(hooks.lines())
}

fn original(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ORIGINAL);
    PathBuf::from(name)
}

/// The Linux that is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// User-mode Linux.
    User,
    /// An x86-64 kernel for a guest, without preemption.
    Guest,
    /// A guest with full preemption, and checks of its use.
    Preempted,
    /// A guest like [`Guest`](Kind::Guest), with nodes of memory and cpusets.
    Numa,
    /// A guest with `PREEMPT_RT`, of the newest Linux, and checks of its locks.
    Realtime,
    /// A guest like [`Guest`](Kind::Guest), of a Linux before 6.0, without the library.
    Old,
}

impl Kind {
    fn arch(self) -> &'static str {
        match self {
            Kind::User => "ARCH=um",
            Kind::Guest | Kind::Preempted | Kind::Numa | Kind::Realtime | Kind::Old => {
                "ARCH=x86_64"
            }
        }
    }

    fn fragments(self) -> &'static [&'static str] {
        match self {
            Kind::User => &["um.config"],
            Kind::Guest | Kind::Old => &["x86.config", "preempt-none.config"],
            Kind::Preempted => &["x86.config", "preempt-full.config"],
            Kind::Numa => &["x86.config", "preempt-none.config", "numa.config"],
            Kind::Realtime => &["x86.config", "preempt-rt.config"],
        }
    }

    /// Name of the kind in folders and results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::User => "um",
            Kind::Guest => "x86",
            Kind::Preempted => "x86-preempt",
            Kind::Numa => "x86-numa",
            Kind::Realtime => "x86-rt",
            Kind::Old => "x86-old",
        }
    }

    /// The target of make, and where it puts the kernel.
    fn target(self) -> (&'static str, &'static str) {
        match self {
            Kind::User => ("linux", "linux"),
            Kind::Guest | Kind::Preempted | Kind::Numa | Kind::Realtime | Kind::Old => {
                ("bzImage", "arch/x86/boot/bzImage")
            }
        }
    }
}

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub image: PathBuf,
    /// The kernel with the threads' other designs, where it is built.
    pub rivals: Option<PathBuf>,
    /// The kernel's modules, for the option `initrd`.
    pub modules: PathBuf,
    /// The kernel's `System.map`.
    pub symbols: PathBuf,
}

/// Configures and builds a kernel with `files` as its first file system.
pub fn build(
    root: &Path,
    cache: &Path,
    source: &Source,
    kind: Kind,
    files: &Path,
    jobs: usize,
) -> Result<Kernel> {
    let out = tools::folder(cache.join(format!("build-{}-{}", kind.name(), source.version)))?;
    let log = out.join("log");
    let _ = fs::remove_file(&log);
    let make = || {
        let mut make = Command::new("make");
        make.current_dir(&source.folder).arg(kind.arch()).arg(format!("O={}", out.display()));
        make.env("KBUILD_BUILD_TIMESTAMP", "pagedepot");
        if kind == Kind::User {
            // By itself, user-mode Linux calls each function through a register, as no other kernel
            // does. It is linked below 2 GiB, where calls are direct by this model; modules are
            // not.
            make.args(["KCFLAGS=-mcmodel=small", "CFLAGS_MODULE=-mcmodel=large"]);
        }
        make
    };
    let mut wanted = format!("CONFIG_INITRAMFS_SOURCE=\"{}\"\n", files.display());
    for fragment in kind.fragments() {
        wanted += &fs::read_to_string(root.join("examples/linux/glue").join(fragment))?;
    }
    let stamp = out.join("fragment");
    if fs::read_to_string(&stamp).is_ok_and(|now| now == wanted) && out.join(".config").exists() {
        // Configured as it should be.
    } else {
        run(make().arg("tinyconfig"), &log)?;
        let config = out.join(".config");
        let tiny = fs::read_to_string(&config)?;
        // The last line about an option is the one that counts.
        fs::write(&config, format!("{tiny}\n{wanted}"))?;
        run(make().arg("olddefconfig"), &log)?;
        check_config(&fs::read_to_string(&config)?, &wanted)?;
        fs::write(&stamp, &wanted)?;
    }
    let (target, image) = kind.target();
    let image = out.join(image);
    let built = |make: &mut Command| {
        run(make.arg(format!("-j{jobs}")).arg(target), &log)
            .with_context(|| format!("Linux {} does not build", source.version))
    };
    let mut rivals = None;
    if kind == Kind::User {
        // They differ in one object. Modules are the plain kernel's.
        built(make().arg("CFLAGS_page_alloc.o=-DDEPOT_RIVALS"))?;
        let copy = out.join("linux-rivals");
        fs::copy(&image, &copy)?;
        rivals = Some(copy);
    }
    built(make().arg("modules"))?;
    let modules = pack_modules(&out, &log)?;
    Ok(Kernel { image, rivals, modules, symbols: out.join("System.map") })
}

/// A second archive of first files, with the module that is loaded: it is linked after the kernel,
/// which holds the first.
fn pack_modules(out: &Path, log: &Path) -> Result<PathBuf> {
    let (list, packed) = (out.join("module-files"), out.join("modules.cpio"));
    let module = out.join("lib/test_vmalloc.ko");
    fs::write(&list, format!("file /test_vmalloc.ko {} 644 0 0\n", module.display()))?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "\"$0\" \"$1\" > \"$2\""]).arg(out.join("usr/gen_init_cpio"));
    run(pack.arg(&list).arg(&packed), log).context("test_vmalloc.ko cannot be packed")?;
    Ok(packed)
}

/// Checks that no option which the depot or a scenario needs was dropped for lack of another one;
/// options that only some versions have may be.
fn check_config(config: &str, wanted: &str) -> Result<()> {
    let lines: Vec<_> = config.lines().collect();
    // A later fragment may take back what an earlier one asks for.
    let is_taken_back = |line: &str| {
        let name = line.split('=').next().unwrap_or(line);
        wanted.lines().any(|other| other == format!("# {name} is not set"))
    };
    let dropped: Vec<_> = wanted
        .lines()
        .filter(|line| line.starts_with("CONFIG_") && !lines.contains(line))
        .filter(|line| !is_taken_back(line))
        .collect();
    let essential = [
        "CONFIG_SMP=",
        "CONFIG_COMPACTION=",
        "CONFIG_PROC_FS=",
        "CONFIG_BLK_DEV_INITRD=",
        "CONFIG_PREEMPT=",
        "CONFIG_PREEMPT_RT=",
        // Without these, scenarios would hold that test nothing.
        "CONFIG_CMA=",
        "CONFIG_HOTPLUG_CPU=",
        "CONFIG_MEMORY_HOTPLUG=",
        "CONFIG_MEMORY_HOTREMOVE=",
        "CONFIG_ARCH_MEMORY_PROBE=",
        "CONFIG_TRANSPARENT_HUGEPAGE=",
        "CONFIG_DMA_CMA=",
        "CONFIG_NO_HZ_FULL=",
        "CONFIG_CPU_ISOLATION=",
        "CONFIG_HIBERNATION=",
        "CONFIG_DEBUG_PREEMPT=",
        "CONFIG_DEBUG_ATOMIC_SLEEP=",
        "CONFIG_PROVE_LOCKING=",
        "CONFIG_X86_64_ACPI_NUMA=",
        "CONFIG_ACPI_HOTPLUG_MEMORY=",
        "CONFIG_CPUSETS=",
        "CONFIG_PROVE_RAW_LOCK_NESTING=",
        "CONFIG_DETECT_HUNG_TASK=",
    ];
    if let Some(line) = dropped.iter().find(|line| essential.iter().any(|it| line.starts_with(it)))
    {
        bail!("this version of Linux does not take {line}");
    }
    if !dropped.is_empty() {
        eprintln!("not in this version of Linux: {}", dropped.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version of Linux that has renamed a flag does not compile, so that nothing is left out
    /// without a word.
    #[test]
    fn no_code_of_the_glue_depends_on_the_name_of_a_flag() {
        let glue = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/linux/glue");
        for (file, _) in GLUE {
            let text = fs::read_to_string(glue.join(file)).unwrap();
            for name in text.lines().filter_map(|line| line.strip_prefix("#ifdef ")) {
                assert!(["CONFIG_", "DEPOT_"].iter().any(|ours| name.starts_with(ours)), "{name}");
            }
        }
    }

    #[test]
    fn options_that_scenarios_need_may_not_be_dropped() {
        let wanted = "# Comment\nCONFIG_CMA=y\nCONFIG_TTY=y\n";
        for (config, is_taken) in [
            ("CONFIG_CMA=y\nCONFIG_TTY=y\nCONFIG_OTHER=y\n", true),
            ("CONFIG_CMA=y\n# CONFIG_TTY is not set\n", true),
            ("# CONFIG_CMA is not set\nCONFIG_TTY=y\n", false),
        ] {
            assert_eq!(check_config(config, wanted).is_ok(), is_taken, "{config}");
        }
        let taken_back = format!("{wanted}# CONFIG_CMA is not set\n");
        assert!(check_config("CONFIG_TTY=y\n", &taken_back).is_ok());
        for wanted in ["CONFIG_PROVE_LOCKING=y\n", "CONFIG_NO_HZ_FULL=y\n"] {
            assert!(check_config("", wanted).is_err(), "{wanted}");
        }
    }
}
