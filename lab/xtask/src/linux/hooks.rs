//! Puts hooks into Linux's source: lines of ours, at places that are found by the names of
//! functions and of what these call.
//!
//! `examples/linux/glue/hooks.txt` says which lines go where, and describes its own format. Kernel
//! style makes C easy to find one's way in without parsing it: a function's name stands on a line
//! that begins in column 0, its body is between a `{` and a `}` in column 0, and its declarations
//! end at the first empty line.

use anyhow::{Context, Result, bail, ensure};

/// A version of Linux: major and minor.
pub type Version = (u32, u32);
/// The name of a hook's function that stands for all of the file.
const WHOLE_FILE: &str = "*";

/// The first version, and the first that is too new.
type Range = (Version, Option<Version>);

/// Lines for a place.
#[derive(Debug, PartialEq, Eq)]
struct Hook<'h> {
    file: &'h str,
    name: &'h str,
    place: Place<'h>,
    lines: Vec<&'h str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place<'h> {
    /// A place after the declarations.
    Top,
    /// The place before the only line of the body with this text.
    Before(&'h str),
    /// The places before each line of the body with this text.
    Each(&'h str),
    /// The place after the only line of the body with this text.
    After(&'h str),
    /// The place after the body.
    Behind,
    /// The end of the file.
    End,
}

/// The lines to insert, by file.
pub struct Hooks<'h>(Vec<Hook<'h>>);

impl<'h> Hooks<'h> {
    /// The hooks that `version` gets.
    pub fn parse(text: &'h str, version: Version) -> Result<Self> {
        let mut hooks = Vec::new();
        let mut file = None;
        let mut wanted = true;
        let is_in = |(since, before): Range| {
            since <= version && before.is_none_or(|before| version < before)
        };
        for (at, line) in text.lines().enumerate() {
            let here = || format!("hooks, line {}: {line:?}", at + 1);
            if let Some(head) = line.strip_prefix("= ") {
                let (name, range) = split_range(head).with_context(here)?;
                file = Some((name.trim(), is_in(range)));
                wanted = false;
            } else if let Some(head) = line.strip_prefix("@ ") {
                let no_file = || format!("{}: no file before it", here());
                let (file, is_file_wanted) = file.with_context(no_file)?;
                let (hook, range) = parse_head(file, head).with_context(here)?;
                wanted = is_file_wanted && is_in(range);
                if wanted {
                    hooks.push(hook);
                }
            } else if line.is_empty() || line.starts_with("# ") || line == "#" {
            } else if hooks.is_empty() && file.is_none() {
                bail!("{}: neither a file nor a hook", here());
            } else if let Some(hook) = hooks.last_mut().filter(|_| wanted) {
                hook.lines.push(line);
            }
        }
        match hooks.iter().find(|hook| hook.lines.is_empty()) {
            Some(hook) => bail!("the hook in {} inserts nothing", hook.name),
            None => Ok(Hooks(hooks)),
        }
    }

    /// The files that get some, each once.
    pub fn files(&self) -> Vec<&'h str> {
        let mut files: Vec<_> = self.0.iter().map(|hook| hook.file).collect();
        files.dedup();
        files
    }

    /// Number of lines that are inserted in all.
    pub fn lines(&self) -> usize {
        self.0.iter().map(|hook| hook.lines.len()).sum()
    }

    /// The files with their hooks, of what `read` says is in them.
    pub fn patched(&self, read: impl Fn(&str) -> Result<String>) -> Result<Vec<(&'h str, String)>> {
        let patch = |file| {
            let text = self.insert_into(file, &read(file)?).with_context(|| {
                format!("{file} is not as the hooks expect: this kernel needs hooks of its own")
            })?;
            Ok((file, text))
        };
        self.files().into_iter().map(patch).collect()
    }

    /// The text of `file` with its hooks.
    fn insert_into(&self, file: &str, text: &str) -> Result<String> {
        let lines: Vec<&str> = text.lines().collect();
        let mut insertions = Vec::new();
        for hook in self.0.iter().filter(|hook| hook.file == file) {
            let places = hook
                .places(&lines)
                .with_context(|| format!("{} in {}", describe(hook.place), hook.name))?;
            insertions.extend(places.into_iter().map(|at| (at, &hook.lines)));
        }
        // Stable: hooks for one place stay in their order.
        insertions.sort_by_key(|(at, _)| *at);
        let mut out = String::with_capacity(text.len() + 4096);
        let mut next = insertions.into_iter().peekable();
        for at in 0..=lines.len() {
            while let Some((_, hook)) = next.next_if(|(place, _)| *place == at) {
                hook.iter().for_each(|line| out.extend([line, "\n"]));
            }
            if let Some(line) = lines.get(at) {
                out.extend([line, "\n"]);
            }
        }
        Ok(out)
    }
}

fn describe(place: Place<'_>) -> String {
    match place {
        Place::Top => "the top".to_owned(),
        Place::Before(text) | Place::Each(text) | Place::After(text) => {
            format!("a line with {text:?}")
        }
        Place::Behind | Place::End => "the end".to_owned(),
    }
}

/// `NAME PLACE [since X.Y] [before X.Y]`.
fn parse_head<'h>(file: &'h str, head: &'h str) -> Result<(Hook<'h>, Range)> {
    let (words, quoted, range) = match head.split_once('"') {
        Some((words, rest)) => {
            let (quoted, rest) = rest.rsplit_once('"').context("a quote that does not end")?;
            (words, Some(quoted), parse_range(rest)?)
        }
        None => {
            let (words, range) = split_range(head)?;
            (words, None, range)
        }
    };
    let (name, place) = words.trim().rsplit_once(' ').context("a name and a place are needed")?;
    let place = match (place, quoted) {
        ("top", None) => Place::Top,
        ("behind", None) => Place::Behind,
        ("end", None) => Place::End,
        ("before", Some(text)) => Place::Before(text),
        ("each", Some(text)) => Place::Each(text),
        ("after", Some(text)) => Place::After(text),
        _ => bail!("there is no place {place:?} of this form"),
    };
    Ok((Hook { file, name, place, lines: Vec::new() }, range))
}

