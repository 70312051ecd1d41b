//! kvas-tools
