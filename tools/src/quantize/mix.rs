//! The mixes users know by name: which tensor of a model is stored in which format. The choices are those of llama.cpp's
//! quantiser, as data.

use kvas_gguf::{GgufError, Metadata, Quant};
use regex_automata::meta::Regex;

use Quant::{Bf16, F16, F32, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use Role::{AttentionOutput, Down, Output, Value};
use When::{
    Always, EightExperts, First, FirstEighthUnweighted, FirstEighthWeighted, FirstShare, MoreBits, SharedHeads, Stacked,
};

/// A mix: one format for most matrices, and others for those that matter more.
#[derive(Debug, PartialEq, Eq)]
pub struct Mix {
    /// The name users give, in any case: `Q4_K_M`.
    pub name: &'static str,
    /// What most matrices become.
    pub base: Quant,
    /// `general.file_type`.
    pub file_type: u32,
    /// Matrices that become something else; the first rule that holds decides.
    rules: &'static [Rule],
}

/// One exception of a mix.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// `None` for every role.
    role: Option<Role>,
    when: When,
    quant: Quant,
}

/// What a tensor does in a model, as far as mixes care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The output matrix, or the embedding where that is both.
    Output,
    /// Values of attention, alone or in one matrix with others.
    Value,
    Key,
    AttentionOutput,
    /// The second matrix of a feed-forward network.
    Down,
    Other,
}

/// Where a rule holds. Places are counted over the tensors of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// The first so many.
    First(usize),
    /// The first of so many equal shares of them all.
    FirstShare(usize),
    /// The first eighth, the last eighth, and every third between.
    MoreBits,
    /// Four or more heads share a key head.
    SharedHeads,
    /// The model has eight experts.
    EightExperts,
    /// The first eighth, if an importance matrix is there.
    FirstEighthWeighted,
    /// The first eighth, if none is.
    FirstEighthUnweighted,
    /// The tensor holds the matrices of several experts.
    Stacked,
}

const fn rule(role: Role, when: When, quant: Quant) -> Rule {
    Rule { role: Some(role), when, quant }
}

const fn everywhere(when: When, quant: Quant) -> Rule {
    Rule { role: None, when, quant }
}

const fn mix(name: &'static str, base: Quant, file_type: u32, rules: &'static [Rule]) -> Mix {
    Mix { name, base, file_type, rules }
}

const FIVE_BITS_WITH_EXPERTS: Rule = rule(AttentionOutput, EightExperts, Q5K);

