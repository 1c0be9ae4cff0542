//! Differences of machine and settings, because of which files should not be compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::columns::NamedDocument;
use pagedepot_cli::report::document::{Document, ResultRow};

/// The differences between the first file and each other one, in words.
pub fn differences(files: &[NamedDocument]) -> Vec<String> {
    let Some((first, others)) = files.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for other in others {
        for (what, here, there) in between(&first.document, &other.document) {
            let (first, other) = (first.path.display(), other.path.display());
            found.push(format!("{what} is {here} in {first}, and {there} in {other}"));
        }
    }
    found
}

/// A difference between two documents: its name, and the value in each.
fn between(a: &Document, b: &Document) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut check = |what: String, a: Option<String>, b: Option<String>| {
        if a != b {
            let text = |value: Option<String>| value.unwrap_or_else(|| "not given".to_owned());
            found.push((what, text(a), text(b)));
        }
    };
    let names: BTreeSet<&String> = a.machine.keys().chain(b.machine.keys()).collect();
    for name in names {
        let value = |of: &Document| of.machine.get(name).map(Value::to_string);
        check(format!("machine {name}"), value(a), value(b));
    }
    let command = |of: &Document| Some(of.command.clone()).filter(|command| !command.is_empty());
    check("command".to_owned(), command(a), command(b));
    check("seed".to_owned(), a.seed.map(|s| s.to_string()), b.seed.map(|s| s.to_string()));
    let settings = |of: &Document| of.settings.as_ref().map(Value::to_string);
    check("settings".to_owned(), settings(a), settings(b));
    let (units_a, units_b) = (units(&a.results), units(&b.results));
    for (metric, unit) in &units_a {
        if let Some(other) = units_b.get(metric) {
            check(format!("unit of {metric}"), Some((*unit).to_owned()), Some((*other).to_owned()));
        }
    }
    found
}

fn units(rows: &[ResultRow]) -> BTreeMap<&str, &str> {
    rows.iter().map(|row| (row.metric.as_str(), row.unit.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, from: &str, to: &str) -> NamedDocument {
        let text = r#"{"schema":1,"machine":{"cpu":"A","cpus":2},"command":"bench hot","seed":1,
            "results":[{"workload":"hot","design":"depot","metric":"pair_ns","unit":"ns",
                "cpus":1,"samples":[1]}]}"#;
        NamedDocument {
            path: path.into(),
            document: Document::parse(&text.replacen(from, to, 1), path).unwrap(),
        }
    }

    #[test]
    fn only_what_differs_is_named() {
        let base = || file("a", "", "");
        assert!(differences(&[base()]).is_empty());
        assert!(differences(&[base(), file("b", "", "")]).is_empty());
        assert!(
            differences(&[base(), file("b", "\"samples\":[1]", "\"samples\":[2,3]")]).is_empty()
        );
        for (from, to, says) in [
            (r#""cpu":"A""#, r#""cpu":"B""#, r#"machine cpu is "A" in a, and "B" in b"#),
            (r#","cpus":2}"#, "}", "machine cpus is 2 in a, and not given in b"),
            ("bench hot", "bench pft", "command is bench hot in a, and bench pft in b"),
            (r#""command":"bench hot","#, "", "command is bench hot in a, and not given in b"),
            (r#""seed":1"#, r#""seed":2"#, "seed is 1 in a, and 2 in b"),
            (r#""seed":1"#, r#""seed":1,"settings":{"quick":true}"#, "settings is not given in a"),
            (r#""unit":"ns""#, r#""unit":"s""#, "unit of pair_ns is ns in a, and s in b"),
        ] {
            let found = differences(&[base(), file("b", from, to)]);
            assert!(matches!(&found[..], [one] if one.contains(says)), "{found:?}");
        }
    }
}
