//! The loading pipeline, top to bottom: map, read, lower, bind, prepare.

use super::{
    ModelError, ModelSpec, bundled,
    lower::lower,
    sampling::{self, Recommended},
    weights,
};
use crate::{
    arch,
    engine::Runner,
    text::{ChatTemplate, Tokenizer},
};
use kvas_backend::{Backend, Limits, Program};
use kvas_gguf::GgufFile;
use std::{path::Path, sync::Arc};

/// A model file that has been read and checked; nothing is on a device yet.
#[derive(Debug)]
pub struct Model {
    /// The mapped file.
    pub file: GgufFile,
    /// What the model is.
    pub spec: ModelSpec,
    /// What runs it.
    pub program: Arc<Program>,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
}

impl Model {
    /// Maps and checks a file. `override_pre` replaces the pre-tokenizer it names.
    pub fn open(path: &Path, override_pre: Option<&str>) -> Result<Self, ModelError> {
        Self::of_file(GgufFile::open(path)?, override_pre)
    }

    /// The model that comes with kvas.
    pub fn bundled(override_pre: Option<&str>) -> Result<Self, ModelError> {
        Self::of_file(bundled::file()?, override_pre)
    }

    /// The file of a model, with its tensors by the names they have here; nothing else of it is looked at.
    pub fn file(path: &Path) -> Result<GgufFile, ModelError> {
        Ok(GgufFile::open(path)?.renamed(weights::other_name)?)
    }

    /// Checks a file that is open.
    pub fn of_file(file: GgufFile, override_pre: Option<&str>) -> Result<Self, ModelError> {
        let file = file.renamed(weights::other_name)?;
        let spec = arch::read(&arch::Header::of_file(&file)?)?;
        let program = lower(&spec);
        program.validate()?;
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata(), override_pre)?);
        weights::bind(&program, &spec, &file)?;
        Ok(Self { file, spec, program: Arc::new(program), tokenizer })
    }

    /// The file's chat template; ChatML if it has none.
    pub fn template(&self) -> Result<ChatTemplate, ModelError> {
        Ok(ChatTemplate::from_metadata(self.file.metadata())?.unwrap_or_else(ChatTemplate::chatml))
    }

    /// How its authors would have tokens chosen.
    pub fn sampling(&self) -> Recommended {
        sampling::recommended(self.file.metadata())
    }

    /// Hands the weights to a backend. `progress` hears (bytes that are where they are used, bytes in all)
    /// after every weight.
    pub fn prepare(
        &self,
        mut backend: Box<dyn Backend>,
        limits: Limits,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Runner, ModelError> {
        let mut source = weights::FileWeights::new(&self.file, progress);
        backend.prepare(self.program.clone(), &mut source, limits)?;
        Ok(Runner::new(backend, self.program.clone(), limits))
    }
}
