//! The vocabulary in which an architecture is described as data: values, keys, tensors and their transforms.

/// One family of checkpoints and the GGUF files they become.
pub(super) struct Architecture {
    /// `general.architecture` of the file.
    pub(super) name: &'static str,
    /// Another name for the file of a model one of whose blocks has this tag: (tag, name).
    pub(super) variant: Option<(&'static str, &'static str)>,
    /// The names in `architectures` of config.json.
    pub(super) classes: &'static [&'static str],
    /// Numbers to read from config.json, in an order in which defaults only use what came before.
    pub(super) values: &'static [&'static [ValueRow]],
    /// What config.json must not ask for.
    pub(super) refusals: &'static [&'static [Refusal]],
    /// Which of these it must speak of, since the class does what is refused where it does not: (path, expression that is 0
    /// where it does not matter).
    pub(super) explicit: &'static [(&'static str, &'static str)],
    pub(super) keys: &'static [&'static [KeyRow]],
    /// Which mixer each layer has: the first rule that says so for a layer counts.
    pub(super) mixers: &'static [TagRule],
    /// Which feed-forward each layer has, by the same reading.
    pub(super) ffns: &'static [TagRule],
    /// A tag that one block at least must have; empty if there is none.
    pub(super) needs: &'static str,
    /// Where the language model can be inside the checkpoint: where the first tensor of `model` is.
    pub(super) trunks: &'static [Trunk],
    /// Parts of names, as some checkpoints write them and as the rows below do.
    pub(super) renames: &'static [(&'static str, &'static str)],
    /// Sources relative to the trunk, or to the checkpoint where they begin with `/`, which is the head's prefix.
    pub(super) model: &'static [&'static [TensorRow]],
    /// Sources relative to the layer, targets to the block.
    pub(super) layer: &'static [&'static [TensorRow]],
    /// Sources relative to `mtp.`, targets to the first block of the multi-token prediction; empty if it has none.
    pub(super) mtp: &'static [TensorRow],
    /// Layers under `mtp.` that one block is made of: 2 where the second one holds the feed-forward.
    pub(super) mtp_layers_per_block: usize,
    /// Source tensors that may be left unused, beside [`IGNORED`].
    pub(super) ignored: &'static [&'static str],
}

impl Architecture {
    /// The source of the embeddings, relative to the trunk.
    pub(super) fn embeddings(&self) -> &'static str {
        let embeddings = self.model.iter().copied().flatten().next().and_then(|row| match row.origin.source {
            Source::Tensor(name) => Some(name),
            Source::Experts(_) | Source::RopeFactors => None,
        });
        embeddings.expect("the first row of every model is its embeddings")
    }
}

/// What most architectures have: a dense transformer without peculiarities, still to be named and described.
pub(super) const PLAIN: Architecture = Architecture {
    name: "",
    variant: None,
    classes: &[],
    values: &[],
    refusals: &[],
    explicit: &[],
    keys: &[],
    mixers: &[TagRule::All("attention")],
    ffns: &[TagRule::All("dense")],
    needs: "",
    trunks: &[],
    renames: &[],
    model: &[],
    layer: &[],
    mtp: &[],
    mtp_layers_per_block: 1,
    ignored: &[],
};

/// What no configuration may ask for: weights whose numbers are stored in other ways than those that can be read, and
/// attention to what comes later.
pub(super) const REFUSED: &[Refusal] = &[
    Refusal {
        path: "quantization_config.quant_method",
        accepted: &[
            "\"fp8\"",
            "\"mxfp4\"",
            "\"compressed-tensors\"",
            "\"modelopt\"",
            "\"gptq\"",
            "\"awq\"",
            "\"auto-round\"",
            "\"intel/auto-round\"",
            "\"bitsandbytes\"",
        ],
    },
    Refusal { path: "quantization_config.quant_algo", accepted: ALGORITHMS },
    Refusal {
        path: "quantization_config.format",
        accepted: &[
            "\"float-quantized\"",
            "\"naive-quantized\"",
            "\"nvfp4-pack-quantized\"",
            "\"mxfp4-pack-quantized\"",
            "\"mxfp8-quantized\"",
            "\"pack-quantized\"",
            "\"int-quantized\"",
            "\"mixed-precision\"",
            "\"dense\"",
            "\"gptq\"",
            "\"gptq_v2\"",
            "\"gemm\"",
        ],
    },
    Refusal { path: "is_causal", accepted: &["true"] },
];

