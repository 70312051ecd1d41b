//! Flags that several commands share, named as llama.cpp names them.

use super::input;
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::HumanBytes;
use kvas::{
    model::{Model, bundled},
    sampling::{SamplerParams, SamplingError, parse_samplers},
    session::{ModelId, OffloadCache},
    speculation::DEFAULT_DRAFTS,
    stdio::note,
    text::ChatTemplate,
};
use kvas_backend::{KvType, StateType};
use kvas_gguf::Quant;
use kvas_tools::quantize::{MIXES, Mix};
use serde_json::{Map, Value};
use std::{borrow::Cow, path::PathBuf};

/// Which model, and how it is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelFlags {
    /// Model file (GGUF); the first file of a split model [default: the model that comes with kvas]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

impl ModelFlags {
    /// The file as it was given, or the name of the bundled model.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        self.model.as_ref().map_or(bundled::NAME.into(), |file| file.to_string_lossy())
    }
}

/// How a model is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunFlags {
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
    /// Tokens of context per sequence [default: as the model was trained, as far as memory allows]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    pub(crate) ctx_size: Option<u32>,
    /// Most tokens read in one step: on a GPU 2048 read prompts faster, above all with experts, and others wait longer for a token
    #[arg(short = 'b', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch_size: u32,
    /// Element type of cached keys [default: f16; f32 for a model of f32 weights]
    #[arg(long, value_enum)]
    cache_type_k: Option<CacheType>,
    /// Element type of cached values; the same as for keys
    #[arg(long, value_enum)]
    cache_type_v: Option<CacheType>,
    /// Tokens of a page of cached keys and values, a power of two [default: 16; 64 of 8 bits where all tokens are held]
    #[arg(long, value_name = "N")]
    page_size: Option<u32>,
    /// Tokens a recurrent layer keeps as inputs before it folds them into its state; 0 writes the state every step
    /// [default: what moves the fewest bytes, with drafts more, 0 for states that fade by channel;
    /// `kvas plan` shows it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) replay: Option<u32>,
    /// Tokens up to which a new sequence keeps its inputs and no recurrent state; 0 for none [default: on a
    /// processor as long as that moves fewer bytes, where states weigh more than weights; none on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) kv_only: Option<u32>,
    /// Element type recurrent states are stored in; f16 halves their memory and the time to read them
    #[arg(long, value_enum, default_value_t = StoredState::F32)]
    state_type: StoredState,
    /// Pre-tokenizer to use instead of the one the file names
    #[arg(long, value_name = "NAME")]
    pub(crate) override_pre: Option<String>,
    /// Say more on stderr
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Where to compute, and with how much of it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ComputeFlags {
    /// Threads for computing; more than the processor runs at once make it slower [default: all of those]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Where to compute
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Layers on the GPU, the last ones; the processor computes the others. Also -ngl N [default: all]
    #[arg(long, visible_alias = "gpu-layers", value_name = "N")]
    pub(crate) n_gpu_layers: Option<u32>,
    /// Leave the experts of every layer to the processor and its memory
    #[arg(long)]
    pub(crate) cpu_moe: bool,
    /// Leave weights as they are in the file instead of reordering them for the processor when they are loaded: the
    /// file's memory is shared with other processes, tokens come much slower
    #[arg(long)]
    pub(crate) no_repack: bool,
    /// Launch every kernel on its own instead of whole steps as CUDA graphs: slower, the same results
    #[arg(long)]
    pub(crate) eager: bool,
}

impl ComputeFlags {
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(cores, usize::from)
    }
}

/// Threads that run at once on this machine, of what a container leaves of it.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Where to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// A GPU if there is one, else the processor
    #[default]
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU, the first one that the driver shows
    Cuda,
    /// The naive reference: slow, and the truth that `diff` and tests compare with
    Reference,
}

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheType {
    /// 4 bytes
    F32,
    /// 2 bytes
    F16,
    /// 2 bytes, wider range
    Bf16,
    /// 1 byte, with a scale for every key and every value of a head
    #[value(name = "q8_0")]
    Q8_0,
    /// 1 byte as a float (E4M3), with such scales: errors are relative to each element
    #[value(name = "fp8", aliases = ["f8_e4m3", "fp8_e4m3"])]
    F8,
}

