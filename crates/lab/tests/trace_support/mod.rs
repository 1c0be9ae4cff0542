//! What the trace tests share.

pub mod naive;