/// What ModelOpt calls the forms of FP8 and NVFP4, in `config.json` or in a file of its own. Tensors of a mixed checkpoint
/// say what they are.
const ALGORITHMS: &[&str] =
    &["\"FP8\"", "\"fp8\"", "\"FP8_PB_WO\"", "\"FP8_PER_CHANNEL_PER_TOKEN\"", "\"NVFP4\"", "\"MIXED_PRECISION\""];

/// The same of `hf_quant_config.json`, beside a configuration that says nothing of it.
pub(super) const REFUSED_BESIDE: &[Refusal] = &[Refusal { path: "quantization.quant_algo", accepted: ALGORITHMS }];

/// Prefixes of the tensors of a language model; `trunk` is in front of the embeddings and of `layers.0.`.
pub(super) struct Trunk {
    pub(super) trunk: &'static str,
    pub(super) head: &'static str,
}

/// Patterns of source tensors that no architecture needs: a `*` stands for anything.
pub(super) const IGNORED: &[&str] = &[
    "*.rotary_emb.inv_freq",
    // Of activations and caches of quantised models.
    "*.input_scale",
    "*.input_global_scale",
    "*.k_scale",
    "*.v_scale",
    "*.attn.masked_bias",
    "*.attention.masked_bias",
    "model.visual.*",
    "visual.*",
    "vision_model.*",
    "mlp1.*",
    "model.vision_tower.*",
    "vision_tower.*",
    "model.multi_modal_projector.*",
    "multi_modal_projector.*",
    "model.audio_tower.*",
];

/// A number of config.json under a name that expressions use.
pub(super) struct ValueRow {
    pub(super) name: &'static str,
    /// Dotted paths, the first one that is there counts.
    pub(super) paths: &'static [&'static str],
    /// Expression for a configuration without it; `None` if it must be there.
    pub(super) default: Option<&'static str>,
}

