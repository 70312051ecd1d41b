//! The claims, as they were published; what their bytes predict; and where the figures are found.

use super::figures::Figures;

/// What is asked of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expect {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

impl Expect {
    pub(super) fn is_met(self, found: f64) -> bool {
        match self {
            Expect::AtLeast(least) => found >= least,
            Expect::AtMost(most) => found <= most,
            Expect::Within(least, most) => (least..=most).contains(&found),
        }
    }
}

/// A figure of one machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figure {
    pub(super) predicted: &'static str,
    pub(super) expect: Expect,
    pub(super) unit: &'static str,
    /// The best that was published, where it is the same figure.
    pub(super) better: Option<Expect>,
    pub(super) of: fn(&Figures) -> Option<f64>,
}

/// A figure, or why there is none.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Figure(Figure),
    None(&'static str),
}

/// What was published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    /// The figure, and where it was measured if that matters.
    pub(super) paper: &'static str,
    pub(super) here: Side,
    pub(super) gpu: Side,
}

/// Claims of one publication.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) claims: &'static [Claim],
}

const fn here(predicted: &'static str, expect: Expect, unit: &'static str, of: fn(&Figures) -> Option<f64>) -> Side {
    Side::Figure(Figure { predicted, expect, unit, better: None, of })
}

const fn gpu(predicted: &'static str, expect: Expect, unit: &'static str, of: fn(&Figures) -> Option<f64>) -> Side {
    Side::Figure(Figure { predicted, expect, unit, better: None, of })
}

const fn claim(id: &'static str, what: &'static str, paper: &'static str, here: Side, gpu: Side) -> Claim {
    Claim { id, what, paper, here, gpu }
}

impl Side {
    /// The best that was published, where it is the same figure.
    const fn better(self, better: Expect) -> Self {
        match self {
            Side::Figure(figure) => Side::Figure(Figure { better: Some(better), ..figure }),
            Side::None(why) => Side::None(why),
        }
    }
}

/// Nothing was predicted for a GPU, or what was is the same arithmetic.
const SAME: Side = Side::None("");
const NO_RECORD: Side = Side::None("no record yet");
const NEEDS_GPU: Side = Side::None("not possible here: needs a GPU");
const PAPER_ONLY: Side = Side::None("not measured: of models and methods that are not here");

/// How many times faster a token is with a ring that is chosen by the bytes, in f32.
fn replay(figures: &Figures, run: &str) -> Option<f64> {
    figures.number(run, &["f32", "auto"], "measured")
}

/// How many times longer than others a step of one kind takes.
fn times(figures: &Figures, one: (&str, &[&str]), other: (&str, &[&str])) -> Option<f64> {
    let median = |(run, words): (&str, &[&str])| figures.number(run, words, "ms_median");
    Some(median(one)? / median(other)?)
}

/// Replay against a snapshot after each row, for windows of some length.
fn verified(figures: &Figures, window: &str) -> Option<f64> {
    figures.number("verify", &[window, "replay", "a=2"], "measured")
}

/// A field of what a budget admits for so many rows at once, with rings as a processor or a GPU keeps them.
fn admitted(figures: &Figures, (run, window): (&str, u64), field: &str) -> Option<f64> {
    figures.lines(run).iter().find(|line| line["window"] == window)?[field].as_f64()
}

const HERE: &str = "concurrency";
const ON_GPU: &str = "concurrency on a GPU";

/// How many times as many slots fit with replay as with copies, keys and values left out.
fn slots(figures: &Figures, run: &str) -> Option<f64> {
    let of = |field| admitted(figures, (run, 5), field);
    Some(of("copies_bytes")? / of("replay_bytes")?)
}

fn decoded(figures: &Figures, run: &str) -> Option<f64> {
    figures.lines(run).iter().find(|line| line["batch"] == 16)?["tokens_per_second"].as_f64()
}