/// Element type of recurrent states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoredState {
    /// 4 bytes
    F32,
    /// 2 bytes
    F16,
}

impl StoredState {
    pub(crate) const fn state_type(self) -> StateType {
        match self {
            StoredState::F32 => StateType::F32,
            StoredState::F16 => StateType::F16,
        }
    }
}

impl CacheType {
    pub(crate) const fn kv_type(self) -> KvType {
        match self {
            CacheType::F32 => KvType::F32,
            CacheType::F16 => KvType::F16,
            CacheType::Bf16 => KvType::Bf16,
            CacheType::Q8_0 => KvType::Q8_0,
            CacheType::F8 => KvType::F8,
        }
    }
}

/// Most tokens of an answer that can be asked for: as many as of a context.
pub(crate) const MOST_PREDICTED: i64 = 1 << 30;

/// Rows a step may be taken back by where nothing is drafted: as many as with the drafts that are made where nobody says
/// how many.
pub(crate) const REPLAY_WINDOW: usize = DEFAULT_DRAFTS + 1;

impl RunFlags {
    /// `None` for 0, as llama.cpp has it: the model's own.
    pub(crate) fn context(&self) -> Option<usize> {
        self.ctx_size.filter(|tokens| *tokens > 0).map(|tokens| tokens as usize)
    }

    /// A model of f32 weights is run for exactness, and its pages should not be what spoils it.
    pub(crate) fn kv_type(&self, model: &Model) -> anyhow::Result<KvType> {
        if let (Some(k), Some(v)) = (self.cache_type_k, self.cache_type_v)
            && k != v
        {
            bail!("--cache-type-v differs from --cache-type-k, expected one type for both");
        }
        let is_exact = || model.file.tensor("token_embd.weight").is_some_and(|info| info.quant == Quant::F32);
        Ok(match self.cache_type_k.or(self.cache_type_v) {
            Some(cache_type) => cache_type.kv_type(),
            None if is_exact() => KvType::F32,
            None => KvType::F16,
        })
    }

    pub(crate) const fn state_type(&self) -> StateType {
        self.state_type.state_type()
    }

    /// Tokens of a page. Memory is read faster the more bytes of a head lie together: attention to keys and values of 8 bits takes
    /// 0.83 to 0.96 of the time in pages of 64 tokens, to those of 16 bits 0.91 to 0.96 (benches/record, 2026-11-30). Where tokens
    /// are evicted, `holds_all` is false, and what is held is whole pages: smaller ones.
    pub(crate) fn page_size(&self, kv_type: KvType, holds_all: bool) -> anyhow::Result<usize> {
        match self.page_size.map(|tokens| tokens as usize) {
            Some(size) if size.is_power_of_two() && (1..=1024).contains(&size) => Ok(size),
            Some(size) => bail!("--page-size {size}, expected a power of two up to 1024"),
            None if holds_all && kv_type.scale_bytes() > 0 => Ok(4 * PAGE),
            None => Ok(PAGE),
        }
    }
}

/// Tokens of a page as a rule.
pub(crate) const PAGE: usize = 16;

/// Where snapshots go that memory has no room for.
#[derive(Debug, Clone, Args)]
pub(crate) struct OffloadFlags {
    /// GiB of the host's memory for snapshots (kept prefixes), and for preempted requests, that the device has no room for;
    /// on the processor it is taken from what the model may use [default: 0, on a GPU up to 4]
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    snapshot_host: Option<u32>,
    /// Folder for snapshots (kept prefixes) that memory has no room for; they serve the next start, too [default: they are
    /// dropped]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
    /// Most GiB of that folder for each model; the least recently used are deleted first
    #[arg(long, value_name = "GIB", default_value_t = 8, requires = "snapshot_dir", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    snapshot_disk: u32,
}

