//! From a file to a program that can run: spec (what it is), lower (what to do), weights (with what), load (all of it).

pub mod bundled;
pub mod error;
pub mod kinds;
pub mod load;
pub mod lower;
pub mod placement;
pub mod replay_traffic;
mod sampling;
pub mod spec;
pub mod traffic;
pub mod weights;

pub use error::ModelError;
pub use load::Model;
pub use sampling::Recommended;
pub use spec::ModelSpec;
