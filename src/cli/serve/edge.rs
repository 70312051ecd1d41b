//! Where connections come in: the address, TLS, limits of time, signals, the log.

use crate::cli::INTERRUPTED;
use anyhow::{Context, anyhow};
use axum::Router;
use axum_server::{Handle, tls_rustls::RustlsConfig};
use hyper_util::rt::TokioTimer;
use kvas::server::{Server, router};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};
use tower_http::timeout::RequestBodyTimeoutLayer;
use tracing_subscriber::EnvFilter;

/// How long requests in progress may take when the server is asked to stop.
const GRACE: Duration = Duration::from_secs(30);
/// How long the head of a request may take, so that nobody holds a connection for nothing.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);
/// How long the next part of a body may take.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// Files for HTTPS, in PEM.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// A server and where it listens.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) server: Arc<Server>,
    pub(super) listener: TcpListener,
    pub(super) tls: Option<Tls>,
}

impl Edge {
    /// Serves until a signal comes.
    pub(super) async fn serve(self) -> anyhow::Result<()> {
        let Edge { server, listener, tls } = self;
        let address = listener.local_addr()?;
        let tls = match &tls {
            None => None,
            Some(files) => Some(files.config().await?),
        };
        // A model that cannot be loaded is an error of the command line, not of the first request.
        let served = server.model(None).await.map_err(|error| anyhow!(error.message))?;
        let handle = Handle::new();
        tokio::spawn(stop_on_signal(server.clone(), handle.clone()));
        eprintln!(
            "{}: {} slots, context {} tokens; listening on {}://{address}",
            served.name,
            served.slots.len(),
            served.facts.context,
            if tls.is_some() { "https" } else { "http" }
        );
        drop(served);
        let routes = router(server).layer(RequestBodyTimeoutLayer::new(BODY_PATIENCE));
        listen(listener, tls, handle, routes).await.context("the server stopped")
    }
}

async fn listen(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    handle: Handle<SocketAddr>,
    routes: Router,
) -> std::io::Result<()> {
    let service = routes.into_make_service();
    match tls {
        None => {
            let mut server = axum_server::from_tcp(listener)?.handle(handle);
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
            server.serve(service).await
        }
        Some(config) => {
            let mut server = axum_server::from_tcp_rustls(listener, config)?.handle(handle);
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
            server.serve(service).await
        }
    }
}

impl Tls {
    async fn config(&self) -> anyhow::Result<RustlsConfig> {
        // Fails only if there is a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = RustlsConfig::from_pem_file(&self.certificate, &self.key).await;
        read.with_context(|| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            format!("--ssl-cert-file {certificate} --ssl-key-file {key}, expected a certificate and its key in PEM")
        })
    }
}

/// The first signal lets requests in progress finish, the second ends the program.
async fn stop_on_signal(server: Arc<Server>, handle: Handle<SocketAddr>) {
    interrupted().await;
    eprintln!("stopping: requests in progress may finish; once more to stop now");
    server.models.loaded().iter().for_each(|served| served.slots.close());
    handle.graceful_shutdown(Some(GRACE));
    interrupted().await;
    std::process::exit(i32::from(INTERRUPTED));
}

/// Waits for Ctrl-C or a request to terminate.
async fn interrupted() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Writes the log to stderr, from now on.
pub(super) fn log(json: bool, verbose: bool) -> anyhow::Result<()> {
    let default = if verbose { "kvas=debug,tower_http=debug" } else { "kvas=info" };
    let filter = match std::env::var("KVAS_LOG") {
        Ok(text) => EnvFilter::try_new(&text).with_context(|| format!("KVAS_LOG={text}"))?,
        Err(_) => EnvFilter::new(default),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set = if json { log.json().try_init() } else { log.compact().try_init() };
    set.map_err(|error| anyhow!("the log cannot be written: {error}"))
}
