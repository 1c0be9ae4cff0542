//! Output: rows for scripts, tables for people, progress, and the machine that results are from.
//!
//! | file | what |
//! |---|---|
//! | `rows` | a report: figures, and the tables and sentences that go with them |
//! | `block` | a report's text, laid out for a width |
//! | `columns` | what the headings of tables mean, and which columns give way |
//! | `terminal` | how wide the terminal is, and whether it shows colours |
//! | `account` | what was read of an input, and what was not |
//! | `json`, `document` | result files, written and read |
//! | `output` | files that are tried first and written last |

pub mod account;
pub mod baseline;
pub mod better;
pub mod block;
pub mod columns;
pub mod document;
pub mod json;
pub mod machine;
pub mod output;
pub mod progress;
pub mod rows;
pub mod table;
pub mod terminal;

pub use progress::Progress;
pub use rows::Report;

pub use pagedepot_trace::printable;

/// Text for people, each of its lines made [`printable`]: names in it may come from files.
pub fn lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// `1 CPU`, `2 CPUs`, `2 processes`.
pub fn counted(many: usize, what: &str) -> String {
    let ending = match what {
        _ if many == 1 => "",
        hissing if hissing.ends_with(['s', 'x', 'h']) => "es",
        _ => "s",
    };
    format!("{many} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn plurals_end_as_they_should() {
        let all = [counted(1, "process"), counted(2, "process"), counted(0, "CPU")];
        assert_eq!(all, ["1 process", "2 processes", "0 CPUs"]);
    }
}