const KVBUFFER: &[Claim] = &[
    claim(
        "K1",
        "latency of a gated delta layer, buffer 32, largest batch",
        "1.82x (4 L40S)",
        here("1.0 to 1.3x", Expect::AtLeast(1.0), "x", |f| replay(f, "delta")).better(Expect::AtLeast(1.82)),
        gpu("1.79x, batch 128", Expect::AtLeast(1.55), "x", |r| r.recorded("Delta 128 16 f32:", "x"))
            .better(Expect::AtLeast(1.82)),
    ),
    claim(
        "K1",
        "the same with the state in f16",
        "",
        here("1.6 to 2.1x", Expect::AtLeast(1.6), "x", |f| f.number("delta", &["f16", "auto"], "measured"))
            .better(Expect::AtLeast(1.82)),
        gpu("3.39x, batch 128", Expect::AtLeast(2.9), "x", |r| r.recorded("Delta 128 16 f16:", "x"))
            .better(Expect::AtLeast(1.82)),
    ),
    claim(
        "K2",
        "sequences at once with 4 drafts: states and rings only",
        "5x",
        here("4.2 to 4.4x with rings in f16; here they are f32", Expect::AtLeast(4.2), "x", |f| slots(f, HERE))
            .better(Expect::AtLeast(5.0)),
        gpu("4.2 to 4.4x", Expect::AtLeast(4.2), "x", |f| slots(f, ON_GPU)).better(Expect::AtLeast(5.0)),
    ),
    claim(
        "K2",
        "the same with 4096 tokens of keys and values each",
        "",
        here("2.6x with rings in f16; here they are f32", Expect::AtLeast(2.6), "x", |f| {
            admitted(f, (HERE, 5), "ratio")
        }),
        gpu("2.6x", Expect::AtLeast(2.6), "x", |f| admitted(f, (ON_GPU, 5), "ratio")),
    ),
    claim(
        "K3",
        "tokens a second with 4 drafts, 2.5 tokens a step, 4 sequences",
        "1.46x",
        here("1.46x or more", Expect::AtLeast(1.46), "x", |f| {
            f.lines("drafts").iter().rev().find_map(|line| line["ratio"].as_f64())
        })
        .better(Expect::AtLeast(1.46)),
        gpu("1.46x or more", Expect::AtLeast(1.46), "x", |r| r.recorded("spec_e2e 4:", "x")),
    ),
    claim(
        "K4",
        "8 drafts verified, against a snapshot after each",
        "2.78x",
        here("5.2 to 9.7x", Expect::AtLeast(5.2), "x", |f| verified(f, "T=8")).better(Expect::AtLeast(2.78)),
        gpu("5x, against a state written every row", Expect::AtLeast(5.0), "x", |r| {
            r.recorded("lin_verify gdn 64 T=8, state written every row:", "x")
        })
        .better(Expect::AtLeast(2.78)),
    ),
    claim(
        "K5",
        "tokens up to which a context without a state is faster",
        "128",
        here("97 by the bytes of f32 inputs", Expect::Within(80.0, 187.0), "tokens", |f| {
            f.lines("inputs").iter().find_map(|line| line["crossover"].as_f64())
        }),
        gpu("97 by the bytes", Expect::Within(80.0, 187.0), "tokens", |r| r.recorded("lin_kvonly gdn 128:", "tokens")),
    ),
    claim(
        "K6",
        "best length of the buffer",
        "22.6 by theory, 32 observed",
        here("8", Expect::Within(4.0, 16.0), "tokens", |f| f.lowest("delta", &["f32"], ("m=", "ms_median"))),
        gpu("16", Expect::AtLeast(1.0), "x", |r| {
            Some(r.recorded("Delta 64 16 f32:", "x")? / r.recorded("Delta 64 32 f32:", "x")?)
        }),
    ),
    claim(
        "K7",
        "memory of the states of 4 drafts, Qwen3-Next",
        "384 MB (assumes 48 layers)",
        here("288 MiB of states in 36 layers", Expect::Within(288.0, 320.0), "MiB", |f| {
            Some(
                (admitted(f, (HERE, 5), "copies_bytes")? - admitted(f, (HERE, 1), "copies_bytes")?)
                    / f64::from(1 << 20),
            )
        }),
        SAME,
    ),
    claim(
        "K8",
        "one sequence is slower with a buffer",
        "slower",
        here("no loss", Expect::AtLeast(0.95), "x", |f| replay(f, "delta")),
        gpu("no loss", Expect::AtLeast(0.95), "x", |r| r.recorded("Delta 1 16 f32:", "x")),
    ),
    claim(
        "K9",
        "2 drafts verified and the state written, against snapshots",
        "0.99x",
        here("2.5x", Expect::AtLeast(2.5), "x", |f| f.number("verify", &["T=2", "flush", "a=2"], "measured"))
            .better(Expect::AtLeast(0.99)),
        gpu("1x, against a state written every row", Expect::AtLeast(1.0), "x", |r| {
            r.recorded("lin_verify gdn 64 T=2 flushed, state written every row:", "x")
        })
        .better(Expect::AtLeast(0.99)),
    ),
];

