//! kvas-backend