/// Every mix, from the smallest.
pub const MIXES: &[Mix] = &[
    mix(
        "Q2_K",
        Q2K,
        10,
        &[
            rule(Value, SharedHeads, Q4K),
            rule(Value, Always, Q3K),
            rule(Down, Always, Q3K),
            FIVE_BITS_WITH_EXPERTS,
            rule(AttentionOutput, Always, Q3K),
        ],
    ),
    mix("Q3_K_S", Q3K, 11, &[FIVE_BITS_WITH_EXPERTS]),
    mix(
        "Q3_K_M",
        Q3K,
        12,
        &[
            rule(Value, First(2), Q5K),
            rule(Value, Always, Q4K),
            rule(Down, FirstShare(16), Q5K),
            rule(Down, Always, Q4K),
            FIVE_BITS_WITH_EXPERTS,
            rule(AttentionOutput, Always, Q4K),
        ],
    ),
    mix(
        "Q3_K_L",
        Q3K,
        13,
        &[
            rule(Value, Always, Q5K),
            rule(Down, Always, Q5K),
            rule(AttentionOutput, EightExperts, Q3K),
            rule(AttentionOutput, Always, Q5K),
        ],
    ),
    mix(
        "IQ4_XS",
        Iq4Xs,
        30,
        &[rule(Value, SharedHeads, Q5K), rule(Down, FirstEighthUnweighted, Q5K), FIVE_BITS_WITH_EXPERTS],
    ),
    mix(
        "IQ4_NL",
        Iq4Nl,
        25,
        &[rule(Value, SharedHeads, Q5K), rule(Down, FirstEighthUnweighted, Q5K), FIVE_BITS_WITH_EXPERTS],
    ),
    mix("Q4_0", Q4_0, 2, &[rule(Down, FirstEighthWeighted, Q4_1)]),
    mix("Q4_1", Q4_1, 3, &[]),
    mix("Q4_K_S", Q4K, 14, &[rule(Value, First(4), Q5K), rule(Down, FirstShare(8), Q5K), FIVE_BITS_WITH_EXPERTS]),
    mix("Q4_K_M", Q4K, 15, &[rule(Value, MoreBits, Q6K), rule(Down, MoreBits, Q6K), FIVE_BITS_WITH_EXPERTS]),
    mix("MXFP4_MOE", Mxfp4, 38, &[rule(Output, Always, Q8_0), everywhere(Stacked, Mxfp4), everywhere(Always, Q8_0)]),
    mix("Q5_0", Q5_0, 8, &[rule(Down, FirstEighthWeighted, Q5_1)]),
    mix("Q5_1", Q5_1, 9, &[]),
    mix("Q5_K_S", Q5K, 16, &[]),
    mix("Q5_K_M", Q5K, 17, &[rule(Value, MoreBits, Q6K), rule(Down, MoreBits, Q6K)]),
    mix("Q6_K", Q6K, 18, &[]),
    mix("Q8_0", Q8_0, 7, &[]),
    mix("F16", F16, 1, &[]),
    mix("BF16", Bf16, 32, &[]),
    mix("F32", F32, 0, &[]),
];

impl Mix {
    /// The mix of a name. `Q4_K` and the like are what most people mean by them, the medium mix.
    pub fn from_name(name: &str) -> Option<&'static Mix> {
        let find = |name: &str| MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name));
        find(name).or_else(|| find(&format!("{name}_M")))
    }
}

/// What mixes look at in a model, besides its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Blocks, prediction heads among them.
    pub layers: usize,
    /// Experts of a layer; 0 if there are none.
    pub experts: usize,
    /// Heads for each key head in the first layer; 0 if it has no attention.
    pub sharing: usize,
    /// The model is one of those of 70 billion parameters whose value matrices are small for their size.
    pub small_values: bool,
}

impl Facts {
    /// The facts of a file.
    ///
    /// # Errors
    /// `WrongType` or `Missing` for a key that is not as every model has it.
    pub fn of(metadata: &Metadata) -> Result<Facts, GgufError> {
        let architecture = metadata.architecture()?;
        let count = |key: &str| -> Result<Option<usize>, GgufError> {
            // Keys that differ from layer to layer are arrays; the first layer speaks for all.
            let value = metadata.get(&format!("{architecture}.{key}"));
            match value.and_then(|value| value.as_u64s()) {
                Some(values) => Ok(values.first().map(|&value| value as usize)),
                None => Ok(metadata.uint_opt(&format!("{architecture}.{key}"))?.map(|value| value as usize)),
            }
        };
        let layers = metadata.uint(&format!("{architecture}.block_count"))? as usize;
        let heads = count("attention.head_count")?.unwrap_or(0);
        let sharing = heads.checked_div(count("attention.head_count_kv")?.unwrap_or(heads)).unwrap_or(0);
        let small_values = layers == 80 && (architecture == "qwen2" || (architecture == "llama" && sharing > 1));
        Ok(Facts { layers, experts: count("expert_count")?.unwrap_or(0), sharing, small_values })
    }
}

/// A mix, and what the user wants otherwise.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// What decides where nothing below does.
    pub mix: &'static Mix,
    /// Every matrix gets the mix's base format.
    pub pure: bool,
    /// `output.weight` stays as it is.
    pub leave_output: bool,
    /// An importance matrix is there.
    pub weighted: bool,
    /// Format of the output matrix, and of an embedding that is both.
    pub output: Option<Quant>,
    /// Format of the embedding.
    pub embedding: Option<Quant>,
    /// Formats of the tensors whose names match; the first match decides.
    pub by_name: Vec<(Regex, Quant)>,
}

