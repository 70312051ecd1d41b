//! The kvas library.
