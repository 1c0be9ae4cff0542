//! Models of the protocols; see `area.rs`, `pool.rs`, `tables.rs`.
