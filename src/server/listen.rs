//! Connections: how long a client may take to say what it wants, and HTTPS.

use super::connection::Acceptor;
use axum::Router;
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tower_http::timeout::RequestBodyTimeoutLayer;

/// How long a client may take, so that nobody holds a connection for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For the greeting of TLS, and for the head of a request, from then, the connection or the last reply on.
    pub head: Duration,
    /// For each next part of a body.
    pub body: Duration,
    /// To take some more of a reply that is ready for it.
    pub reply: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(15), body: Duration::from_secs(30), reply: Duration::from_secs(120) }
    }
}

/// A certificate and its key, both files in PEM, for HTTPS.
pub async fn tls(certificate: &Path, key: &Path) -> io::Result<RustlsConfig> {
    // Fails only if there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = RustlsConfig::from_pem_file(certificate, key).await?;
    let mut config = read.get_inner().as_ref().clone();
    // What is spoken here; see `serve`.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(RustlsConfig::from_config(Arc::new(config)))
}

/// Answers connections until the handle says to stop.
pub async fn serve(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    (handle, patience): (Handle<SocketAddr>, Timeouts),
    routes: Router,
) -> io::Result<()> {
    let service = routes.layer(RequestBodyTimeoutLayer::new(patience.body)).into_make_service();
    // HTTP/1.1 only: where HTTP/2 is spoken as well, a client is waited for without end to say which it speaks.
    match tls {
        None => {
            let acceptor = Acceptor(patience.reply);
            let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle).http1_only();
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
            server.serve(service).await
        }
        Some(config) => {
            let acceptor = RustlsAcceptor::new(config).handshake_timeout(patience.head);
            let acceptor = acceptor.acceptor(Acceptor(patience.reply));
            let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle).http1_only();
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
            server.serve(service).await
        }
    }
}
