//! Address space and mappings, over a mapper on paper that knows what is right.

mod basics;
mod exhaustion;
mod failing;
mod lost;
mod lowest_fit;
mod model;
mod paper;
mod ram;
mod sizes;
mod threads;
mod zeroed;
