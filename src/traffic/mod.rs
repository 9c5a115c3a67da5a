//! Who sends what and when.
//!
//! Benchmark protocols are sans-I/O state machines here: the simulated and the live driver feed the same
//! code. Knows no socket, no clock and no engine.

pub mod arrivals;
pub mod content;
pub mod lengths;
pub mod protocol;
pub mod sessions;
pub mod traces;
