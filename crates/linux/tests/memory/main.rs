//! Tests of a depot's memory: of ways to get it, to limit it, to move it and to give it back, and
//! of requests that wait for it. None of them needs a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod backing;
mod ceiling;
mod grow;
mod monitor;
mod movable;
mod pins;
mod reporting;
mod trim;
mod tuning;
mod waiting;
