//! `kvas serve`: models over HTTP.

use super::{
    chat::SNAPSHOT_EVERY,
    device,
    flags::{ModelFlags, SamplingFlags, ShelfFlags, bytes},
};
use anyhow::{Context, anyhow, bail};
use axum_server::Handle;
use clap::Args;
use kvas::{
    engine::{Engine, EngineConfig},
    memory::plan::SnapshotBudget,
    server::{Access, Facts, Keys, Loaded, Loader, Metrics, Models, Responses, Server, Settings, Sharing, router},
    session::ModelId,
    text::ChatTemplate,
};
use serde_json::{Map, Value};
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
    #[command(flatten)]
    model: ModelFlags,
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
    /// Name of the model for clients [default: the file's name]
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,
    /// A key that clients must send; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with such keys, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let requests begin with what was read for another key
    #[arg(long)]
    share_prefixes: bool,
    /// Folder for files of saved slots [default: slots cannot be saved]
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
    /// A file with a chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Variables for the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    /// Most tokens of reasoning; -1 is any number
    #[arg(long, value_name = "N", default_value_t = -1, allow_hyphen_values = true)]
    reasoning_budget: i64,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = bytes)]
    body_limit: u64,
    /// Seconds a request may take [default: any number]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    shelf: ShelfFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// Tokens of a prompt scored in one step: their probabilities, or their hidden states.
const SCORED: usize = 64;

/// Loads the models of the command line.
#[derive(Debug)]
struct FromFlags {
    flags: ModelFlags,
    parallel: usize,
    template: Option<ChatTemplate>,
    shelf: ShelfFlags,
    max_decode_gap: Option<Duration>,
}

impl Loader for FromFlags {
    fn load(&self, name: &str) -> Result<Loaded, String> {
        self.open(name).map_err(|error| format!("{error:#}"))
    }
}

impl FromFlags {
    fn open(&self, name: &str) -> anyhow::Result<Loaded> {
        let model = device::open(&self.flags)?;
        let template = match &self.template {
            Some(template) => template.clone(),
            None => model.template()?,
        };
        let snapshots = SnapshotBudget::Share;
        let wanted =
            device::Wanted { sequences: self.parallel, snapshots, outputs: self.parallel + SCORED, context: None };
        let (runner, plan) = device::prepare(&self.flags, &model, wanted)?;
        let id = ModelId::of(&model.file);
        let shelf = self.shelf.open(&id)?;
        let facts = Facts {
            context: plan.context,
            batch: plan.limits.rows,
            page_size: plan.limits.page_size,
            page_bytes: plan.page_bytes,
            slot_bytes: plan.slot_bytes,
            snapshot_bytes: plan.snapshot_bytes,
            ring: plan.limits.replay.history,
            ..Facts::of(&model)
        };
        tracing::info!(model = name, context = plan.context, slots = self.parallel, "loaded");
        let engine = Engine::start(
            runner,
            EngineConfig {
                snapshot_every: SNAPSHOT_EVERY,
                shelf,
                max_decode_gap: self.max_decode_gap,
                ..EngineConfig::new(plan.context)
            },
        );
        Ok(Loaded { engine, tokenizer: model.tokenizer, template, id, facts })
    }
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let params = self.sampling.params()?;
        let name = self.name();
        let template = self.chat_template_file.as_deref().map(template_of).transpose()?;
        let settings = self.settings()?;
        let loader = FromFlags {
            flags: self.model.clone(),
            parallel: settings.parallel,
            template,
            shelf: self.shelf.clone(),
            max_decode_gap: Some(self.max_decode_gap_ms).filter(|ms| *ms > 0).map(Duration::from_millis),
        };
        let sharing = if self.share_prefixes { Sharing::All } else { Sharing::PerKey };
        let access = Access { keys: Keys::new(&self.keys()?), sharing };
        let models = Models::new(&[name], Arc::new(loader), params);
        let (metrics, responses) = (Metrics::default(), Responses::default());
        let server = Arc::new(Server { settings, models, metrics, access, responses });
        let listener = self.listen()?;
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        threads.context("cannot start the threads of the server")?.block_on(serve(server, listener))?;
        Ok(0)
    }

    fn name(&self) -> String {
        let stem = || self.model.model.file_stem().unwrap_or_default().to_string_lossy().to_string();
        self.alias.clone().unwrap_or_else(stem)
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        if let Some(folder) = self.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
            bail!("--slot-save-path {}, expected a folder", folder.display());
        }
        let template_variables = match &self.chat_template_kwargs {
            None => Map::new(),
            Some(text) => match serde_json::from_str(text) {
                Ok(Value::Object(variables)) => variables,
                _ => bail!("--chat-template-kwargs {text}, expected a JSON object"),
            },
        };
        Ok(Settings {
            parallel: usize::from(self.parallel),
            queue: self.queue,
            slot_save_path: self.slot_save_path.clone(),
            reasoning_budget: Some(self.reasoning_budget).filter(|budget| *budget >= 0),
            template_variables,
            body_limit: usize::try_from(self.body_limit).unwrap_or(usize::MAX),
            timeout: self.timeout.map(Duration::from_secs),
        })
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string));
            if keys.is_empty() {
                bail!("{}: no keys, expected one a line", path.display());
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

fn template_of(path: &std::path::Path) -> anyhow::Result<ChatTemplate> {
    let source = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ChatTemplate::new(&source).with_context(|| path.display().to_string())
}

/// How long requests in progress may take when the server is asked to stop.
const GRACE: Duration = Duration::from_secs(30);

async fn serve(server: Arc<Server>, listener: TcpListener) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    // A model that cannot be loaded is an error of the command line, not of the first request.
    let served = server.model(None).await.map_err(|error| anyhow!(error.message))?;
    let handle = Handle::new();
    tokio::spawn(stop_on_signal(server.clone(), handle.clone()));
    eprintln!(
        "{}: {} slots, context {} tokens; listening on http://{address}",
        served.name,
        served.slots.len(),
        served.facts.context
    );
    drop(served);
    let service = router(server).into_make_service();
    axum_server::from_tcp(listener)?.handle(handle).serve(service).await.context("the server stopped")
}

/// The first signal lets requests in progress finish, the second ends the program.
async fn stop_on_signal(server: Arc<Server>, handle: Handle<SocketAddr>) {
    signal().await;
    eprintln!("stopping: requests in progress may finish; once more to stop now");
    server.models.loaded().iter().for_each(|served| served.slots.close());
    handle.graceful_shutdown(Some(GRACE));
    signal().await;
    std::process::exit(i32::from(super::INTERRUPTED));
}

async fn signal() {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    let terminated = async {
        match &mut terminate {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}
