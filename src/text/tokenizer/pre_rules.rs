//! Which splits each name of `tokenizer.ggml.pre` stands for.
//!
//! The regular expressions are the ones published with the models' own tokenizers. Where llama.cpp approximates one of
//! them (it has no classes such as `\p{Lu}` or `\p{Han}`), the published one is used.

/// What follows a stage's alternatives for runs of white space that none of them took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing: what no alternative takes stays together.
    Gaps,
    /// `\s+(?!\S)|\s+`: a run leaves its last character to the word after it.
    LeaveOne,
    /// Runs in pieces of 512, 256, … 4, 2, 1 characters, each leaving at least one to the word after it.
    PowersOfTwo,
}

/// One pass over the pieces the passes before it left. What a rule matches becomes a piece, and so does each gap.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// Alternatives of a regular expression without look-around, then white space.
    Regex(&'static str, Tail),
    /// Runs of digits that the expression matches, in groups of three counted from the right.
    Groups(&'static str),
}

/// How a named pre-tokenizer behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreTokenizer {
    pub(super) rules: &'static [Rule],
    /// A piece that is a token is that token, whatever the merges would give.
    pub(super) ignore_merges: bool,
    /// Whether files that do not say so want a BOS token.
    pub(super) adds_bos: bool,
}

use Rule::{Groups, Regex};
use Tail::{Gaps, LeaveOne, PowersOfTwo};

/// The contractions of English in any case. ASCII only: with `(?i)` the long s would count as an s.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// The contractions that are part of the word before them, where the published expressions do take the long s.
macro_rules! attached_contractions {
    () => {
        r"(?:'[sS\u{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
    };
}

/// `concat!` of what stands between the contractions and the white space of the GPT-4 family.
macro_rules! gpt4 {
    ($word:literal, $numbers:literal, $signs:literal) => {
        concat!(contractions!(), "|", $word, "|", $numbers, "|", $signs, r"|\s*[\r\n]+")
    };
}