/// A value that must be there.
pub(super) const fn required(name: &'static str, paths: &'static [&'static str]) -> ValueRow {
    ValueRow { name, paths, default: None }
}

/// A value with a default.
pub(super) const fn or(name: &'static str, paths: &'static [&'static str], default: &'static str) -> ValueRow {
    ValueRow { name, paths, default: Some(default) }
}

/// A setting that the file format or the architecture cannot carry.
pub(super) struct Refusal {
    pub(super) path: &'static str,
    /// JSON texts that are accepted; a missing or null setting always is.
    pub(super) accepted: &'static [&'static str],
}

/// A metadata key, relative to the architecture's name.
pub(super) struct KeyRow {
    pub(super) key: &'static str,
    pub(super) value: KeyValue,
    /// Expression; the key is written if it is not 0.
    pub(super) when: &'static str,
}

/// How a key's value is made.
pub(super) enum KeyValue {
    /// u32 of an expression.
    Count(&'static str),
    /// f32 of an expression.
    Number(&'static str),
    /// A text as it is.
    Text(&'static str),
    /// bool: true if the expression is not 0.
    Truth(&'static str),
    /// [bool] per block: true where the block has the tag.
    Flags(&'static str),
    /// [i32] per block: the expression of the first tag that the block has, or 0.
    Counts(&'static [(&'static str, &'static str)]),
    /// [i32] of the first list found at the paths, or the default, padded with 0 to four.
    Sections { paths: &'static [&'static str], default: [i32; 3] },
}

pub(super) const fn count(key: &'static str, expression: &'static str) -> KeyRow {
    KeyRow { key, value: KeyValue::Count(expression), when: "" }
}

pub(super) const fn number(key: &'static str, expression: &'static str) -> KeyRow {
    KeyRow { key, value: KeyValue::Number(expression), when: "" }
}

pub(super) const fn text(key: &'static str, value: &'static str) -> KeyRow {
    KeyRow { key, value: KeyValue::Text(value), when: "" }
}

pub(super) const fn flags(key: &'static str, tag: &'static str) -> KeyRow {
    KeyRow { key, value: KeyValue::Flags(tag), when: "" }
}

pub(super) const fn truth(key: &'static str, expression: &'static str) -> KeyRow {
    KeyRow { key, value: KeyValue::Truth(expression), when: "" }
}

pub(super) const fn counts(key: &'static str, tags: &'static [(&'static str, &'static str)]) -> KeyRow {
    KeyRow { key, value: KeyValue::Counts(tags), when: "" }
}

impl KeyRow {
    pub(super) const fn when(mut self, expression: &'static str) -> KeyRow {
        self.when = expression;
        self
    }
}

/// Every tag of a block: what mixes its tokens, and what feeds forward. `none` is in place of a part it does not have.
pub(super) const TAGS: &[&str] = &["attention", "linear", "mamba", "conv", "dense", "moe", "none"];

/// Says of some layers which tag they have.
pub(super) enum TagRule {
    /// Every layer has this tag.
    All(&'static str),
    /// The setting at the path, if it is there, has an entry for each layer: a list of texts, or a text of letters.
    /// Each entry with its tag.
    Listed { path: &'static str, tags: &'static [(&'static str, &'static str)] },
    /// The layers that the list at the path names, counted from `first`, have the tag.
    Numbered { path: &'static str, first: usize, tag: &'static str },
    /// Layers whose number leaves the remainder `offset` when divided by `period` have the tag, if `when` is not 0.
    Every { period: &'static str, offset: &'static str, tag: &'static str, when: &'static str },
    /// The first layers have the tag.
    Leading { count: &'static str, tag: &'static str },
}

/// A tensor of the file and where it comes from.
pub(super) struct TensorRow {
    pub(super) target: &'static str,
    /// The row is for layers with this tag; empty for all.
    pub(super) tag: &'static str,
    /// Expression; the tensor is written if it is not 0.
    pub(super) when: &'static str,
    pub(super) origin: Origin,
    /// Where else the checkpoint may have it.
    pub(super) alternative: Option<Origin>,
}

/// A source in the checkpoint, the shape it must have there, and what becomes of it.
pub(super) struct Origin {
    pub(super) source: Source,
    /// Sizes as the checkpoint has them, the contiguous one last; of one expert for [`Source::Experts`].
    pub(super) shape: &'static str,
    pub(super) transforms: &'static [Transform],
}

/// What an origin reads.
pub(super) enum Source {
    /// One tensor.
    Tensor(&'static str),
    /// One tensor per expert, `{e}` in the name, stacked along a new first dimension.
    Experts(&'static str),
    /// The frequency factors of llama3 rope scaling, computed from the configuration.
    RopeFactors,
}

/// A change on the way from checkpoint to file. Rows are along all dimensions but the last, columns along the last;
/// a tensor of one dimension is one row, and what is said of rows holds for its columns.
#[derive(Debug)]
pub(super) enum Transform {
    /// x + 1: norms stored as the difference from 1.
    AddOne,
    /// -exp(x): the logarithm of a decay rate.
    NegateExp,
    /// Other dimensions for the same elements.
    Reshape(&'static str),
    /// Rows of each head from halves (i, i + d/2) to pairs (2i, 2i + 1).
    PairRope {
        /// Number of heads.
        heads: &'static str,
    },
    /// After the first `skip` rows, groups of members of `size` rows each: from (group, member) to (member, group).
    GroupedToTiled { skip: &'static str, groups: &'static str, members: &'static str, size: &'static str },
    /// The same along the columns.
    GroupedToTiledColumns { groups: &'static str, members: &'static str, size: &'static str },
    /// Of `groups` equal groups of rows, the slices (first row, rows): all groups' first slice, then all groups' second.
    TakeRows { groups: &'static str, slices: &'static [(&'static str, &'static str)] },
    /// Successive runs of rows (number of rows, factor): each number times the factor of its run, after all else.
    ScaleRows(&'static [(&'static str, &'static str)]),
    /// The last two dimensions swapped; must be the last transform.
    Transpose,
}

pub(super) const fn tensor(name: &'static str, shape: &'static str, transforms: &'static [Transform]) -> Origin {
    Origin { source: Source::Tensor(name), shape, transforms }
}

pub(super) const fn experts(name: &'static str, shape: &'static str) -> Origin {
    Origin { source: Source::Experts(name), shape, transforms: &[] }
}

/// A row for every layer.
pub(super) const fn row(target: &'static str, origin: Origin) -> TensorRow {
    TensorRow { target, tag: "", when: "", origin, alternative: None }
}

/// A row for a tensor that is only renamed.
pub(super) const fn renamed(target: &'static str, source: &'static str, shape: &'static str) -> TensorRow {
    row(target, tensor(source, shape, &[]))
}

impl TensorRow {
    pub(super) const fn at(mut self, tag: &'static str) -> TensorRow {
        self.tag = tag;
        self
    }

    pub(super) const fn when(mut self, expression: &'static str) -> TensorRow {
        self.when = expression;
        self
    }

    pub(super) const fn otherwise(mut self, alternative: Origin) -> TensorRow {
        self.alternative = Some(alternative);
        self
    }
}
