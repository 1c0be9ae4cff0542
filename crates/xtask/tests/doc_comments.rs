//! Style of doc comments, in every crate, example and model of this repository:
//! 1. the first sentence stands alone: it refers to no other comment, and is neither a relative
//!    clause nor a prepositional phrase;
//! 2. no section (`# Errors`, `# Safety`) begins with one of [`REFERENCES`] or with "As for";
//! 3. no doc comment leaves its subject open: it has none of the words in [`NOBODIES`].
//!
//! The rules look at words, not at grammar: a fragment that they miss is still a fragment.

use std::fs;
use std::path::{Path, PathBuf};

/// First words of sentences that need another comment to be understood.
const REFERENCES: [&str; 12] = [
    "As above", "As there", "See the", "See [", "See `", "The same", "Its ", "Their ", "Those ",
    "These ", "As [", "As in ",
];
/// First words of relative and interrogative clauses. ("Whether ..." describes a `bool`.)
const CLAUSES: [&str; 13] = [
    "What", "Whatever", "Which", "Who", "Whose", "Whoever", "That", "Where", "Wherever", "When",
    "Whenever", "How", "Why",
];
/// Words that begin no sentence here: each has a form that names its subject first.
const NEVER_FIRST: [&str; 8] = ["Of", "By", "As", "And", "Not", "None", "Nor", "So"];
/// Prepositions that may introduce a sentence, with a comma.
const PREPOSITIONS: [&str; 31] = [
    "Above", "Across", "Against", "Along", "Among", "At", "Behind", "Below", "Beside", "Besides",
    "Between", "Beyond", "During", "For", "From", "In", "Instead", "Into", "On", "Over", "Per",
    "Through", "To", "Under", "With", "Within", "Without", "Before", "After", "Until", "Beneath",
];
/// Words after the comma of such a phrase that begin no main clause.
const NO_SUBJECTS: [&str; 21] = [
    "those ", "how ", "what ", "such ", "whether ", "as ", "so ", "and ", "or ", "but ", "which ",
    "whose ", "where ", "if ", "unless ", "apart ", "with ", "without ", "for ", "in ", "on ",
];
/// Words that leave a subject open.
const NOBODIES: [&str; 4] = ["nobody", "somebody", "whoever", "who knows"];

/// Sources with doc comments, relative to the root of the repository.
const ROOTS: [&str; 4] = ["crates", "lab", "examples", "models"];

/// A run of lines that begin with the same doc marker.
struct Comment<'t> {
    /// Number of the first line, from 1 on.
    line: usize,
    /// Lines without their markers.
    text: Vec<&'t str>,
}

impl Comment<'_> {
    /// The first sentence, on one line.
    fn first_sentence(&self) -> String {
        let lines = self.text.iter().skip_while(|line| line.is_empty());
        let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).copied().collect();
        let paragraph = paragraph.join(" ");
        let end = paragraph.find(". ").map_or(paragraph.len(), |at| at + 1);
        paragraph[..end].to_owned()
    }

    /// The lines with which sections begin.
    fn section_starts(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.iter().zip(self.text.iter().skip(1));
        lines.filter(|(heading, _)| heading.starts_with("# ")).map(|(_, &line)| line)
    }
}

/// The doc comments of a source.
fn comments(source: &str) -> Vec<Comment<'_>> {
    let mut found: Vec<(Comment<'_>, &str, usize)> = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let marker = ["//!", "///"].into_iter().find(|marker| line.starts_with(marker));
        let Some(marker) = marker.filter(|_| !line.starts_with("////")) else { continue };
        let text = line[marker.len()..].trim();
        match found.last_mut() {
            Some((comment, last, end)) if *last == marker && *end == number => {
                comment.text.push(text);
                *end = number + 1;
            }
            _ => {
                let comment = Comment { line: number + 1, text: vec![text] };
                found.push((comment, marker, number + 1));
            }
        }
    }
    found.into_iter().map(|(comment, ..)| comment).collect()
}

/// Whether a clause has a word that may be a finite verb.
fn has_verb(clause: &str) -> bool {
    const VERBS: [&str; 20] = [
        "are", "was", "were", "have", "had", "do", "did", "can", "may", "must", "will", "would",
        "should", "need", "cannot", "could", "might", "come", "take", "go",
    ];
    let words = clause.split(|letter: char| !letter.is_alphabetic()).filter(|word| word.len() > 1);
    words.into_iter().any(|word| VERBS.contains(&word) || word.ends_with('s'))
}

