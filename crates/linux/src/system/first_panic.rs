//! Work that is done to its end though code of the program panics on the way.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of several calls, which goes on when all of them are made.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Calls code that may panic. `None`: it has.
    pub fn catch<T>(&mut self, act: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(act));
        done.map_err(|panic| _ = self.0.get_or_insert(panic)).ok()
    }

    /// Lets the panic go on, if there was one, unless the thread unwinds already: a second panic
    /// would abort.
    pub fn resume(self) {
        if let Some(panic) = self.0.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}
