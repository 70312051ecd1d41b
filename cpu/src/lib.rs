//! kvas-cpu