impl Recipe {
    /// A mix as it is.
    pub fn new(mix: &'static Mix) -> Recipe {
        let (output, embedding, by_name) = (None, None, Vec::new());
        Recipe { mix, pure: false, leave_output: false, weighted: false, output, embedding, by_name }
    }

    /// The format a user asked for.
    fn asked_for(&self, name: &str, role: Role) -> Option<Quant> {
        let embedding = self.embedding.filter(|_| name == "token_embd.weight");
        let output = self.output.filter(|_| role == Output);
        let by_name = || self.by_name.iter().find(|(pattern, _)| pattern.is_match(name)).map(|&(_, quant)| quant);
        let base = || self.pure.then_some(self.mix.base);
        embedding.or(output).or_else(by_name).or_else(base)
    }
}

/// A tensor whose format is to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Elements along each dimension, the contiguous one first.
    pub shape: &'a [u64],
    /// What it is stored in if it is left alone.
    pub stored: Quant,
}

/// Names of matrices that are left alone: small, and worth every bit.
const KEPT: &[&str] = &["_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight", "attn_mem_"];

/// Whether a tensor is left alone: vectors, what is no weight or no number, and the names above.
fn is_kept(tensor: &Tensor<'_>, recipe: &Recipe) -> bool {
    let dimensions = tensor.shape.iter().rposition(|&size| size > 1).map_or(0, |last| last + 1);
    dimensions < 2
        || !tensor.name.ends_with("weight")
        || matches!(tensor.stored, Quant::I8 | Quant::I16 | Quant::I32 | Quant::I64)
        || KEPT.iter().any(|kept| tensor.name.contains(kept))
        || (recipe.leave_output && tensor.name == "output.weight")
}

/// The block a tensor belongs to.
fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

fn role_of(name: &str, tied: bool) -> Role {
    let has = |part: &str| name.contains(part);
    match name {
        "output.weight" => Output,
        "token_embd.weight" if tied => Output,
        _ if has("attn_qkv.weight") || has("attn_kv_b.weight") || has("attn_v.weight") => Value,
        _ if has("attn_k.weight") => Role::Key,
        _ if has("attn_output.weight") => AttentionOutput,
        _ if has("ffn_down") => Down,
        _ => Role::Other,
    }
}

/// The first pattern of a recipe that fits no tensor whose format can be chosen, by its place.
pub fn unused_pattern(recipe: &Recipe, tensors: &[Tensor<'_>]) -> Option<usize> {
    let free: Vec<_> = tensors.iter().filter(|tensor| !is_kept(tensor, recipe)).collect();
    let fits = |pattern: &Regex| free.iter().any(|tensor| pattern.is_match(tensor.name));
    recipe.by_name.iter().position(|(pattern, _)| !fits(pattern))
}

/// The format of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// What it has.
    pub quant: Quant,
    /// False if it should have another one, of which its rows are no whole blocks.
    pub fits: bool,
}

