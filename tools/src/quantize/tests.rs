//! Quantising files.
