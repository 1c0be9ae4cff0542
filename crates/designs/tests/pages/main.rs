//! Every design that hands out pages: one program, because each would compile all designs again.

mod behaviour;
mod common;
mod out_of_memory;
mod properties;
mod threads;
