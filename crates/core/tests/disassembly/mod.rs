//! The compiler's code for a function of this test, by `objdump`.

use std::process::Command;

/// The memory operands of a function and of those of this repository that it calls, such as
/// `QWORD PTR [rax+0x40080]`.
///
/// # Panics
/// When there is no `objdump`, or the function is not in this program: a test that cannot look must
/// not pass.
pub fn memory_operands(symbol: &str) -> Vec<String> {
    let (mut symbols, mut operands) = (vec![symbol.to_owned()], Vec::new());
    let mut at = 0;
    while at < symbols.len() {
        let text = disassembly(&symbols[at]);
        operands.extend(text.lines().filter_map(memory_operand));
        for callee in text.lines().filter_map(callee).filter(|name| name.contains("pagedepot")) {
            if !symbols.iter().any(|symbol| symbol == callee) {
                symbols.push(callee.to_owned());
            }
        }
        at += 1;
    }
    operands
}

fn disassembly(symbol: &str) -> String {
    let program = std::env::current_exe().expect("the path of this test");
    let objdump = Command::new("objdump")
        .args(["-d", "-M", "intel", "--no-show-raw-insn"])
        .arg(format!("--disassemble={symbol}"))
        .arg(program)
        .output()
        .expect("objdump is missing: install binutils");
    let text = String::from_utf8(objdump.stdout).expect("a disassembly in ASCII");
    assert!(
        objdump.status.success() && text.contains(&format!("<{symbol}>:")),
        "objdump did not find {symbol}: {}{text}",
        String::from_utf8_lossy(&objdump.stderr)
    );
    text
}

/// The symbol that an instruction calls, or jumps to instead of a call.
fn callee(line: &str) -> Option<&str> {
    let (_, instruction) = line.split_once(":\t")?;
    let (mnemonic, target) = instruction.split_once('<')?;
    mnemonic.starts_with(['c', 'j']).then_some(())?;
    target.strip_suffix('>').filter(|name| !name.contains('+'))
}

/// The memory operand of an instruction; `lea` computes an address and has none.
fn memory_operand(line: &str) -> Option<String> {
    let (_, instruction) = line.split_once(":\t")?;
    let begin = instruction.find("PTR ")?;
    let width = instruction[..begin].split([' ', ',']).rfind(|word| !word.is_empty())?;
    let operand = &instruction[begin..];
    let end = operand.find(']').map_or(operand.len(), |at| at + 1);
    Some(format!("{width} {}", &operand[..end]))
}

/// Whether an operand's address has a second register.
pub fn has_index(operand: &str) -> bool {
    let address = operand.split_once('[').map_or("", |(_, address)| address);
    let is_register = |term: &str| !term.starts_with("0x");
    address.trim_end_matches(']').split(['+', '-']).filter(|term| is_register(term)).count() > 1
}
