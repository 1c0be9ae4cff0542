//! The page that `report` writes, in headless Chromium: on a phone and on a desk, in the dark and
//! in print, without an error on the console and without scrolling sideways. Where there is no
//! Chromium, the test says so.

#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RESULTS: [(&str, &str); 2] = [
    ("before.json", include_str!("data/before.json")),
    ("after.json", include_str!("data/after.json")),
];

/// A folder with the page, and its plots.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files = RESULTS.map(|(name, text)| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    });
    let output = Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"))
        .arg("report")
        .args(&files)
        .arg("-o")
        .arg(folder.path().join("report.html"))
        .arg("--plots")
        .arg(folder.path().join("plots"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

fn chromium() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut found =
        std::env::split_paths(&paths).flat_map(|folder| names.map(|name| folder.join(name)));
    found.find(|path| path.is_file())
}

#[test]
fn each_plot_is_saved_both_ways() {
    let folder = written();
    let mut names: Vec<String> = fs::read_dir(folder.path().join("plots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let svgs = names.iter().filter(|name| name.ends_with(".svg")).count();
    assert!(svgs >= 5 && 2 * svgs == names.len(), "{names:?}");
    for part in ["pair-ns-by-cpus", "cached-pages-over-ms", "page-table-bytes", "memory-in-use"] {
        assert!(names.iter().any(|name| name.contains(part)), "{part} is not in {names:?}");
    }
}

#[test]
fn a_page_of_unlike_files_says_so() {
    let folder = written();
    let path = |name: &str| folder.path().join(name);
    let says = "unlike results: command is ";
    assert!(!fs::read_to_string(path("report.html")).unwrap().contains(says));
    let other = RESULTS[1].1.replacen("\"command\":\"", "\"command\":\"other ", 1);
    fs::write(path("other.json"), other).unwrap();
    let mut report = Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
    report.args(["report", "before.json", "other.json"]).current_dir(folder.path());
    assert!(report.output().unwrap().status.success());
    assert!(fs::read_to_string(path("report.html")).unwrap().contains(says));
}

#[test]
fn bad_results_and_bad_outputs_are_refused() {
    let folder = written();
    let report = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"))
            .arg("report")
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, says) in [
        (&[][..], "RESULTS"),
        (&["report.html"], "no result file"),
        (&["before.json", "-o", "/no/such/folder/x.html"], "give a path that you may write to"),
    ] {
        let (code, line) = report(arguments);
        let says = line.contains(says) || line.contains("not a result file");
        assert!(code == Some(2) && says && line.lines().count() == 1, "{arguments:?}: {line}");
    }
}

/// A script that only this test adds: the page then says what it shows.
const PROBE: &str = "<script>const d = document.documentElement; d.dataset.seen = [innerWidth, \
    d.scrollWidth <= innerWidth ? 'fits' : 'wide', \
    matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light', \
    getComputedStyle(document.body).backgroundColor, \
    document.querySelectorAll('figure svg').length].join(' '); \
    parent.postMessage(d.dataset.seen, '*');</script></body>";

/// A phone: windows of headless Chromium are 500 pixels wide at least, frames need not be.
const PHONE: &str = "<!doctype html><link rel=icon href='data:,'>\
    <script>addEventListener('message', event => \
    document.documentElement.dataset.seen = event.data)</script>\
    <iframe src=probed.html style='width:380px;height:900px;border:0'></iframe>";

fn shown(browser: &Path, page: &Path, more: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let console: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .map(str::to_owned)
        .collect();
    assert!(console.is_empty(), "{console:?}");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen = dom.split_once("data-seen=\"").map(|(_, rest)| rest.split('"').next().unwrap());
    (seen.unwrap_or_default().to_owned(), dom)
}

#[test]
fn the_page_opens_everywhere() {
    let Some(browser) = chromium() else { return skip::skip("no chromium") };
    let folder = written();
    let page = folder.path().join("report.html");
    let text = fs::read_to_string(&page).unwrap();
    assert!(!text.contains("<script") && !text.contains("src=\"http"));
    let probed = folder.path().join("probed.html");
    fs::write(&probed, text.replace("</body>", PROBE)).unwrap();
    let phone = folder.path().join("phone.html");
    fs::write(&phone, PHONE).unwrap();
    for (width, more, scheme, paper) in [
        (1400, &[][..], "light", "rgb(255, 255, 255)"),
        (380, &[], "light", "rgb(255, 255, 255)"),
        (1400, &["--force-dark-mode"], "dark", "rgb(22, 24, 28)"),
        (380, &["--force-dark-mode"], "dark", "rgb(22, 24, 28)"),
    ] {
        let usual = ["--dump-dom", "--window-size=1400,900", "--virtual-time-budget=3000"];
        let arguments: Vec<&str> = usual.into_iter().chain(more.iter().copied()).collect();
        let page = if width == 380 { &phone } else { &probed };
        let (seen, dom) = shown(&browser, page, &arguments);
        let fits = seen.contains(" fits ") && seen.contains(scheme) && seen.contains(paper);
        assert!(fits, "{width} {scheme}: {seen}\n{}", &dom[..dom.len().min(300)]);
        assert!(seen.starts_with(&format!("{width} ")), "{width}: {seen}");
    }
    let pdf = folder.path().join("report.pdf");
    shown(&browser, &page, &[&format!("--print-to-pdf={}", pdf.display())]);
    assert!(fs::read(pdf).unwrap().starts_with(b"%PDF"));
}
