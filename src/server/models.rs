//! Models by name: loaded when they are first asked for, unloaded when another one needs their memory or a client says so.

use super::{
    ApiError, FileFacts, Settings,
    options::block_in_place,
    served::{Loaded, Served},
};
use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Loads models; knows devices and memory, which the server does not.
pub trait Loader: Send + Sync + std::fmt::Debug {
    /// Loads the model of this name.
    ///
    /// # Errors
    /// Why it cannot be loaded, in one line.
    fn load(&self, name: &str, room: MemoryDemand) -> Result<Loaded, LoadError>;

    /// What the file of the model of this name says, if there is one. It is not loaded for that.
    fn look(&self, _name: &str) -> Option<FileFacts> {
        None
    }
}

/// Which room a model is loaded into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryDemand {
    /// What there is: its context is as long as fits.
    AsThereIs,
    /// As much as it asks for, or none: another model could make room.
    AsAskedFor,
}

/// Why a model cannot be loaded, in one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// However much room there is, as where its file is broken.
    Fault(String),
    /// It wants more memory than there would be without the other models.
    TooLarge(String),
    /// It has no room beside the others.
    NoRoom(String),
}

/// A model that may be loaded.
#[derive(Debug)]
struct Entry {
    name: String,
    served: Mutex<Option<Arc<Served>>>,
    /// What its file said when it was looked at last.
    file: Mutex<Option<FileFacts>>,
}

/// A model in a list of all.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What its file says.
    pub file: FileFacts,
    /// The model, if it is loaded.
    pub served: Option<Arc<Served>>,
}

impl Listed {
    /// When its file was changed, or, if it has none, when it was loaded, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.served.as_ref().map_or(self.file.modified, |served| served.created)
    }
}

/// How long an engine may take to give its memory back, and how often that is looked at. What its last requests still
/// hold is not waited for any longer: who asked for another model is told to come again.
const UNLOADING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// The models.
#[derive(Debug)]
pub struct Models {
    entries: Vec<Entry>,
    loader: Arc<dyn Loader>,
    /// One model is loaded at a time.
    loading: Arc<tokio::sync::Mutex<()>>,
    /// Whether the server stops.
    stops: watch::Sender<bool>,
}

/// The right to load a model.
pub type LoadPermit = tokio::sync::OwnedMutexGuard<()>;

impl Entry {
    fn served(&self) -> Option<Arc<Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, served: Option<Arc<Served>>) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = served;
    }

    fn listed(&self, loader: &dyn Loader) -> Listed {
        let served = self.served();
        let mut known = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match (&served, known.take().filter(FileFacts::are_current)) {
            (Some(served), _) => served.facts.file.clone(),
            (None, Some(known)) => known,
            (None, None) => loader.look(&self.name).unwrap_or_default(),
        };
        *known = Some(file.clone());
        Listed { name: self.name.clone(), file, served }
    }
}

fn is_idle(entry: &&Entry) -> bool {
    entry.served().is_some_and(|served| served.slots.busy() == 0)
}

/// Waits until an engine has given its memory back, but not for long.
async fn freed(memory: &Weak<()>) {
    let began = Instant::now();
    while memory.strong_count() > 0 && began.elapsed() < UNLOADING {
        tokio::time::sleep(LOOK).await;
    }
}

impl Models {
    /// Models by these names, at least one, none of them loaded.
    pub fn new(names: &[String], loader: Arc<dyn Loader>) -> Self {
        let entry = |name: &String| Entry { name: name.clone(), served: Mutex::new(None), file: Mutex::new(None) };
        let entries = names.iter().map(entry).collect();
        Self { entries, loader, loading: Arc::default(), stops: watch::Sender::new(false) }
    }

    /// The server stops: nobody waits for a model to be loaded any more.
    pub fn stop(&self) {
        self.stops.send_replace(true);
    }

    /// Waits for [`Models::stop`].
    pub async fn stopped(&self) {
        let mut stops = self.stops.subscribe();
        // Fails only when the sender is gone, and it is borrowed here.
        let _ = stops.wait_for(|stops| *stops).await;
    }

    /// All names, and the models behind those that are loaded.
    pub fn all(&self) -> Vec<(String, Option<Arc<Served>>)> {
        self.entries.iter().map(|entry| (entry.name.clone(), entry.served())).collect()
    }

