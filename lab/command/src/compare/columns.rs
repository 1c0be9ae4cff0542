//! Makes the columns of a table from result files.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::metric;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::document::{Document, ResultRow};

/// A column of a comparison: a design of a file, or of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    /// The design that all rows are of: what is compared with the same of another file.
    pub design: String,
    pub rows: Vec<ResultRow>,
    /// The file, and the place among its columns: the stars that a source printed compare with its
    /// own first column.
    pub origin: Origin,
}

/// The file and the design of a column's figures: see [`Column::origin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub file: usize,
    pub column: usize,
}

impl Column {
    /// Whether the stars that this column's source printed compare with `base`.
    pub fn stars_are_against(&self, base: &Column) -> bool {
        self.origin.file == base.origin.file && base.origin.column == 0
    }
}

/// A result file and where it is from.
#[derive(Debug)]
pub struct NamedDocument {
    pub path: PathBuf,
    pub document: Document,
}

impl NamedDocument {
    /// The file's name without `.json`: what mmtests would call a run.
    pub fn stem(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The error for a name that no column has.
pub fn no_column<'n>(name: &str, there: impl Iterator<Item = &'n str>) -> Failure {
    let there = there.collect::<Vec<_>>().join(", ");
    Failure::Usage(format!("no column is called {name}; there are {there}"))
}

/// Rows by design, in the order in which designs come up.
pub fn by_design(rows: impl IntoIterator<Item = ResultRow>) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for row in rows {
        match columns.iter_mut().find(|column| column.name == row.design) {
            Some(column) => column.rows.push(row),
            None => {
                let origin = Origin { file: 0, column: columns.len() };
                let design = row.design.clone();
                columns.push(Column { name: design.clone(), design, rows: vec![row], origin });
            }
        }
    }
    columns
}

/// The columns of files: of one file its designs; of several that have one design each, and the
/// same, the files; else `FILE:DESIGN`.
pub fn of_files(files: &[NamedDocument]) -> Vec<Column> {
    let alone = files.len() == 1;
    let stems: Vec<String> = files.iter().map(NamedDocument::stem).collect();
    let names: Vec<String> = files
        .iter()
        .zip(&stems)
        .map(|(file, stem)| {
            let unique = stems.iter().filter(|other| *other == stem).count() == 1;
            if unique { stem.clone() } else { file.path.display().to_string() }
        })
        .collect();
    let per_file: Vec<Vec<Column>> =
        files.iter().map(|file| by_design(file.document.results.iter().cloned())).collect();
    let mut designs = per_file.iter().flatten().map(|column| &column.name);
    let first = designs.next();
    let same_design = designs.all(|design| Some(design) == first)
        && per_file.iter().all(|columns| columns.len() == 1);
    let mut columns = Vec::new();
    for (nth, (file, of_file)) in names.into_iter().zip(per_file).enumerate() {
        for column in of_file {
            let name = match (alone, same_design) {
                (true, _) => column.name,
                (false, true) => file.clone(),
                (false, false) => format!("{file}:{}", column.name),
            };
            let origin = Origin { file: nth, ..column.origin };
            columns.push(Column { name, origin, ..column });
        }
    }
    beside_each_other(columns)
}

/// The columns with those of one design beside each other: what is compared.
fn beside_each_other(mut columns: Vec<Column>) -> Vec<Column> {
    let mut designs: Vec<String> = Vec::new();
    for column in &columns {
        if !designs.contains(&column.design) {
            designs.push(column.design.clone());
        }
    }
    columns.sort_by_key(|column| designs.iter().position(|design| *design == column.design));
    columns
}

/// The column that each column is compared with, itself where there is none. With several files
/// that is the same design in the first of them; with one, or where the first file has no design of
/// another, it is the first column.
pub fn bases(columns: &[Column]) -> Vec<usize> {
    let first_file = columns.iter().map(|column| column.origin.file).min().unwrap_or(0);
    let same = |column: &Column| {
        let is_base =
            |other: &Column| other.origin.file == first_file && other.design == column.design;
        columns.iter().position(is_base)
    };
    let of_others = || columns.iter().filter(|column| column.origin.file != first_file);
    if !of_others().any(|column| same(column).is_some()) {
        return vec![0; columns.len()];
    }
    let base = |(at, column): (usize, &Column)| {
        if column.origin.file == first_file { at } else { same(column).unwrap_or(at) }
    };
    columns.iter().enumerate().map(base).collect()
}

/// Makes a column of each value of a param, where rows have it: the rows then differ in nothing
/// else.
///
/// # Errors
/// When no row has it.
pub fn split(columns: Vec<Column>, param: &str) -> Result<Vec<Column>, Failure> {
    let rows = || columns.iter().flat_map(|column| &column.rows);
    if !rows().any(|row| row.params.contains_key(param)) {
        let there: BTreeSet<&str> =
            rows().flat_map(|row| row.params.keys()).map(String::as_str).collect();
        let there = there.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("no result has the param {param}; there are {there}")));
    }
    let alone = columns.len() == 1;
    let mut split: Vec<Column> = Vec::new();
    for Column { name, design, rows, origin } in columns {
        for mut row in rows {
            let value = row.params.remove(param).map(|value| metric::param(param, value));
            let (name, origin) = match value {
                // Stars that a source printed are about whole columns.
                Some(value) if alone => (value, Origin { column: usize::MAX, ..origin }),
                Some(value) => (format!("{name} {value}"), Origin { column: usize::MAX, ..origin }),
                None => (name.clone(), origin),
            };
            match split.iter_mut().find(|column| column.name == name) {
                Some(column) => column.rows.push(row),
                None => {
                    let design = design.clone();
                    split.push(Column { name, design, rows: vec![row], origin });
                }
            }
        }
    }
    Ok(split)
}