const PAGES: &[Claim] = &[
    claim(
        "P1",
        "attention to a long context: two threads against one (published: split against three kernels)",
        "28x",
        here("up to 2x", Expect::AtLeast(1.5), "x", |f| {
            times(f, ("one thread", &["piece"]), ("contexts", &["n=8192"]))
        }),
        gpu("90 % of the copy, f16", Expect::AtLeast(90.0), "%", |r| r.recorded("32/8 128 64 f16 16 x 8192 1:", "%")),
    ),
    claim("P2", "best number of splits", "128 to 256", NEEDS_GPU, NO_RECORD),
    claim(
        "P3",
        "sequences of 512 tokens in 4 GiB, against room for 2048 and for 4096",
        "4x, 8x",
        here("4x, 8x (shown: 8x)", Expect::Within(8.0, 8.0), "x", |f| {
            f.lines("pool").iter().find(|line| line["paged"].as_f64() == Some(8.0))?["paged"].as_f64()
        }),
        SAME,
    ),
    claim(
        "P4",
        "time in pages of 32 against one piece",
        "1.79x",
        here("at most 1.05x", Expect::AtMost(1.05), "x", |f| Some(1.0 / f.number("pages", &["P=32"], "measured")?))
            .better(Expect::AtMost(1.79)),
        gpu("at most 1.02x, pages of 16 against 64", Expect::AtMost(1.02), "x", |r| {
            Some(r.recorded("32/8 128 16 f16 16 x 8192 1:", "us")? / r.recorded("32/8 128 64 f16 16 x 8192 1:", "us")?)
        }),
    ),
    claim(
        "P4",
        "time in pages of one token against one piece",
        "",
        here("at most 2.9x", Expect::AtMost(2.9), "x", |f| Some(1.0 / f.number("pages", &["P=1"], "measured")?)),
        gpu("about 1.6x, against 64", Expect::AtMost(1.6), "x", |r| {
            Some(r.recorded("32/8 128 1 f16 16 x 8192 1:", "us")? / r.recorded("32/8 128 64 f16 16 x 8192 1:", "us")?)
        }),
    ),
    claim(
        "P5",
        "what longer contexts bring: GB/s at the longest against the shortest",
        "146 to 476 Gi/s",
        here("no less", Expect::AtLeast(0.9), "x", |f| {
            let rates: Vec<f64> = f.with("contexts", &["piece"]).filter_map(|line| line["gbs"].as_f64()).collect();
            Some(rates.last()? / rates.first()?)
        }),
        gpu("85 % of the copy for one sequence of 65536", Expect::AtLeast(85.0), "%", |r| {
            r.recorded("32/8 128 16 f16 1 x 65536 1:", "%")
        }),
    ),
    claim(
        "P6",
        "keys and values read by one thread, f16",
        "3.3 GB/s of f32",
        here("16 to 19 GB/s", Expect::AtLeast(16.0), "GB/s", |f| f.number("one thread", &["piece"], "gbs"))
            .better(Expect::AtLeast(3.3)),
        SAME,
    ),
    claim(
        "P7",
        "error",
        "below 1e-4",
        Side::None(
            "every benchmark checks its results against the float64 oracle before it measures, and stops if they are off",
        ),
        SAME,
    ),
    claim(
        "P8",
        "time for a sequence beside 15 others against alone",
        "2.2x",
        here("flat", Expect::AtMost(1.1), "x", |f| {
            Some(times(f, ("batches", &["B16", "P=16"]), ("batches", &["B1", "P=16"]))? / layers(f)?)
        }),
        SAME,
    ),
    claim(
        "P9",
        "share of the copy of a GPU, one token of 16 sequences of 8192",
        "86 % (H100)",
        NEEDS_GPU,
        gpu("90 %", Expect::AtLeast(90.0), "%", |r| r.recorded("32/8 128 16 f16 16 x 8192 1:", "%"))
            .better(Expect::AtLeast(86.0)),
    ),
];

