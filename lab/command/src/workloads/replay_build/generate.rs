//! The program that is built: C, generated from a seed, so that the build needs no sources of
//! others, and compiles the same on every machine.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// Functions of a file, and statements of a function.
const FUNCTIONS: u32 = 60;
const STATEMENTS: u32 = 12;
/// Structures of the header that every file includes.
const STRUCTURES: u32 = 200;

const MAKEFILE_RULES: &str = "program: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n\n\
                              %.o: %.c types.h\n\t$(CC) -O1 -g -c -o $@ $<\n";

/// Writes a program of so many files besides `main.c`, and its Makefile.
///
/// # Errors
/// When a file cannot be written.
pub fn write(directory: &Path, files: u32, seed: u64) -> io::Result<()> {
    for (name, text) in program(files, seed) {
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}

/// The files by name.
fn program(files: u32, seed: u64) -> Vec<(String, String)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut program = vec![("types.h".to_owned(), header(&mut random))];
    let mut objects = "OBJECTS = main.o".to_owned();
    let (mut declared, mut called) = (String::new(), String::new());
    for file in 0..files {
        program.push((format!("file_{file}.c"), source(file, &mut random)));
        objects += &format!(" file_{file}.o");
        declared += &format!("unsigned long file_{file}(unsigned long x);\n");
        called += &format!("\tx = file_{file}(x);\n");
    }
    let main = format!(
        "#include <stdio.h>\n{declared}\nint main(void)\n{{\n\tunsigned long x = 1;\n{called}\
         \tprintf(\"%lu\\n\", x);\n\treturn 0;\n}}\n"
    );
    program.push(("main.c".to_owned(), main));
    program.push(("Makefile".to_owned(), format!("{objects}\n\n{MAKEFILE_RULES}")));
    program
}

fn header(random: &mut fastrand::Rng) -> String {
    let mut text = "#pragma once\n".to_owned();
    for nth in 0..STRUCTURES {
        let (words, shift) = (random.u32(1..16), random.u32(1..31));
        let _ = write!(
            text,
            "struct s{nth} {{ unsigned long word[{words}]; unsigned bits : {shift}; }};\n\
             static inline unsigned long sum{nth}(const struct s{nth} *s)\n\
             {{\n\tunsigned long sum = s->bits;\n\tfor (int i = 0; i < {words}; i++)\n\
             \t\tsum += s->word[i] << (i % {shift});\n\treturn sum;\n}}\n"
        );
    }
    text
}

fn source(file: u32, random: &mut fastrand::Rng) -> String {
    let mut text = "#include \"types.h\"\n".to_owned();
    for function in 0..FUNCTIONS {
        let structure = random.u32(0..STRUCTURES);
        let _ = write!(
            text,
            "static unsigned long f{function}(unsigned long x)\n{{\n\tstruct s{structure} s = \
             {{ .bits = x }};\n"
        );
        (0..STATEMENTS).for_each(|_| text += &statement(random));
        let _ = write!(text, "\ts.word[0] = x;\n\treturn sum{structure}(&s);\n}}\n");
    }
    let calls: String = (0..FUNCTIONS).map(|nth| format!("\tx ^= f{nth}(x);\n")).collect();
    text + &format!("unsigned long file_{file}(unsigned long x)\n{{\n{calls}\treturn x;\n}}\n")
}

fn statement(random: &mut fastrand::Rng) -> String {
    let number = random.u32(1..1 << 16);
    match random.u32(0..4) {
        0 => format!("\tif (x & {number})\n\t\tx = x * {number}u + 1;\n"),
        1 => format!("\tfor (int i = 0; i < {}; i++)\n\t\tx ^= x << i | {number}u;\n", number % 60),
        2 => format!("\tswitch (x % 7) {{ case 1: x += {number}; break; case 4: x >>= 1; }}\n"),
        _ => format!("\tx = x / {number} + (x ^ {number}u);\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_program() {
        assert_eq!(program(3, 7), program(3, 7));
        assert_ne!(program(3, 7), program(3, 8));
        let names: Vec<_> = program(2, 1).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["types.h", "file_0.c", "file_1.c", "main.c", "Makefile"]);
    }
}
