//! The commands `man` and `completions`.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::finish::write_out;
use crate::failure::Failure;

/// Prints the completions of a shell.
///
/// # Errors
/// When stdout cannot be written.
pub fn completions<C: CommandFactory>(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    let mut command = C::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut text);
    write_out(&String::from_utf8_lossy(&text))
}

/// Prints the manual page of the whole command, or writes a page per command to a folder.
///
/// # Errors
/// When they cannot be written.
pub fn man<C: CommandFactory>(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else {
        let mut text = Vec::new();
        clap_mangen::Man::new(C::command()).render(&mut text)?;
        return write_out(&String::from_utf8_lossy(&text));
    };
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(C::command(), folder));
    written.map_err(|e| {
        let folder = folder.display();
        Failure::Usage(format!(
            "cannot write {folder}: {e}; give --dir a folder that you may write to"
        ))
    })
}