/// The formats of the tensors of a model, in the order given.
pub fn choose(recipe: &Recipe, facts: &Facts, tensors: &[Tensor<'_>]) -> Vec<Choice> {
    let tied = tensors.iter().all(|tensor| tensor.name != "output.weight");
    let values = tensors.iter().filter(|tensor| role_of(tensor.name, tied) == Value).count();
    // Places are counted in the order of the blocks, by name within one.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&at| (block_of(tensors[at].name), tensors[at].name));
    let mut chosen: Vec<Choice> = tensors.iter().map(|tensor| Choice { quant: tensor.stored, fits: true }).collect();
    let (mut next_value, mut next_down) = (0, 0);
    for at in order {
        let tensor = &tensors[at];
        if is_kept(tensor, recipe) {
            continue;
        }
        let role = role_of(tensor.name, tied);
        let columns = tensor.shape[0] as usize;
        let quant = recipe.asked_for(tensor.name, role).unwrap_or_else(|| {
            let place = match role {
                Value => Place::next(&mut next_value, values),
                // Models with experts have several such matrices in a block.
                Down if facts.experts > 1 => {
                    Place { index: block_of(tensor.name).unwrap_or_default(), total: facts.layers }
                }
                Down => Place::next(&mut next_down, facts.layers),
                Output | Role::Key | AttentionOutput | Role::Other => Place { index: 0, total: 1 },
            };
            let stacked = tensor.shape.get(2).is_some_and(|&count| count > 1);
            recipe.mix.preferred(role, Circumstances { place, stacked, weighted: recipe.weighted, columns }, facts)
        });
        let fit = fitting(quant, columns);
        chosen[at] = Choice { quant: fit, fits: fit == quant };
    }
    chosen
}

/// Which one of the tensors of a role.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: usize,
    total: usize,
}

impl Place {
    fn next(count: &mut usize, total: usize) -> Place {
        *count += 1;
        Place { index: *count - 1, total }
    }

    fn is_in_first(self, share: usize) -> bool {
        self.index < self.total / share
    }
}

/// What a rule may depend on.
#[derive(Debug, Clone, Copy)]
struct Circumstances {
    place: Place,
    stacked: bool,
    /// An importance matrix is there.
    weighted: bool,
    columns: usize,
}

impl When {
    fn holds(self, now: Circumstances, facts: &Facts) -> bool {
        let Place { index, total } = now.place;
        match self {
            Always => true,
            First(count) => index < count,
            FirstShare(share) => now.place.is_in_first(share),
            MoreBits => {
                let eighth = total / 8;
                index < eighth || index >= 7 * total / 8 || (index - eighth) % 3 == 2
            }
            SharedHeads => facts.sharing >= 4,
            EightExperts => facts.experts == 8,
            FirstEighthWeighted => now.weighted && now.place.is_in_first(8),
            FirstEighthUnweighted => !now.weighted && now.place.is_in_first(8),
            Stacked => now.stacked,
        }
    }
}

impl Mix {
    /// What a matrix becomes if nobody says otherwise and its rows allow it.
    fn preferred(&self, role: Role, now: Circumstances, facts: &Facts) -> Quant {
        if self.base.block_len() == 1 {
            return self.base;
        }
        let fits = |rule: &&Rule| rule.role.is_none_or(|own| own == role) && rule.when.holds(now, facts);
        let chosen = self.rules.iter().find(fits).map(|rule| rule.quant);
        match role {
            // Every token goes through it.
            Output if chosen.is_none() => match self.base.row_bytes(now.columns) {
                Some(_) if self.base != Q8_0 => Q6K,
                _ => Q8_0,
            },
            Value | Role::Key if facts.experts == 8 => Q8_0,
            Value if facts.small_values && matches!(chosen.unwrap_or(self.base), Q3K | Q4K) => Q5K,
            Output | Value | Role::Key | AttentionOutput | Down | Role::Other => chosen.unwrap_or(self.base),
        }
    }
}

/// The asked-for format, or for rows that are not whole blocks of it one of short blocks and at least its precision;
/// F16 if even those are too long.
pub fn fitting(quant: Quant, columns: usize) -> Quant {
    const SHORTER: &[(Quant, Quant)] =
        &[(Q2K, Q4_0), (Q3K, Q4_0), (Q4K, Q5_0), (Q5K, Q5_1), (Q6K, Q8_0), (Iq4Xs, Iq4Nl)];
    let shorter = SHORTER.iter().find(|(long, _)| *long == quant).map(|&(_, short)| short);
    let fits = |quant: &Quant| quant.row_bytes(columns).is_some();
    [Some(quant), shorter].into_iter().flatten().find(fits).unwrap_or(F16)
}