/// Words as in the o200k family: upper case then lower case, contractions attached.
macro_rules! cased_words {
    ($upper:literal, $lower:literal, $suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $suffix
        )
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const LLAMA3: &str = gpt4!(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*");
const QWEN2: &str = gpt4!(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*");
const QWEN35: &str = gpt4!(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*");
const MINICPM5: &str = gpt4!(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*");
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const SEED_CODER: &str = gpt4!(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+");
const BAILING: &str = concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]");
const EXAONE_MOE: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
);
const GPT_4O: &str = concat!(
    cased_words!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", attached_contractions!()),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const TEKKEN: &str = concat!(
    cased_words!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", ""),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const KIMI_K2: &str = concat!(
    r"\p{Han}+|",
    cased_words!(
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
        attached_contractions!()
    ),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const YOUTU: &str = concat!(
    cased_words!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", attached_contractions!()),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
const PUNCTUATION_RUN: &str = r"[\p{P}\$\+<=>\^~\|]+";
const FALCON_PUNCTUATION_RUN: &str = r"[\p{P}\$\+<=>\^~\|`]+";

const LINE_BREAK: Rule = Regex(r"[\r\n]", Gaps);
const UP_TO_THREE_NUMBERS: Rule = Regex(r"\p{N}{1,3}", Gaps);
const CJK: Rule = Regex(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+", Gaps);
const CJK_AND_HANGUL: Rule = Regex(r"[\u{800}-\u{9FA5}\u{AC00}-\u{D7FF}]+", Gaps);
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##;
const SPARK2_5: &str =
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"##;
const YOUTU_SCRIPTS: &str = r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+";
const AFMOE_SCRIPTS: &str = r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+";

/// A word of the cased letters that were known when the model's tokenizer was made, with one space before it.
const DEEPSEEK_LLM_WORD: &str = concat!(
    r"\s?[",
    r"\u{41}-\u{5A}\u{61}-\u{7A}\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}",
    r"\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}",
    r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
    r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}",
    r"\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
    r"\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}",
    r"\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
    r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}",
    r"\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
    r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}",
    r"\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
    r"]+",
);
const DEEPSEEK_LLM_SIGNS: &str = r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";

const DEFAULT: &[Rule] =
    &[Regex(PUNCTUATION_RUN, Gaps), Regex(GPT2, LeaveOne), Regex(r"\p{N}+", Gaps), Regex(r"[0-9][0-9][0-9]", Gaps)];
const DEEPSEEK_LLM: &[Rule] = &[
    LINE_BREAK,
    Regex(DEEPSEEK_LLM_WORD, Gaps),
    Regex(DEEPSEEK_LLM_SIGNS, Gaps),
    Regex(r"\s+$", Gaps),
    CJK_AND_HANGUL,
    Regex(r"\p{N}+", Gaps),
];
const DEEPSEEK_CODER: &[Rule] =
    &[LINE_BREAK, Regex(r"\s?\p{L}+", Gaps), Regex(r"\s?\p{P}+", Gaps), CJK_AND_HANGUL, Regex(r"\p{N}", Gaps)];

/// Names that an error message suggests.
pub(super) const EXAMPLES: &str = "llama-bpe, qwen2, qwen35, gpt-2, gpt-4o, tekken, default";

const fn plain(rules: &'static [Rule]) -> PreTokenizer {
    PreTokenizer { rules, ignore_merges: false, adds_bos: false }
}

const fn whole_tokens(rules: &'static [Rule]) -> PreTokenizer {
    PreTokenizer { rules, ignore_merges: true, adds_bos: false }
}

const fn whole_tokens_and_bos(rules: &'static [Rule]) -> PreTokenizer {
    PreTokenizer { rules, ignore_merges: true, adds_bos: true }
}

/// Names, and what they all stand for.
const TABLE: &[(&[&str], PreTokenizer)] = &[
    (
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        whole_tokens_and_bos(&[Regex(LLAMA3, LeaveOne)]),
    ),
    (&["tekken"], whole_tokens_and_bos(&[Regex(TEKKEN, LeaveOne)])),
    (&["minicpm5"], whole_tokens(&[UP_TO_THREE_NUMBERS, Regex(MINICPM5, LeaveOne)])),
    (&["youtu"], whole_tokens(&[Regex(YOUTU_SCRIPTS, Gaps), Regex(YOUTU, LeaveOne)])),
    (&["granite-embed-multi-97m"], whole_tokens(&[Regex(GPT_4O, LeaveOne)])),
    (&["default"], plain(DEFAULT)),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], plain(&[Regex(LLAMA3, LeaveOne)])),
    (&["jais-2"], plain(&[Regex(LLAMA3, PowersOfTwo)])),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        plain(&[Regex(GPT2, LeaveOne)]),
    ),
    (
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        plain(&[Regex(r"\p{N}", Gaps), Regex(GPT2, LeaveOne)]),
    ),
    (
        &["falcon"],
        plain(&[Regex(FALCON_PUNCTUATION_RUN, Gaps), Regex(GPT2, LeaveOne), Regex(r"[0-9][0-9][0-9]", Gaps)]),
    ),
    (
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        plain(&[Regex(QWEN2, LeaveOne)]),
    ),
    (&["qwen35"], plain(&[Regex(QWEN35, LeaveOne)])),
    (&["ufakzeka"], plain(&[Regex(UFAKZEKA, LeaveOne)])),
    (&["laguna"], plain(&[Regex(r"[^\n]+|[\n]+", Gaps), Regex(QWEN2, LeaveOne)])),
    (&["deepseek-llm"], plain(DEEPSEEK_LLM)),
    (&["deepseek-coder"], plain(DEEPSEEK_CODER)),
    (
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        plain(&[UP_TO_THREE_NUMBERS, CJK, Regex(DEEPSEEK_V3, LeaveOne)]),
    ),
    (&["spark2_5"], plain(&[UP_TO_THREE_NUMBERS, CJK, Regex(SPARK2_5, LeaveOne), Regex(r"\p{N}", Gaps)])),
    (&["afmoe"], plain(&[Groups(r"\p{N}+"), Regex(AFMOE_SCRIPTS, Gaps), Regex(DEEPSEEK_V3, LeaveOne)])),
    (&["poro-chat", "bloom", "gpt3-finnish"], plain(&[Regex(BLOOM, Gaps)])),
    (&["viking"], plain(&[Regex(BLOOM, Gaps), Regex(r"\p{N}", Gaps)])),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], plain(&[Regex(GPT_4O, LeaveOne)])),
    (&["tiny_aya", "cohere2moe"], plain(&[Groups(r"\d+\b"), Regex(GPT_4O, LeaveOne)])),
    (&["kimi-k2"], plain(&[Regex(KIMI_K2, LeaveOne)])),
    (&["superbpe"], plain(&[Groups(r"\p{N}+")])),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], plain(&[Regex(BAILING, LeaveOne)])),
    (&["seed-coder"], plain(&[Regex(SEED_CODER, LeaveOne)])),
    (&["exaone-moe"], plain(&[Regex(EXAONE_MOE, LeaveOne)])),
];

/// The pre-tokenizer of a name. A file that names none gets `default`, as llama.cpp does.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, of)| *of)
}

/// Every name there is.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, _)| names.iter().copied())
}
