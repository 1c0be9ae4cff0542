//! Every design of the lab that hands out pages, under the tests of the product's: one program,
//! because each would compile all designs again.

mod behaviour;
mod common;
#[path = "../../../../crates/designs/tests/pages/out_of_memory.rs"]
mod out_of_memory;
#[path = "../../../../crates/designs/tests/pages/properties.rs"]
mod properties;
#[path = "../../../../crates/designs/tests/pages/threads.rs"]
mod threads;