/// Splits off a range at the end of `head`; returns the text before it, and the range.
fn split_range(head: &str) -> Result<(&str, Range)> {
    let begin = ["since ", "before "].iter().filter_map(|word| head.find(word)).min();
    let (words, range) = head.split_at(begin.unwrap_or(head.len()));
    Ok((words, parse_range(range)?))
}

/// `[since X.Y] [before X.Y]`.
fn parse_range(text: &str) -> Result<Range> {
    let mut range = ((0, 0), None);
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let version = words.next().and_then(parse_version).context("a version X.Y is needed")?;
        match word {
            "since" => range.0 = version,
            "before" => range.1 = Some(version),
            _ => bail!("{word:?} is neither since nor before"),
        }
    }
    Ok(range)
}

/// The first two numbers of a version.
pub fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl Hook<'_> {
    /// The lines that this goes before.
    fn places(&self, lines: &[&str]) -> Result<Vec<usize>> {
        if self.place == Place::End {
            return Ok(vec![lines.len()]);
        }
        let (open, close) = match self.name {
            WHOLE_FILE => (0, lines.len()),
            name => body(lines, name)?,
        };
        let with = |text: &str| -> Vec<usize> {
            (open..close).filter(|&at| lines[at].contains(text)).collect()
        };
        let only = |text: &str| match with(text)[..] {
            [at] => Ok(at),
            [] => bail!("there is none"),
            ref many => bail!("there are {}", many.len()),
        };
        Ok(match self.place {
            Place::Top => vec![behind_declarations(&lines[open..close]) + open],
            Place::Before(text) => vec![only(text)?],
            Place::After(text) => vec![only(text)? + 1],
            Place::Each(text) => {
                let all = with(text);
                ensure!(!all.is_empty(), "there is none");
                all
            }
            Place::Behind | Place::End => vec![close + 1],
        })
    }
}

