//! `kvas serve`: models over HTTP.

mod edge;
mod load;
mod models;

use super::{
    drafts::DraftFlags,
    flags::{OffloadFlags, RunFlags, SamplingFlags, TemplateFlags, bytes},
    input,
    policy::PolicyFlags,
};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use edge::{Edge, FAREWELL, Tls};
use kvas::{
    model::bundled,
    policy::PolicyKind,
    server::{Access, Keys, Metrics, Models, Reach, Responses, Server, Settings, Sharing},
};
pub(super) use load::wanted;
use load::{FromFlags, Reservations};
use std::{
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// Serve a model over HTTP to OpenAI, Anthropic, Ollama and llama.cpp clients
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas serve -m model.gguf\n  kvas serve -m model.gguf --parallel 8 --host 0.0.0.0 --port 8080 --api-key secret\n  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"
)]
pub(crate) struct Serve {
    /// Model file (GGUF), or NAME=FILE, or a folder of such files; may be given several times: each is loaded when it is
    /// first asked for [default: the model that comes with kvas]
    #[arg(short, long, value_name = "[NAME=]FILE")]
    model: Vec<String>,
    #[command(flatten)]
    run: RunFlags,
    /// A TOML file with these flags: `ctx-size = 8192`; the environment (KVAS_CTX_SIZE) and the command line win over it.
    /// KVAS_CONFIG names it as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Requests served at once; all share one pool of memory
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: u16,
    /// Requests that may wait; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// Milliseconds an answer may wait for its next token while prompts of others are read; 0 for no bound
    #[arg(long, value_name = "MS", default_value_t = 500)]
    max_decode_gap_ms: u64,
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Name of the model for clients, if there is one model [default: the file's name]
    #[arg(short, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    alias: Option<String>,
    /// Certificate for HTTPS, in PEM
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    ssl_cert_file: Option<PathBuf>,
    /// Private key for HTTPS, in PEM
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    ssl_key_file: Option<PathBuf>,
    /// Another site whose pages may ask, as in https://example.org; `*` is any; may be given several times [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = models::origin)]
    cors_origin: Vec<String>,
    /// How to write the log on stderr; KVAS_LOG sets what is in it, as in KVAS_LOG=debug
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// A key that clients must send; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with such keys, one a line; # at the beginning of a line or behind a space begins a comment
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let requests begin with what was read for another key
    #[arg(long)]
    share_prefixes: bool,
    /// Folder for files of saved slots [default: slots cannot be saved]
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateFlags,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = bytes)]
    body_limit: u64,
    /// Seconds a request may take [default: any number]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    offload_cache: OffloadFlags,
    #[command(flatten)]
    drafts: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        self.sampling.check()?;
        // Requests that hold all tokens are drafted for, whatever the policy of the others.
        self.drafts.check(PolicyKind::Full)?;
        let files = self.files()?;
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        let template = self.template.template()?;
        let settings = self.settings()?;
        edge::log(self.log_format == LogFormat::Json, self.run.verbose)?;
        let loader = FromFlags {
            files,
            run: self.run.clone(),
            parallel: settings.parallel,
            template,
            offload_cache: self.offload_cache.clone(),
            promises: Reservations::default(),
            policy: self.policy.clone(),
            drafts: self.drafts.clone(),
            sampling: self.sampling.clone(),
            max_decode_gap: Some(self.max_decode_gap_ms).filter(|ms| *ms > 0).map(Duration::from_millis),
        };
        let sharing = if self.share_prefixes { Sharing::All } else { Sharing::PerKey };
        let listener = self.listen()?;
        let reach = if listener.local_addr()?.ip().is_loopback() { Reach::Local } else { Reach::Network };
        let access = Access { keys: Keys::new(&self.keys()?), sharing, origins: self.cors_origin.clone(), reach };
        if access.keeps_apart() && self.offload_cache.has_folder() {
            // Files of one key would have to be told from those of another, also at the next start.
            bail!("--snapshot-dir with --api-key: what is on disk serves every key, expected --share-prefixes as well");
        }
        let models = Models::new(&names, Arc::new(loader));
        let (metrics, responses) = (Metrics::default(), Responses::default());
        let server = Arc::new(Server { settings, models, metrics, access, responses });
        let tls = match (&self.ssl_cert_file, &self.ssl_key_file) {
            (Some(certificate), Some(key)) => Some(Tls { certificate: certificate.clone(), key: key.clone() }),
            (None, _) | (_, None) => None,
        };
        let edge = Edge { server, listener, tls };
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let threads = threads.context("cannot start the threads of the server")?;
        let served = threads.block_on(edge.serve());
        // A model that is being loaded is nobody's any more, and may take minutes.
        threads.shutdown_timeout(FAREWELL);
        served.map(|()| 0)
    }

    /// Names of the models and their files.
    fn files(&self) -> anyhow::Result<Vec<(String, Option<PathBuf>)>> {
        let mut files = Vec::new();
        for text in &self.model {
            files.extend(models::named(text)?.into_iter().map(|(name, file)| (name, Some(file))));
        }
        if files.is_empty() {
            files.push((bundled::NAME.to_string(), None));
        }
        match (&self.alias, &mut files[..]) {
            (None, _) => {}
            (Some(alias), [(name, _)]) => name.clone_from(alias),
            (Some(_), _) => bail!("--alias with several models, expected names as in -m NAME=FILE"),
        }
        for (number, (name, file)) in files.iter().enumerate() {
            let Some(file) = file else { continue };
            if files[..number].iter().any(|(known, _)| known == name) {
                bail!("-m {}: there are two models named {name}, expected names as in -m NAME=FILE", file.display());
            }
            std::fs::File::open(file).with_context(|| file.display().to_string())?;
        }
        Ok(files)
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        if let Some(folder) = self.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
            bail!("--slot-save-path {}, expected a folder", folder.display());
        }
        Ok(Settings {
            parallel: usize::from(self.parallel),
            queue: self.queue,
            slot_save_path: self.slot_save_path.clone(),
            reasoning_budget: self.template.reasoning_budget().filter(|budget| *budget < usize::MAX),
            template_variables: self.template.variables()?.unwrap_or_default(),
            body_limit: usize::try_from(self.body_limit).unwrap_or(usize::MAX),
            timeout: self.timeout.map(Duration::from_secs),
        })
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        if self.api_key.iter().any(|key| key.trim().is_empty()) {
            // As from a variable of the environment that has no value. Whoever sends an empty key would be let in.
            bail!("--api-key: an empty key, expected at least one character, or no flag for no keys");
        }
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = input::text(path, path.display())?;
            keys.extend(text.lines().map(key_of).filter(|key| !key.is_empty()).map(str::to_string));
            if keys.is_empty() {
                bail!("{}: no keys, expected one a line; # begins a comment", path.display());
            }
        }
        Ok(keys)
    }

    fn listen(&self) -> anyhow::Result<TcpListener> {
        let what = || format!("--host {} --port {}", self.host, self.port);
        let addresses: Vec<SocketAddr> =
            (self.host.as_str(), self.port).to_socket_addrs().with_context(what)?.collect();
        let listener = TcpListener::bind(&addresses[..]).with_context(what)?;
        listener.set_nonblocking(true).with_context(what)?;
        Ok(listener)
    }
}

/// The key of a line, without the comment that `#` begins as in a shell: a key that is no longer one is often left behind
/// it, and behind a key is whose it is. A `#` in the middle of a word is part of the key.
fn key_of(line: &str) -> &str {
    let is_comment = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(|at| is_comment(*at));
    line[..comment.unwrap_or(line.len())].trim()
}