/// Contexts and layers of 16 sequences against those of one: a benchmark measures as many layers as fill the memory.
fn layers(figures: &Figures) -> Option<f64> {
    let bytes = |batch: &str| figures.number("batches", &[batch, "P=16"], "bytes");
    Some(bytes("B16")? / bytes("B1")?)
}

const REPLAY: &[Claim] = &[
    claim(
        "R1",
        "a Mamba-2 layer decodes with inputs replayed, f32",
        "1.43 to 1.84x",
        here("bytes say 1.7x, less here", Expect::AtLeast(1.0), "x", |f| replay(f, "mamba2"))
            .better(Expect::AtLeast(1.84)),
        gpu("1.81x, batch 128", Expect::AtLeast(1.55), "x", |r| r.recorded("Mamba2 128 16 f32:", "x"))
            .better(Expect::AtLeast(1.84)),
    ),
    claim(
        "R2",
        "tokens a second of a whole model, 16 sequences, against states written every token",
        "1.20 to 1.48x",
        here("1.0x or more", Expect::AtLeast(1.0), "x", |f| Some(decoded(f, "replayed")? / decoded(f, "written")?))
            .better(Expect::AtLeast(1.48)),
        gpu("1.2x, 256 sequences", Expect::AtLeast(1.2), "x", |r| r.recorded("bench qwen3.5-4b x256 replayed:", "x"))
            .better(Expect::AtLeast(1.48)),
    ),
    claim(
        "R3",
        "drafts against none, tokens a second, one sequence",
        "1.87 to 1.96x",
        here("1.87x", Expect::AtLeast(1.87), "x", |f| f.number("drafts", &["1"], "ratio"))
            .better(Expect::AtLeast(1.96)),
        gpu("1.87x", Expect::AtLeast(1.87), "x", |r| r.recorded("spec_e2e 1:", "x")),
    ),
    claim(
        "R4",
        "6 drafts verified, against one token with its state written",
        "1.27 to 1.72x the time",
        here("at most 1.72x", Expect::AtMost(1.72), "x", |f| {
            times(f, ("verify", &["T=6", "replay", "a=2"]), ("delta", &["f32", "m=0"]))
        })
        .better(Expect::AtMost(1.27)),
        gpu("at most 1.1x; 8 drafts where 6 are not recorded, batch 64", Expect::AtMost(1.1), "x", |r| {
            Some(
                r.recorded("Delta 64 6:", "us").or_else(|| r.recorded("Delta 64 8:", "us"))?
                    / r.recorded("Delta 64 0 f32:", "us")?,
            )
        }),
    ),
    claim(
        "R5",
        "4 drafts verified, against a snapshot after each",
        "2.28 to 3.33x",
        here("5x", Expect::AtLeast(5.0), "x", |f| verified(f, "T=4")).better(Expect::AtLeast(3.33)),
        gpu("3.3x, against a state written every row", Expect::AtLeast(3.3), "x", |r| {
            r.recorded("lin_verify gdn 64 T=4, state written every row:", "x")
        })
        .better(Expect::AtLeast(3.33)),
    ),
    claim(
        "R6",
        "sequences at once, 4 drafts, with 4096 tokens of keys and values",
        "3.0 to 3.3x",
        here("2.2x with rings in f16; here they are f32", Expect::AtLeast(2.2), "x", |f| {
            admitted(f, (HERE, 4), "ratio")
        }),
        gpu("2.2x", Expect::AtLeast(2.2), "x", |f| admitted(f, (ON_GPU, 4), "ratio")),
    ),
    claim("R7", "recurrent layers take most of a step up to 100 000 tokens", "", NEEDS_GPU, NO_RECORD),
    claim(
        "R8",
        "best length of the buffer, Mamba-2",
        "8",
        here("8, 21 by the bytes", Expect::Within(4.0, 32.0), "tokens", |f| {
            f.lowest("mamba2", &["f32"], ("m=", "ms_median"))
        }),
        gpu("16 is no worse than 8", Expect::AtLeast(0.97), "x", |r| {
            Some(r.recorded("Mamba2 64 16 f32:", "x")? / r.recorded("Mamba2 64 8 f32:", "x")?)
        }),
    ),
    claim(
        "R9",
        "bytes moved by a token, written against replayed over 16",
        "2x without the inputs",
        here("1.7x", Expect::Within(1.65, 2.0), "x", |f| {
            Some(f.number("delta", &["f32", "m=0"], "bytes")? / f.number("delta", &["f32", "m=16"], "bytes")?)
        }),
        SAME,
    ),
    claim(
        "R10",
        "a smaller state (published: fp8; here: f16 against f32, both replayed)",
        "1.61 to 1.73x",
        here("1.5x or more", Expect::AtLeast(1.5), "x", |f| {
            times(f, ("delta", &["f32", "auto"]), ("delta", &["f16", "auto"]))
        }),
        gpu("1.9x, batch 128", Expect::AtLeast(1.6), "x", |r| {
            Some(r.recorded("Delta 128 16 f32:", "us")? / r.recorded("Delta 128 16 f16:", "us")?)
        }),
    ),
];