/// The template of conversations.
#[derive(Debug, Clone, Args)]
pub(crate) struct TemplateFlags {
    /// A file with a chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Variables for the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    /// Most tokens of reasoning; -1 is any number [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1..=MOST_PREDICTED))]
    reasoning_budget: Option<i64>,
}

impl TemplateFlags {
    /// Most tokens of reasoning, if that was said; `usize::MAX` for any number.
    pub(crate) fn reasoning_budget(&self) -> Option<usize> {
        self.reasoning_budget.map(|budget| usize::try_from(budget).unwrap_or(usize::MAX))
    }

    /// The template to use instead of the model's.
    pub(crate) fn template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        let Some(path) = &self.chat_template_file else { return Ok(None) };
        let source = input::text(path, path.display())?;
        ChatTemplate::new(&source).with_context(|| path.display().to_string()).map(Some)
    }

    /// Its variables, if any were given.
    pub(crate) fn variables(&self) -> anyhow::Result<Option<Map<String, Value>>> {
        let Some(text) = &self.chat_template_kwargs else { return Ok(None) };
        match serde_json::from_str(text) {
            Ok(Value::Object(variables)) => Ok(Some(variables)),
            _ => bail!("--chat-template-kwargs {text}, expected a JSON object"),
        }
    }
}

impl OffloadFlags {
    /// Bytes of the host's memory that are set aside.
    pub(crate) fn host_bytes(&self, compute: &ComputeFlags) -> anyhow::Result<u64> {
        let Some(gibibytes) = self.snapshot_host else { return super::device::spare_host_bytes(compute) };
        let (bytes, available) = (u64::from(gibibytes) << 30, super::device::available_bytes());
        if bytes > available {
            // The model would be refused for want of memory, and its own flags be blamed.
            bail!("--snapshot-host {gibibytes}, expected at most the {} that are available", HumanBytes(available));
        }
        Ok(bytes)
    }

    /// Whether there is a folder for them.
    pub(crate) const fn has_folder(&self) -> bool {
        self.snapshot_dir.is_some()
    }

    /// Opens what there is to be of them.
    pub(crate) fn open(&self, model: &ModelId, host_bytes: u64) -> anyhow::Result<Option<OffloadCache>> {
        let offload_cache = OffloadCache::in_memory(model, host_bytes);
        let Some(folder) = &self.snapshot_dir else { return Ok((host_bytes > 0).then_some(offload_cache)) };
        let offload_cache = offload_cache.with_folder(folder, u64::from(self.snapshot_disk) << 30);
        Ok(Some(offload_cache.context("--snapshot-dir")?))
    }
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingFlags {
    /// Temperature; 0 always takes the likeliest token [default: what the model recommends, or 0.8]
    #[arg(long, alias = "temperature", value_name = "T")]
    temp: Option<f32>,
    /// Keep the N likeliest tokens; 0 keeps all [default: what the model recommends, or 40]
    #[arg(long, value_name = "N")]
    top_k: Option<i32>,
    /// Keep the likeliest tokens up to this mass [default: what the model recommends, or 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least this likely against the likeliest [default: what the model recommends, or 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Keep locally typical tokens up to this mass [default: 1, off]
    #[arg(long, alias = "typical-p", value_name = "P")]
    typical: Option<f32>,
    /// Keep logits within this many standard deviations of the largest [default: -1, off]
    #[arg(long, alias = "top-n-sigma", value_name = "N")]
    top_nsigma: Option<f32>,
    /// Let the temperature move with the entropy by this much [default: 0, off]
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// Shape of that movement [default: 1]
    #[arg(long, value_name = "X")]
    dynatemp_exp: Option<f32>,
    /// Tokens the penalties look back on; -1 is all [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    repeat_last_n: Option<i32>,
    /// Factor against repeated tokens [default: what the model recommends, or 1, off]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Subtracted from the logit of tokens already used [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtracted once for each use [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Strength of DRY against repeated sequences [default: 0, off]
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f32>,
    /// Growth of DRY with the length of a repetition [default: 1.75]
    #[arg(long, value_name = "X")]
    dry_base: Option<f32>,
    /// Repetitions shorter than this are free [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// Tokens DRY looks back on; -1 is all [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    dry_penalty_last_n: Option<i32>,
    /// A text that ends a repetition for DRY; may be given several times, `none` for none
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Chance that XTC removes the likeliest tokens [default: 0, off]
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// Probability above which XTC may remove a token [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// 2 for mirostat 2, 0 for none [default: 0]
    #[arg(long, value_name = "N")]
    mirostat: Option<u32>,
    /// Surprise mirostat aims at, in bits [default: 5]
    #[arg(long, value_name = "X")]
    mirostat_ent: Option<f32>,
    /// Learning rate of mirostat [default: 0.1]
    #[arg(long, value_name = "X")]
    mirostat_lr: Option<f32>,
    /// Add to the logit of a token: `15043+1`, `29991-inf`; may be given several times
    #[arg(short, long, value_name = "ID±X", allow_hyphen_values = true)]
    logit_bias: Vec<String>,
    /// Seed; equal seeds give equal answers [default: from the system]
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    seed: Option<i64>,
    /// Samplers in order, by name (`top_k;top_p;temperature`) or by letter (`kpt`)
    #[arg(long, visible_alias = "sampling-seq", value_name = "LIST")]
    samplers: Option<String>,
}

impl SamplingFlags {
    /// Refuses what is wrong before a model is opened.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.over(SamplerParams::default()).map(drop)
    }