    /// All models, with what their files say.
    pub fn listed(&self) -> Vec<Listed> {
        block_in_place(|| self.entries.iter().map(|entry| entry.listed(&*self.loader)).collect())
    }

    /// The models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        self.entries.iter().filter_map(Entry::served).collect()
    }

    fn entry(&self, name: Option<&str>) -> Result<&Entry, ApiError> {
        let by_name = |name: &str| self.entries.iter().find(|entry| entry.name == name);
        match (name, &self.entries[..]) {
            (None, [first, ..]) | (Some(_), [first]) => Ok(first),
            (Some(name), _) => by_name(name).ok_or_else(|| {
                let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
                let message = format!("model: {name:?}, expected one of {}", names.join(", "));
                ApiError { param: Some("model".into()), ..ApiError::no_model(message) }
            }),
            (None, []) => Err(ApiError::internal("there is no model")),
        }
    }

    /// The model that is meant by a name, by its own.
    pub fn name(&self, name: Option<&str>) -> Result<&str, ApiError> {
        Ok(&self.entry(name)?.name)
    }

    /// The model of a name, if it is loaded.
    pub fn find(&self, name: Option<&str>) -> Result<Option<Arc<Served>>, ApiError> {
        Ok(self.entry(name)?.served())
    }

    /// Waits until nobody else loads a model.
    pub async fn turn(&self) -> LoadPermit {
        self.loading.clone().lock_owned().await
    }

    /// The model of a name, which is loaded unless somebody has done so meanwhile.
    pub async fn get(
        &self,
        name: Option<&str>,
        _turn: LoadPermit,
        settings: &Settings,
    ) -> Result<Arc<Served>, ApiError> {
        let entry = self.entry(name)?;
        if let Some(served) = entry.served() {
            return Ok(served);
        }
        loop {
            // With nobody left to make room, what there is has to do.
            let can_unload = self.entries.iter().any(|entry| is_idle(&entry));
            let room = if can_unload { MemoryDemand::AsAskedFor } else { MemoryDemand::AsThereIs };
            let refused = match self.load(&entry.name, room, settings).await {
                Ok(served) => {
                    entry.set(Some(served.clone()));
                    return Ok(served);
                }
                // Nobody has to go for what that does not help.
                Err(LoadError::Fault(what)) => return Err(ApiError::internal(what)),
                Err(LoadError::TooLarge(what)) => return Err(ApiError::no_room(what)),
                Err(LoadError::NoRoom(what)) => what,
            };
            let Some(memory) = self.unload_one() else {
                return Err(ApiError::busy(refused, 5));
            };
            freed(&memory).await;
        }
    }

    /// Unloads a model if it is idle: whoever asks for it next has it loaded again.
    pub async fn unload(&self, name: &str) {
        let _turn = self.turn().await;
        let entry = self.entries.iter().filter(is_idle).find(|entry| entry.name == name);
        let Some((entry, served)) = entry.and_then(|entry| Some((entry, entry.served()?))) else { return };
        let memory = served.engine.memory();
        drop(served);
        tracing::info!(model = entry.name, "unloaded: a client asked for that");
        entry.set(None);
        freed(&memory).await;
    }

    async fn load(&self, name: &str, room: MemoryDemand, settings: &Settings) -> Result<Arc<Served>, LoadError> {
        let (loader, name) = (self.loader.clone(), name.to_string());
        let slots = (settings.parallel, settings.queue);
        let load = move || {
            let loaded = loader.load(&name, room)?;
            Served::new(&name, loaded, slots).map(Arc::new).map_err(LoadError::Fault)
        };
        tokio::task::spawn_blocking(load).await.map_err(|error| LoadError::Fault(error.to_string()))?
    }

    /// Unloads the idle model that was not used for the longest time, and returns what lives as long as its memory;
    /// none if there is no such model.
    fn unload_one(&self) -> Option<Weak<()>> {
        let loaded = self.entries.iter().filter(is_idle);
        let entry = loaded.min_by_key(|entry| entry.served().map(|served| served.last_used()))?;
        let memory = entry.served()?.engine.memory();
        tracing::info!(model = entry.name, "unloaded: another model needs its memory");
        entry.set(None);
        Some(memory)
    }
}
