//! A server in this process: the bundled model, a free port.

use super::{
    client::{Opened, Reply, open},
    tls,
};
use axum_server::Handle;
use kvas::{
    engine::{Engine, EngineConfig},
    model::{Model, lower::lower_segments},
    policy::{EvictionPolicy, bounded},
    server::{
        Access, LoadError, Loaded, Loader, MemoryDemand, Metrics, ModelFacts, Models, Responses, Server, Settings,
        Timeouts, listen, router,
    },
    session::ModelId,
    text::ChatTemplate,
};
use kvas_backend::{
    Backend, KvType, Limits, Replay, StateType,
    store::{MomentType, Positions, SegmentMemory, Segments},
};
use kvas_cpu::Cpu;
use serde_json::{Map, Value};
use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::runtime::Runtime;

const CONTEXT: usize = 1024;
const PARALLEL: usize = 4;

/// A server that runs until it is dropped.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) server: Arc<Server>,
    /// Its threads.
    threads: Option<Runtime>,
}

/// What stands before a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    Tls,
}

/// The bundled model, on the processor.
#[derive(Debug)]
pub(crate) struct Bundled {
    parallel: usize,
    /// Instead of the model's own.
    template: Option<ChatTemplate>,
    /// How many tokens sequences hold.
    bound: Option<EvictionPolicy>,
}

impl Bundled {
    /// As it is, with one slot.
    pub(crate) fn plain() -> Self {
        Self { parallel: 1, template: None, bound: None }
    }

    /// Loads it onto this device.
    pub(crate) fn on(&self, device: Box<dyn Backend>) -> Result<Loaded, String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/hybrid-14m.q4_0.gguf");
        let mut model = Model::open(&path, None).map_err(|error| error.to_string())?;
        let (kv_type, state_type, page_size) = (KvType::F16, StateType::F32, 16);
        let limits = Limits {
            context: 0,
            rows: 64,
            outputs: PARALLEL + 64,
            pages: 16 * CONTEXT / page_size,
            page_size,
            slots: self.parallel + 1,
            snapshots: 16,
            replay: Replay::new(8, 4),
            kv_type,
            state_type,
        };
        match &self.bound {
            None => {}
            Some(EvictionPolicy::Budget(bound)) => {
                model.program = Arc::new(bounded(&model.program, bound, MomentType::F16, page_size));
            }
            Some(EvictionPolicy::Segments(schedule)) => {
                let [sink, window, segment] =
                    [schedule.sink, schedule.window, schedule.segment].map(|tokens| tokens as usize);
                let (positions, memory) = (Positions::Held, SegmentMemory::None);
                let segments = Segments { sink, window, segment, positions, memory };
                model.program = Arc::new(lower_segments(&model.spec, segments));
            }
        }
        let runner = model.prepare(device, limits, &mut |_, _| {}).map_err(|error| error.to_string())?;
        let layout = runner.bounded_layers();
        Ok(Loaded {
            engine: Engine::start(runner, EngineConfig { bound: self.bound, ..EngineConfig::new(CONTEXT) }),
            template: match &self.template {
                Some(template) => template.clone(),
                None => model.template().map_err(|error| error.to_string())?,
            },
            sampling: model.sampling().unless(|_| false).map_err(|error| error.to_string())?.0,
            id: ModelId::of(&model.file),
            facts: ModelFacts { context: CONTEXT, bound: self.bound, layout, ..ModelFacts::of(&model) },
            tokenizer: model.tokenizer,
        })
    }
}

impl Loader for Bundled {
    fn load(&self, _: &str, _: MemoryDemand) -> Result<Loaded, LoadError> {
        self.on(Box::new(Cpu::new(2))).map_err(LoadError::Fault)
    }
}

fn settings(parallel: usize) -> Settings {
    Settings {
        parallel,
        queue: 256,
        slot_save_path: None,
        reasoning_budget: None,
        template_variables: Map::new(),
        body_limit: 1 << 20,
        timeout: None,
    }
}

impl Host {
    /// A server with these slots, changed as the test likes.
    pub(crate) fn start(parallel: usize, change: impl FnOnce(&mut Settings, &mut Access)) -> Self {
        Self::start_with(
            Bundled { parallel, template: None, bound: None },
            (Timeouts::default(), Behind::Nothing),
            change,
        )
    }

