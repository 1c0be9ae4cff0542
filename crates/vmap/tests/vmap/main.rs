//! Address space and mappings, over a simulated mapper that checks every call.

mod basics;
mod exhaustion;
mod failing;
mod handlers;
mod large;
mod lost;
mod lowest_fit;
mod model;
mod paper;
mod ram;
mod reserved;
mod sizes;
mod threads;
mod zeroed;
