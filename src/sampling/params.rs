//! What a user can set about sampling, with the defaults and ranges that llama.cpp users know.

use super::{SamplerKind, SamplingError, kind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Sampling parameters of one sequence. Fields that a JSON object leaves out have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplerParams {
    /// Divisor of the logits, at least 0; 0 always takes the likeliest token. Default 0.8.
    #[serde(alias = "temp")]
    pub temperature: f32,
    /// The temperature moves with the entropy within `temperature ± dynatemp_range`, at least 0; 0 is off. Default 0.
    pub dynatemp_range: f32,
    /// Shape of the map from normalised entropy to temperature, at least 0. Default 1.
    pub dynatemp_exponent: f32,
    /// Keep this many likeliest tokens; 0 or less keeps all. Default 40.
    pub top_k: i32,
    /// Keep the fewest likely tokens whose mass reaches this, 0 to 1; 1 is off. Default 0.95.
    pub top_p: f32,
    /// Keep tokens at least this many times as likely as the likeliest, 0 to 1; 0 is off. Default 0.05.
    pub min_p: f32,
    /// Mass of locally typical tokens to keep, 0 to 1; 1 is off. Default 1.
    #[serde(alias = "typ_p")]
    pub typical_p: f32,
    /// The samplers by mass and share, and XTC, leave at least this many tokens. Default 0.
    pub min_keep: u32,
    /// Keep logits within this many standard deviations of the largest; 0 or less is off. Default -1.
    pub top_n_sigma: f32,
    /// Tokens of history that the three penalties look at; 0 is none, -1 is all. Default 64.
    #[serde(alias = "repeat_last_n")]
    pub repeat_last: i32,
    /// Factor against tokens in the history, above 0; 1 is off. Default 1.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of every token in the history. Default 0.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as it is in the history. Default 0.
    pub frequency_penalty: f32,
    /// Strength of DRY, at least 0; 0 is off. Default 0.
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty with each repeated token, at least 1. Default 1.75.
    pub dry_base: f32,
    /// Repetitions shorter than this are not penalised by DRY. Default 2.
    pub dry_allowed_length: u32,
    /// Tokens of history that DRY looks at; 0 is none, -1 is all. Default -1.
    #[serde(alias = "dry_penalty_last_n")]
    pub dry_penalty_last: i32,
    /// Texts that end a repetition for DRY. The caller tokenises them for [`super::Sampler::new`].
    pub dry_sequence_breakers: Vec<String>,
    /// Chance that XTC acts on a token, 0 to 1; 0 is off. Default 0.
    pub xtc_probability: f32,
    /// Probability above which XTC may exclude a token, 0 to 1; above 0.5 is off. Default 0.1.
    pub xtc_threshold: f32,
    /// 0 is off; 2 is mirostat 2, which replaces every truncation of `samplers`. Default 0.
    pub mirostat: u32,
    /// Surprise that mirostat aims at, in bits, at least 0. Default 5.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat, at least 0. Default 0.1.
    pub mirostat_eta: f32,
    /// Added to the logits of these tokens before everything else; minus infinity (JSON `false`) bans a token.
    #[serde(deserialize_with = "read_bias", serialize_with = "write_bias")]
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal draws; none (JSON null or a negative number) takes one from the system.
    #[serde(deserialize_with = "read_seed")]
    pub seed: Option<u64>,
    /// The samplers to apply, in order.
    #[serde(deserialize_with = "kind::deserialize_order")]
    pub samplers: Vec<SamplerKind>,
}

impl Default for SamplerParams {
    fn default() -> SamplerParams {
        SamplerParams {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            min_keep: 0,
            top_n_sigma: -1.0,
            repeat_last: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            seed: None,
            samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
        }
    }
}

/// Every token of the vocabulary is compared with each.
const MOST_BREAKERS: usize = 128;

impl SamplerParams {
    /// The parameters that always take the likeliest token.
    pub fn greedy() -> SamplerParams {
        SamplerParams { temperature: 0.0, ..SamplerParams::default() }
    }

    /// True if no draw is made: the likeliest token is taken after bias and penalties.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// True if the repetition, presence or frequency penalty changes anything.
    pub(super) fn penalises(&self) -> bool {
        self.repeat_last != 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    /// True if DRY changes anything.
    pub fn wants_dry(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_penalty_last != 0
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// [`SamplingError::Range`] naming the first field at fault, the value and the range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let fraction = "0 to 1";
        let positive = "a finite number of at least 0";
        let finite = "a finite number";
        check("temperature", self.temperature, (0.0, f32::MAX), positive)?;
        check("dynatemp_range", self.dynatemp_range, (0.0, f32::MAX), positive)?;
        check("dynatemp_exponent", self.dynatemp_exponent, (0.0, f32::MAX), positive)?;
        check("top_p", self.top_p, (0.0, 1.0), fraction)?;
        check("min_p", self.min_p, (0.0, 1.0), fraction)?;
        check("typical_p", self.typical_p, (0.0, 1.0), fraction)?;
        check("top_n_sigma", self.top_n_sigma, (f32::MIN, f32::MAX), finite)?;
        check("repeat_penalty", self.repeat_penalty, (f32::MIN_POSITIVE, f32::MAX), "a finite number above 0")?;
        check("presence_penalty", self.presence_penalty, (f32::MIN, f32::MAX), finite)?;
        check("frequency_penalty", self.frequency_penalty, (f32::MIN, f32::MAX), finite)?;
        check("dry_multiplier", self.dry_multiplier, (0.0, f32::MAX), positive)?;
        check("dry_base", self.dry_base, (1.0, f32::MAX), "a finite number of at least 1")?;
        check("xtc_probability", self.xtc_probability, (0.0, 1.0), fraction)?;
        check("xtc_threshold", self.xtc_threshold, (0.0, 1.0), fraction)?;
        check("mirostat_tau", self.mirostat_tau, (0.0, f32::MAX), positive)?;
        check("mirostat_eta", self.mirostat_eta, (0.0, f32::MAX), positive)?;
        for (field, value) in [("repeat_last", self.repeat_last), ("dry_penalty_last", self.dry_penalty_last)] {
            if value < -1 {
                return Err(range(field, value, "-1 (all), 0 (none) or a number of tokens"));
            }
        }
        let breakers = self.dry_sequence_breakers.len();
        if breakers > MOST_BREAKERS {
            return Err(range("dry_sequence_breakers", format!("{breakers} texts"), "at most 128"));
        }
        if self.mirostat != 0 && self.mirostat != 2 {
            return Err(range("mirostat", self.mirostat, "0 (off) or 2"));
        }
        match self.logit_bias.iter().find(|(_, bias)| !(bias.is_finite() || *bias == f32::NEG_INFINITY)) {
            Some((token, bias)) => {
                Err(range("logit_bias", format!("{bias} for token {token}"), "a finite number or -inf"))
            }
            None => Ok(()),
        }
    }

    /// Whether a vocabulary of `vocab` tokens has all that are named.
    ///
    /// # Errors
    /// [`SamplingError::Token`] if `logit_bias` names one that it does not have.
    pub fn check_tokens(&self, vocab: usize) -> Result<(), SamplingError> {
        match self.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
            Some(&(token, _)) => Err(SamplingError::Token { field: "logit_bias", token, vocab }),
            None => Ok(()),
        }
    }
}

fn check(field: &'static str, value: f32, bounds: (f32, f32), expected: &'static str) -> Result<(), SamplingError> {
    // A NaN is in no range.
    if value >= bounds.0 && value <= bounds.1 { Ok(()) } else { Err(range(field, value, expected)) }
}

fn range(field: &'static str, found: impl ToString, expected: &'static str) -> SamplingError {
    SamplingError::Range { field, found: found.to_string(), expected }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Bias {
    Add(f32),
    Allowed(bool),
}

fn read_bias<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u32, f32)>, D::Error> {
    let pairs = Vec::<(u32, Bias)>::deserialize(deserializer)?;
    let read = |(token, bias)| match bias {
        Bias::Add(bias) => (token, bias),
        Bias::Allowed(allowed) => (token, if allowed { 0.0 } else { f32::NEG_INFINITY }),
    };
    Ok(pairs.into_iter().map(read).collect())
}

fn write_bias<S: Serializer>(pairs: &[(u32, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    let write = |&(token, bias): &(u32, f32)| {
        (token, if bias == f32::NEG_INFINITY { Bias::Allowed(false) } else { Bias::Add(bias) })
    };
    serializer.collect_seq(pairs.iter().map(write))
}

fn read_seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Seed {
        Given(u64),
        Signed(i64),
    }
    Ok(match Option::<Seed>::deserialize(deserializer)? {
        Some(Seed::Given(seed)) => Some(seed),
        Some(Seed::Signed(seed)) => u64::try_from(seed).ok(),
        None => None,
    })
}