const EDGE: &[Claim] = &[
    claim("E1", "LongBench, average", "25.71 against 24.20", PAPER_ONLY, SAME),
    claim("E2", "LongBench, by group", "23.5, 24.2, 12.1, 47.9, 11.2, 37.9", PAPER_ONLY, SAME),
    claim(
        "E3",
        "parameters that are trained",
        "0.15 %",
        Side::None("1.7 % of a model of 16 million, in docs/EDGEINFINITE.md"),
        SAME,
    ),
    claim(
        "E4",
        "tokens whose keys and values are held",
        "1524 on average",
        Side::None("sink, window and half a segment: 300, 200 and 1024 by default"),
        SAME,
    ),
    claim(
        "E5",
        "without a window, without sinks, without both",
        "25.18, 23.17, 21.90",
        Side::None("perplexities of gates trained here, in docs/EDGEINFINITE.md"),
        SAME,
    ),
    claim(
        "E6",
        "attention of a token of a prompt of 32768, all held against segments absorbed",
        "grows slowly, no figures",
        here("10.4x by what is attended to", Expect::AtLeast(8.0), "x", |f| {
            let of = |words: &[&str], field: &str| f.number("segments", words, field);
            let absorbed = of(&["inplace", "n=32768"], "us_attention_per_token")?
                + of(&["inplace", "n=32768"], "us_absorbing_per_token")?;
            Some(of(&["full", "n=32768"], "us_attention_per_token")? / absorbed)
        }),
        SAME,
    ),
    claim(
        "E6",
        "resident memory of a prompt twice as long",
        "",
        here("the same", Expect::AtMost(1.01), "x", |f| {
            let of = |n: &str| f.number("segments", &["inplace", n], "resident_bytes");
            Some(of("n=65536")? / of("n=32768")?)
        }),
        SAME,
    ),
    claim("E7", "training", "100 000 samples", Side::None("28 seconds on an H200, in docs/EDGEINFINITE.md"), SAME),
];