    /// A server that waits this long for a head or the next part of a body.
    pub(crate) fn with_patience(parallel: usize, patience: Duration) -> Self {
        let patience = Timeouts { head: patience, body: patience, ..Timeouts::default() };
        Self::start_with(Bundled { parallel, template: None, bound: None }, (patience, Behind::Nothing), |_, _| {})
    }

    /// A server behind TLS, that waits this long for a greeting.
    pub(crate) fn with_tls(patience: Duration) -> Self {
        let patience = Timeouts { head: patience, ..Timeouts::default() };
        Self::start_with(Bundled { parallel: 1, template: None, bound: None }, (patience, Behind::Tls), |_, _| {})
    }

    /// A server whose template offers tools.
    pub(crate) fn with_tools() -> &'static Self {
        static SHARED: OnceLock<Host> = OnceLock::new();
        let template = ChatTemplate::new(include_str!("../clients/tools.jinja")).unwrap();
        SHARED.get_or_init(|| {
            let bundled = Bundled { parallel: 2, template: Some(template), bound: None };
            Self::start_with(bundled, (Timeouts::default(), Behind::Nothing), |_, _| {})
        })
    }

    /// A server whose sequences hold so many tokens.
    pub(crate) fn with_bound(bound: impl Into<EvictionPolicy>) -> Self {
        Self::with_bound_changed(bound, |_| {})
    }

    /// The same with other settings.
    pub(crate) fn with_bound_changed(bound: impl Into<EvictionPolicy>, change: impl FnOnce(&mut Settings)) -> Self {
        let bundled = Bundled { parallel: 2, template: None, bound: Some(bound.into()) };
        Self::start_with(bundled, (Timeouts::default(), Behind::Nothing), |settings, _| change(settings))
    }

    /// A server of one slot with this template.
    pub(crate) fn with_template(template: ChatTemplate) -> Self {
        Self::with_template_changed(template, |_| {})
    }

    /// The same with other settings.
    pub(crate) fn with_template_changed(template: ChatTemplate, change: impl FnOnce(&mut Settings)) -> Self {
        let bundled = Bundled { parallel: 1, template: Some(template), bound: None };
        Self::start_with(bundled, (Timeouts::default(), Behind::Nothing), |settings, _| change(settings))
    }

    fn start_with(
        bundled: Bundled,
        (patience, behind): (Timeouts, Behind),
        change: impl FnOnce(&mut Settings, &mut Access),
    ) -> Self {
        let (mut settings, mut access) = (settings(bundled.parallel), Access::default());
        change(&mut settings, &mut access);
        Self::start_as((patience, behind), (settings, access), Arc::new(bundled))
    }

    /// A server of one slot for a model that is loaded in a way of its own.
    pub(crate) fn with_loader(loader: Arc<dyn Loader>) -> Self {
        Self::with_models(&["tiny"], loader)
    }

    /// The same for models of these names.
    pub(crate) fn with_models(names: &[&str], loader: Arc<dyn Loader>) -> Self {
        let served = (settings(1), Access::default());
        Self::start_on((Timeouts::default(), Behind::Nothing), served, (names, loader))
    }

    fn start_as(how: (Timeouts, Behind), served: (Settings, Access), loader: Arc<dyn Loader>) -> Self {
        Self::start_on(how, served, (&["tiny"], loader))
    }

    fn start_on(
        (patience, behind): (Timeouts, Behind),
        (settings, access): (Settings, Access),
        (names, loader): (&[&str], Arc<dyn Loader>),
    ) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let models = Models::new(&names, loader);
        let (metrics, responses) = (Metrics::default(), Responses::default());
        let server = Arc::new(Server { settings, models, metrics, access, responses });
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let files = (tls::file("server.pem"), tls::file("server.key"));
        let tls = (behind == Behind::Tls).then(|| threads.block_on(listen::tls(&files.0, &files.1)).unwrap());
        let serving = listen::serve(listener, tls, (Handle::new(), patience), router(server.clone()));
        threads.spawn(async move { serving.await.unwrap() });
        Self { address, server, threads: Some(threads) }
    }

    /// The server of all tests that need nothing special.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Host> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(PARALLEL, |_, _| {}))
    }

    /// Sends a body and reads the head of its reply.
    pub(crate) fn open(&self, path: &str, body: &Value) -> Opened {
        open(self.address, ("POST", path), &[], body.to_string().as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.open(path, body).rest()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        open(self.address, (method, path), headers, body.as_bytes()).rest()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}