/// The lines inside the only function or struct of this name, and the line that ends it.
fn body(lines: &[&str], name: &str) -> Result<(usize, usize)> {
    let is_struct = name.starts_with("struct ");
    let begins = |line: &str| {
        if is_struct {
            return line.strip_prefix(name).is_some_and(|rest| rest.trim() == "{");
        }
        let begins = line.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        begins && !line.ends_with(';') && calls(line, name)
    };
    let mut found = Vec::new();
    for at in (0..lines.len()).filter(|&at| begins(lines[at])) {
        let head = if is_struct { Some(at) } else { opening_brace(lines, at) };
        let Some(open) = head else { continue };
        let close = (open..lines.len()).find(|&at| lines[at].starts_with('}'));
        found.push((open + 1, close.with_context(|| format!("{name} does not end"))?));
    }
    match found[..] {
        [one] => Ok(one),
        [] => bail!("it is not there"),
        _ => bail!("it is there {} times", found.len()),
    }
}

/// The brace behind a function's parameters, which may take several lines; `None`: a declaration.
fn opening_brace(lines: &[&str], at: usize) -> Option<usize> {
    let end = (at..lines.len()).find(|&at| lines[at] == "{" || lines[at].ends_with(';'))?;
    (lines[end] == "{").then_some(end)
}

/// Whether `name(` is on the line, as a whole word.
fn calls(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let is_whole = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
        is_whole && line[at + name.len()..].starts_with('(')
    })
}

