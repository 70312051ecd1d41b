//! Where connections come in: the address, TLS, limits of time, signals, the log.

use crate::cli::{INTERRUPTED, note};
use anyhow::{Context, anyhow};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use kvas::{
    server::{Server, Timeouts, listen, router},
    stdio::is_coloured,
};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// How long answers in progress may go on when the server is asked to stop, and how long replies may then take to arrive.
const GRACE: Duration = Duration::from_secs(25);
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

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
        // Who is told that it listens may ask it to stop at once.
        let signals = Signals::listen().context("cannot listen for signals")?;
        tokio::spawn(stop_on_signal(signals, server.clone(), handle.clone()));
        note(format_args!(
            "{}: {} slots, context {} tokens; listening on {}://{address}",
            served.name,
            served.slots.count(),
            served.facts.context,
            if tls.is_some() { "https" } else { "http" }
        ));
        drop(served);
        let serving = listen::serve(listener, tls, (handle, Timeouts::default()), router(server));
        serving.await.context("the server stopped")
    }
}

impl Tls {
    async fn config(&self) -> anyhow::Result<RustlsConfig> {
        listen::tls(&self.certificate, &self.key).await.with_context(|| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            format!("--ssl-cert-file {certificate} --ssl-key-file {key}, expected a certificate and its key in PEM")
        })
    }
}

/// The first signal lets requests in progress finish, or end as they are after a while; the second ends the program.
async fn stop_on_signal(mut signals: Signals, server: Arc<Server>, handle: Handle<SocketAddr>) {
    signals.next().await;
    note(format_args!("stopping: requests in progress may finish; once more to stop now"));
    let all = || server.models.loaded().into_iter();
    server.models.stop();
    all().for_each(|served| served.slots.close());
    handle.graceful_shutdown(Some(GRACE + FAREWELL));
    if tokio::time::timeout(GRACE, signals.next()).await.is_err() {
        // A stream that breaks off says nothing, and a reply in one piece would be lost.
        note(format_args!("stopping: answers in progress end as they are"));
        all().for_each(|served| served.slots.call_off());
        signals.next().await;
    }
    std::process::exit(i32::from(INTERRUPTED));
}

/// Ctrl-C and requests to terminate, from when they are listened for.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
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
    let log = log.with_ansi(is_coloured(&std::io::stderr()));
    // It would say that it cannot say something, and panic.
    let log = log.log_internal_errors(false);
    let set = if json { log.json().try_init() } else { log.compact().try_init() };
    set.map_err(|error| anyhow!("the log cannot be written: {error}"))
}
