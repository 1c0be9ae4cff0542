//! The common part of the trace tests.

pub mod naive;
