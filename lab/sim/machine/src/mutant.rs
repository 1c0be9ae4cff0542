//! Steps that simulated code leaves out, by their numbers.

use std::cell::Cell;

thread_local! {
    static MUTANT: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Makes simulated code of this thread leave out the step with this number; `None`: no step.
pub fn set(name: Option<u8>) {
    MUTANT.set(name);
}

/// The step to leave out.
pub fn get() -> Option<u8> {
    MUTANT.get()
}