    /// What a model recommends, but for what was given; says what it recommends in vain.
    pub(crate) fn over_those_of(&self, model: &Model, file: &str) -> anyhow::Result<SamplerParams> {
        let (params, notes) = self.over_recommended(model, file)?;
        notes.into_iter().for_each(|said| note(format_args!("{said}")));
        Ok(params)
    }

    /// The same, and what is to be said.
    pub(crate) fn over_recommended(&self, model: &Model, file: &str) -> anyhow::Result<(SamplerParams, Vec<String>)> {
        let (params, passed_over) =
            model.sampling().unless(|field| self.gives(field)).map_err(|error| anyhow!("{file}: {error}"))?;
        let notes = passed_over.iter().map(|error| format!("{file}: {error}; not followed, for a flag says it"));
        let params = self.over(params)?;
        params.check_tokens(model.spec.vocab).map_err(by_flag)?;
        Ok((params, notes.collect()))
    }

    /// Whether a parameter that models recommend was given.
    fn gives(&self, field: &str) -> bool {
        match field {
            "temperature" => self.temp.is_some(),
            "top_k" => self.top_k.is_some(),
            "top_p" => self.top_p.is_some(),
            "min_p" => self.min_p.is_some(),
            "repeat_last" => self.repeat_last_n.is_some(),
            "repeat_penalty" => self.repeat_penalty.is_some(),
            "xtc_probability" => self.xtc_probability.is_some(),
            "xtc_threshold" => self.xtc_threshold.is_some(),
            "mirostat" => self.mirostat.is_some(),
            "mirostat_tau" => self.mirostat_ent.is_some(),
            "mirostat_eta" => self.mirostat_lr.is_some(),
            "samplers" => self.samplers.is_some(),
            _ => false,
        }
    }

