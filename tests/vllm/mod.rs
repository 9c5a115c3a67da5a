//! Workloads and recordings of vLLM's own scheduler, and the comparison of the engine with them.
//!
//! The formats are described at the head of `record-schedule.py`.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod compare;
pub mod recording;
pub mod workload;