const SLAKE: &[Claim] = &[
    claim(
        "S1",
        "attention to 131072 tokens of which 1024 are held: a layer, moments included",
        "10x a token of a model",
        here("80x or more", Expect::AtLeast(80.0), "x", |f| moments_speedup(f, &["n=131072", "moments", "f32"])),
        gpu("30x or more", Expect::AtLeast(30.0), "x", |r| r.recorded("slake_attn 131072 of 1024, moments f32:", "x")),
    ),
    claim(
        "S2",
        "memory while a prompt is read layer by layer, held keys and values and what goes between layers: of 16384 tokens \
         here, of 131072 on a GPU",
        "-31 % at its peak, with activations",
        here("5.2x less in 16 layers", Expect::AtLeast(5.2), "x", |f| f.number("peak", &["less"], "measured")),
        gpu("14.1x less in 32 layers", Expect::AtLeast(14.1), "x", |r| r.recorded("n=131072 by layers:", "x")),
    ),
    claim(
        "S3",
        "points lost on LongBench at a budget of 256",
        "below 4 %",
        Side::None("perplexity and answers of a model trained here, in docs/SLAKE.md"),
        SAME,
    ),
    claim(
        "S4",
        "against CAKE at a budget of 128",
        "29.76 against 28.93",
        Side::None("at equal bytes moments lose there, in docs/SLAKE.md"),
        SAME,
    ),
    claim("S5", "against CAKE at a budget of 256", "31.43 against 30.93", Side::None("the same"), SAME),
    claim("S6", "other methods and models", "", PAPER_ONLY, SAME),
    claim(
        "S7",
        "parts left out",
        "28.81, 29.47, 29.76",
        Side::None("rows with and without moments, mass and VABS in docs/SLAKE.md"),
        SAME,
    ),
    claim(
        "S8",
        "error of attention, moments against none",
        "less than half",
        Side::None("an oracle of synthetic keys says 20x less to 1.02x less, by how keys are spread"),
        SAME,
    ),
    claim(
        "S9",
        "needles in 8192 tokens",
        "30 to 38 of 77",
        Side::None("answers about facts in up to 4000 tokens, in docs/SLAKE.md"),
        SAME,
    ),
    claim(
        "S10",
        "moments are a small share of attention at a budget of 1024",
        "negligible",
        here("at most 15 %", Expect::AtMost(15.0), "%", |f| {
            let less = |what: &[&str]| moments_speedup(f, what);
            Some(100.0 * (1.0 - less(&["n=131072", "moments", "f32"])? / less(&["n=131072", "given"])?))
        }),
        SAME,
    ),
];

fn moments_speedup(figures: &Figures, words: &[&str]) -> Option<f64> {
    figures.number("given up", words, "measured")
}

const OWN: &[Claim] = &[
    claim(
        "O1",
        "seconds from the start of the program to the first letter of an answer, bundled model",
        "",
        here("below 1 s", Expect::AtMost(1.0), "s", |f| f.number("first", &["first"], "seconds")),
        SAME,
    ),
    claim(
        "O2",
        "known tokens that are read again when any question of a long chat is asked in other words",
        "",
        here("at most 512", Expect::AtMost(512.0), "tokens", |f| f.number("going back", &["edit"], "most_read_again")),
        SAME,
    ),
    claim(
        "O3",
        "tokens that a chat reads against those typed",
        "",
        here("at most 1.05x", Expect::AtMost(1.05), "x", |f| f.number("going back", &["chat"], "ratio")),
        SAME,
    ),
];

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "Drafts and decoding with buffered keys and values (KVBuffer)",
        about: "Qwen3-Next-80B on four L40S; f32 states",
        claims: KVBUFFER,
    },
    Group { name: "Attention over pages", about: "one head and one sequence on an A40, f32", claims: PAGES },
    Group {
        name: "Replayed states (ReplaySSM)",
        about: "Nemotron and Qwen 3.5 on H100 and B300; f32 states",
        claims: REPLAY,
    },
    Group {
        name: "A memory for long prompts (EdgeInfinite)",
        about: "BlueLM-3B, whose gates were not published",
        claims: EDGE,
    },
    Group {
        name: "Giving up keys and values (SLAKE)",
        about: "Llama 2, Llama 3.1 and Mistral on an H100",
        claims: SLAKE,
    },
    Group { name: "What else kvas promises", about: "nobody published it", claims: OWN },
];