/// Whether the first line of a section needs another comment to be understood.
fn is_reference(line: &str) -> bool {
    line.starts_with("As for ") || REFERENCES.iter().any(|reference| line.starts_with(reference))
}

/// The reason why a sentence does not stand alone.
fn fault(sentence: &str) -> Option<&'static str> {
    let first = sentence.split([' ', ',', ':', '.']).next().unwrap_or_default();
    if is_reference(sentence) {
        return Some("refers to something else: name the subject");
    }
    if CLAUSES.contains(&first) {
        return Some("is a clause: begin with a noun or a verb");
    }
    if NEVER_FIRST.contains(&first) {
        return Some("begins with no subject: begin with a noun or a verb");
    }
    if PREPOSITIONS.contains(&first) {
        let (phrase, clause) = sentence.split_once(',').unwrap_or((sentence, ""));
        let clause = clause.trim_start();
        let has_subject = !NO_SUBJECTS.iter().any(|word| clause.starts_with(word));
        if phrase.contains(':') || !has_subject || !has_verb(clause) {
            return Some("is a prepositional phrase: begin with a noun or a verb");
        }
    }
    None
}

/// Calls `with` for each source below `directory`. Links lead to sources that are found elsewhere.
fn for_each_source(directory: &Path, with: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() && entry.file_name() != "target" {
            for_each_source(&path, with);
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            with(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn doc_comments_stand_alone() {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for directory in ROOTS {
        for_each_source(&root().join(directory), &mut |path, source| {
            for comment in comments(source) {
                seen += 1;
                let sentence = comment.first_sentence();
                let mut starts = comment.section_starts();
                let reference = starts.find(|line| is_reference(line));
                let reference =
                    reference.map(|_| "has a section that refers to something else: name it");
                let text = comment.text.join(" ").to_lowercase();
                let open = NOBODIES.iter().any(|word| text.contains(word));
                let open = open.then_some("leaves the subject open: name it");
                if let Some(fault) = fault(&sentence).or(reference).or(open) {
                    let path = path.strip_prefix(root()).unwrap().display();
                    faults.push(format!("{path}:{}: {fault}: {sentence}", comment.line));
                }
            }
        });
    }
    assert!(seen > 10_000, "only {seen} doc comments were found");
    assert!(faults.is_empty(), "{} doc comments:\n{}", faults.len(), faults.join("\n"));
}

/// Passages that this repository had: each must be refused.
#[test]
fn fragments_are_refused() {
    for fragment in [
        "As above; loom's atomics are not made at compile time.",
        "As [`free`](Self::free), but caches the block for `mobility`.",
        "See the module.",
        "See [`Cpus::pop`](pagedepot::cpus::Cpus::pop).",
        "The same of the pages that this CPU has moved to the store, less those from it.",
        "Its first frame.",
        "What a CPU keeps for a zone besides its front words: shelves, accounts, counters.",
        "What a request wants, in the eyes of the next.",
        "Whose caches.",
        "How much a CPU may cache.",
        "Where the store is searched next, by mobility: a pageblock's index.",
        "Which magazines a shelf has, in one cache line.",
        "Of a zone.",
        "Of pageblocks `64 * i ..`, those that are mixed.",
        "By zone: what evacuates, and what policies know of it.",
        "By the counter.",
        "In fronts: out of a quiet drain's reach.",
        "With two decimals, without floating point.",
        "For messages and logs.",
        "Between two looks for keys and signals.",
        "Those that do.",
        "Not at all.",
        "For so many areas, with stale data kept, as `vmalloc` does in the kernel.",
    ] {
        assert!(fault(fragment).is_some(), "{fragment}");
    }
    for sentence in [
        "Whether a search of this pass takes frames from pageblocks with this tag.",
        "In every interleaving, each section is added once or not at all.",
        "The gate of a CPU: open, or closed by the one drainer whose ticket it shows.",
        "Lowers `high` towards what is cached, by at most an eighth, and spills the excess.",
    ] {
        assert_eq!(fault(sentence), None, "{sentence}");
    }
    for line in ["As for `free`.", "As [`free`](Self::free).", "The same promise as to `free`."] {
        assert!(is_reference(line), "{line}");
    }
    assert!(!is_reference("Fails like [`free`](Self::free)."));
}