    /// These parameters, but for those that were given; checked.
    pub(crate) fn over(&self, mut params: SamplerParams) -> anyhow::Result<SamplerParams> {
        fn set<T: Clone>(target: &mut T, flag: &Option<T>) {
            flag.iter().for_each(|value| *target = value.clone());
        }
        set(&mut params.temperature, &self.temp);
        set(&mut params.top_k, &self.top_k);
        set(&mut params.top_p, &self.top_p);
        set(&mut params.min_p, &self.min_p);
        set(&mut params.typical_p, &self.typical);
        set(&mut params.top_n_sigma, &self.top_nsigma);
        set(&mut params.dynatemp_range, &self.dynatemp_range);
        set(&mut params.dynatemp_exponent, &self.dynatemp_exp);
        set(&mut params.repeat_last, &self.repeat_last_n);
        set(&mut params.repeat_penalty, &self.repeat_penalty);
        set(&mut params.presence_penalty, &self.presence_penalty);
        set(&mut params.frequency_penalty, &self.frequency_penalty);
        set(&mut params.dry_multiplier, &self.dry_multiplier);
        set(&mut params.dry_base, &self.dry_base);
        set(&mut params.dry_allowed_length, &self.dry_allowed_length);
        set(&mut params.dry_penalty_last, &self.dry_penalty_last_n);
        set(&mut params.xtc_probability, &self.xtc_probability);
        set(&mut params.xtc_threshold, &self.xtc_threshold);
        set(&mut params.mirostat, &self.mirostat);
        set(&mut params.mirostat_tau, &self.mirostat_ent);
        set(&mut params.mirostat_eta, &self.mirostat_lr);
        if !self.dry_sequence_breaker.is_empty() {
            let breakers = self.dry_sequence_breaker.iter().filter(|text| *text != "none");
            params.dry_sequence_breakers = breakers.cloned().collect();
        }
        // A negative seed asks for one from the system, as in llama.cpp.
        set(&mut params.seed, &self.seed.map(|seed| u64::try_from(seed).ok()));
        if !self.logit_bias.is_empty() {
            params.logit_bias = self.logit_bias.iter().map(|text| bias(text)).collect::<Result<_, _>>()?;
        }
        if let Some(samplers) = &self.samplers {
            params.samplers = parse_samplers(samplers).map_err(by_flag)?;
        }
        params.validate().map_err(by_flag)?;
        Ok(params)
    }
}

/// What is wrong with a parameter, by the name it has on the command line.
fn by_flag(error: SamplingError) -> anyhow::Error {
    if let SamplingError::UnknownSampler { .. } = error {
        // It begins with the name that requests have for the flag.
        return anyhow!("--{error}");
    }
    if let SamplingError::Token { token, vocab, .. } = error {
        return anyhow!("--logit-bias: token {token}, expected an id below the vocabulary size {vocab}");
    }
    let SamplingError::Range { field, found, expected } = &error else { return error.into() };
    let flag = match *field {
        "temperature" => "temp",
        "dynatemp_exponent" => "dynatemp-exp",
        "typical_p" => "typical",
        "top_n_sigma" => "top-nsigma",
        "repeat_last" => "repeat-last-n",
        "dry_penalty_last" => "dry-penalty-last-n",
        "mirostat_tau" => "mirostat-ent",
        "mirostat_eta" => "mirostat-lr",
        field => &field.replace('_', "-"),
    };
    anyhow!("--{flag} {found}, expected {expected}")
}

fn bias(text: &str) -> anyhow::Result<(u32, f32)> {
    let expected = || format!("--logit-bias {text}, expected a token id and a number, as in 15043+1 or 29991-inf");
    let at = text.find(['+', '-']).with_context(expected)?;
    let token = text[..at].parse().ok().with_context(expected)?;
    let value = text[at..].parse().ok().with_context(expected)?;
    Ok((token, value))
}

/// A number of bytes: `4GiB`, `512MiB`, `100000`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text, 0));
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected a number of bytes, KiB, MiB or GiB, as in 4GiB".into())
}

/// The mix of formats that the value of a flag names.
pub(crate) fn mix(flag: &str, name: &str) -> anyhow::Result<&'static Mix> {
    Mix::from_name(name).with_context(|| {
        let names: Vec<String> = MIXES.iter().map(|mix| mix.name.to_lowercase()).collect();
        format!("{flag} {name}, expected one of {}", names.join(", "))
    })
}
