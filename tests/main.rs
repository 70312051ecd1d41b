//! The integration tests: one crate, one file per subject.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test that is surprised fails")]

mod adapter;
mod behind;
mod bench_op;
mod bundled;
mod chat;
mod commands;
mod constrained;
mod convert;
mod cuda;
mod devices;
mod divergence;
mod documents;
mod edge_oracle;
mod edgeinfinite;
mod factors;
mod faulty;
mod golden;
mod history;
mod layers;
mod outputs;
mod plan;
mod quantize;
mod repl;
mod resident;
mod server;
mod session;
mod shortened;
mod simulation;
mod slake;
mod speculation;
mod split;
mod temporary;
mod tidy;
mod top_k;
mod wrapped;