/// Number of lines of a body that are declarations, with the empty line behind them; 0 if there is
/// no empty line, or a blank-less body.
fn behind_declarations(body: &[&str]) -> usize {
    let first_empty = body.iter().position(|line| line.trim().is_empty());
    let is_statement = |line: &&str| {
        let line = line.trim();
        line.starts_with("if (") || line.starts_with("return") || line.contains("lock(")
    };
    match first_empty {
        Some(empty) if !body[..empty].iter().any(is_statement) => empty + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
struct zone {
	int first;
	struct lists	*lists;
};

static bool refill(struct zone *zone);

static bool refill(struct zone *zone)
{
	int got = 0;
	struct page *page;

	got = take(zone);
	return got;
}

static bool not_refill(struct zone *zone)
{
	return refill(zone);
}

static struct page *
alloc(struct zone *zone,
		int order)
{
	lock(zone);
	refill(zone);
	unlock(zone);
	refill(zone);
}
";

    fn hooked(hooks: &str, version: Version) -> Result<String> {
        let hooks = format!("= f.c\n{hooks}");
        Hooks::parse(&hooks, version)?.insert_into("f.c", SOURCE)
    }

    /// The lines around the first one with `our`.
    fn around<'t>(text: &'t str, our: &str) -> (&'t str, &'t str) {
        let lines: Vec<_> = text.lines().collect();
        let at = lines.iter().position(|line| line.contains(our)).expect("inserted");
        (lines[at - 1], lines.get(at + 1).copied().unwrap_or_default())
    }

    #[test]
    fn each_place_is_found_by_name() {
        for (hook, before, behind) in [
            ("@ struct zone after \"*lists;\"\nOURS", "\tstruct lists\t*lists;", "};"),
            ("@ refill top\nOURS", "", "\tgot = take(zone);"),
            ("@ refill before \"take(\"\nOURS", "", "\tgot = take(zone);"),
            ("@ refill behind\nOURS", "}", ""),
            ("@ not_refill top\nOURS", "{", "\treturn refill(zone);"),
            ("@ alloc top\nOURS", "{", "\tlock(zone);"),
            ("@ alloc before \"\tlock(\"\nOURS", "{", "\tlock(zone);"),
            ("@ alloc each \"refill(\"\nOURS", "\tlock(zone);", "\trefill(zone);"),
            ("@ - end\nOURS", "}", ""),
        ] {
            let text = hooked(hook, (6, 1)).unwrap();
            assert_eq!(around(&text, "OURS"), (before, behind), "{hook}");
            // Nothing is changed and nothing removed.
            let rest: Vec<_> = text.lines().filter(|line| *line != "OURS").collect();
            assert_eq!(rest, SOURCE.lines().collect::<Vec<_>>(), "{hook}");
        }
        let each = hooked("@ alloc each \"refill(\"\nOURS", (6, 1)).unwrap();
        assert_eq!(each.matches("OURS").count(), 2);
    }

    #[test]
    fn versions_choose() {
        let text = "@ refill top before 6.10\nOLD\n@ refill top since 6.10\nNEW";
        for (version, ours, not) in
            [((6, 1), "OLD", "NEW"), ((6, 10), "NEW", "OLD"), ((7, 2), "NEW", "OLD")]
        {
            let text = hooked(text, version).unwrap();
            assert!(text.contains(ours) && !text.contains(not), "{version:?}");
        }
        let text = "= f.c\n@ refill top\nONE\n= g.c since 6.0\n@ refill top before 6.10\nTWO";
        for (version, files) in [((5, 10), 1), ((6, 1), 2), ((7, 2), 1)] {
            assert_eq!(Hooks::parse(text, version).unwrap().files().len(), files, "{version:?}");
        }
        assert_eq!(parse_version("6.1.192-2"), Some((6, 1)));
        assert_eq!(parse_version("six"), None);
    }

    #[test]
    fn what_is_not_there_is_said() {
        for (hook, says) in [
            ("@ reflil top\nOURS", "it is not there"),
            ("@ refill before \"give(\"\nOURS", "a line with \"give(\" in refill: there is none"),
            ("@ alloc before \"refill(\"\nOURS", "there are 2"),
            ("@ refill sideways\nOURS", "sideways"),
            ("@ refill top since six\nOURS", "a version X.Y"),
            ("@ refill top", "inserts nothing"),
        ] {
            let error = hooked(hook, (6, 1)).expect_err(hook);
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
        let error = Hooks::parse("OURS", (6, 1)).err().expect("no file");
        assert!(format!("{error:#}").contains("line 1"));
    }

    /// The hooks of this repository: every one of them, for all kernels. One before 6.0 gets what
    /// counts and measures, and nothing of the library.
    #[test]
    fn our_own_hooks_are_well_formed() {
        let text = include_str!("../../../../examples/linux/glue/hooks.txt");
        for (version, lines) in [((5, 10), 3..8), ((6, 1), 20..64), ((7, 2), 20..64)] {
            let hooks = Hooks::parse(text, version).unwrap();
            assert!(hooks.files().contains(&"mm/page_alloc.c"));
            assert!(lines.contains(&hooks.lines()), "{}", hooks.lines());
        }
    }

    /// A version of which only some roads to the lists have hooks would keep pages on lists that
    /// no drain empties.
    #[test]
    fn no_version_has_hooks_on_some_of_the_roads_to_the_lists_alone() {
        let text = include_str!("../../../../examples/linux/glue/hooks.txt");
        let roads = ["first", "rmqueue", "alloc_bulk", "free_page", "free_any"];
        let six = (0..20).map(|minor| (6, minor));
        for version in six.chain((0..9).map(|minor| (7, minor))) {
            let hooks = Hooks::parse(text, version).unwrap().0;
            let has = |text: &str| {
                hooks.iter().any(|hook| hook.lines.iter().any(|line| line.contains(text)))
            };
            let is_refused =
                hooks.iter().any(|hook| hook.name == "pagedepot_has_no_hooks_for_this_version");
            let hooked = roads.iter().filter(|road| has(&format!("depot_{road}("))).count();
            assert_eq!(hooked < roads.len(), is_refused, "{version:?}: {hooked} roads");
        }
    }
}