/// Keeps the rows whose name is among those wanted.
///
/// # Errors
/// When no row has one of the names.
pub fn keep(
    columns: &mut Vec<Column>,
    what: &str,
    wanted: &[String],
    of: fn(&ResultRow) -> &str,
) -> Result<(), Failure> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut there: Vec<String> = Vec::new();
    for row in columns.iter().flat_map(|column| &column.rows) {
        if !there.iter().any(|name| name == of(row)) {
            there.push(of(row).to_owned());
        }
    }
    if let Some(missing) = wanted.iter().find(|name| !there.contains(name)) {
        let there = there.join(", ");
        return Err(Failure::Usage(format!(
            "no result has the {what} {missing}; there are {there}"
        )));
    }
    for column in columns.iter_mut() {
        column.rows.retain(|row| wanted.iter().any(|name| name == of(row)));
    }
    columns.retain(|column| !column.rows.is_empty());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, designs: &[&str]) -> NamedDocument {
        let rows: Vec<_> = designs
            .iter()
            .map(|design| ResultRow { design: (*design).to_owned(), ..ResultRow::default() })
            .collect();
        let mut document = Document::parse(
            r#"{"schema":1,
                "results":[{"workload":"hot","design":"depot","metric":"pair_ns","cpus":1}]}"#,
            path,
        )
        .unwrap();
        document.results = rows;
        NamedDocument { path: path.into(), document }
    }

    fn names(files: Vec<NamedDocument>) -> Vec<String> {
        of_files(&files).into_iter().map(|column| column.name).collect()
    }

    #[test]
    fn columns_are_called_by_what_tells_them_apart() {
        assert_eq!(names(vec![file("a.json", &["depot", "spin", "depot"])]), ["depot", "spin"]);
        assert_eq!(names(vec![file("x/a.json", &["spin"]), file("b.json", &["spin"])]), ["a", "b"]);
        assert_eq!(
            names(vec![file("a.json", &["rcu"]), file("b.json", &["spin"])]),
            ["a:rcu", "b:spin"]
        );
        assert_eq!(
            names(vec![file("x/a.json", &["rcu"]), file("y/a.json", &["rcu"])]),
            ["x/a.json", "y/a.json"]
        );
    }

    #[test]
    fn a_design_is_compared_with_itself_in_the_first_file() {
        let of = |files: Vec<NamedDocument>| {
            let columns = of_files(&files);
            let bases = bases(&columns);
            let name = |at: usize| columns[at].name.clone();
            (0..columns.len())
                .map(|at| format!("{} {}", name(at), name(bases[at])))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(vec![file("a.json", &["spin", "depot"])]), ["spin spin", "depot spin"]);
        assert_eq!(
            of(vec![file("a.json", &["spin", "depot"]), file("b.json", &["depot", "spin", "rcu"])]),
            ["a:spin a:spin", "b:spin a:spin", "a:depot a:depot", "b:depot a:depot", "b:rcu b:rcu"]
        );
        assert_eq!(
            of(vec![file("a.json", &["rcu"]), file("b.json", &["spin"])]),
            ["a:rcu a:rcu", "b:spin a:rcu"]
        );
    }

    #[test]
    fn filters_name_what_there_is() {
        let mut columns = of_files(&[file("a.json", &["depot", "spin"])]);
        let line =
            keep(&mut columns, "design", &["rcu".to_owned()], |row| &row.design).unwrap_err();
        assert!(line.to_string().contains("design rcu; there are depot, spin"), "{line}");
        keep(&mut columns, "design", &["spin".to_owned()], |row| &row.design).unwrap();
        assert_eq!(columns.len(), 1);
    }

    #[test]
    fn a_param_can_be_the_columns() {
        let row = |params: &[(&str, i64)]| ResultRow {
            design: "spin".into(),
            params: params.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            ..ResultRow::default()
        };
        let rows = [
            row(&[("policy", 0), ("streams", 1)]),
            row(&[("policy", 3), ("streams", 1)]),
            row(&[]),
        ];
        let names = |columns: &[Column]| {
            columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>()
        };
        let columns = split(by_design(rows.clone()), "policy").unwrap();
        assert_eq!(names(&columns), ["policy-0", "policy-high", "spin"]);
        assert_eq!(columns[0].rows[0].params, columns[1].rows[0].params);
        let two =
            by_design(rows.into_iter().chain([ResultRow { design: "rcu".into(), ..row(&[]) }]));
        assert_eq!(
            names(&split(two.clone(), "policy").unwrap()),
            ["spin policy-0", "spin policy-high", "spin", "rcu"]
        );
        let line = split(two, "batch").unwrap_err().to_string();
        assert!(line.ends_with("there are policy, streams"), "{line}");
    }
}
