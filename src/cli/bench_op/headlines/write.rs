//! The document: tables claim by claim, plots, and how to do it again.

use super::{
    claims::{Claim, Figure, GROUPS, Side},
    figures::Figures,
    runs::{RUNS, Size},
};
use crate::cli::bench_op::plot::{Curve, Panel, svg};

/// A file of plots beside the document: its name, what the abscissa says, and its panels.
type Plot = (&'static str, &'static str, fn(&Figures) -> Vec<Panel>);

const PLOTS: [Plot; 4] = [
    ("benchmarks-replay.svg", "tokens kept as inputs", replay),
    ("benchmarks-verify.svg", "rows verified at once", verify),
    ("benchmarks-contexts.svg", "tokens of context", contexts),
    ("benchmarks-pages.svg", "tokens of a page", pages),
];

/// The document, in Markdown.
pub(super) fn document(figures: &Figures, size: Size) -> String {
    let mut out = String::from("# Benchmarks\n\n");
    out += "Every published claim that kvas is built on, next to what was measured. `just headlines` writes this file: it runs\n\
        the commands at its end and puts what they print beside what was published and what the bytes predict.\n\n";
    if size == Size::Quick {
        out += "**The figures measured here are of sizes that mean nothing (`--quick`); they show that the command works.**\n\n";
    }
    out += &machine(figures);
    out += "\nRatios compare neighbouring measurements of one run. A figure is *better than published* where it reaches the\n\
        best that was published of the same quantity, and *as predicted* where it comes out as bytes or arithmetic say. Bytes are\n\
        bounds: 80 to 92 % of them is what kernels reach, and on a processor caches and arithmetic take their part.\n";
    for group in GROUPS {
        out += &format!("\n## {}\n\nPublished for: {}.\n\n", group.name, group.about);
        out += "| | claim | published | predicted | measured here | verdict | H200: predicted | measured | verdict |\n";
        out += "|---|---|---|---|---|---|---|---|---|\n";
        for claim in group.claims {
            out += &row(claim, figures, size);
        }
    }
    out += "\n## Plots\n\n";
    for (name, ..) in PLOTS {
        out += &format!("![{}]({name})\n\n", name.trim_end_matches(".svg").replace('-', ": "));
    }
    out += "## Again\n\n`just headlines`, or one by one (`kvas make-model --preset qwen3.5-0.8b --type q8_0 -o random.gguf` makes the model):\n\n```\n";
    for run in RUNS {
        let seconds = figures.seconds(run.name).map_or("failed".into(), |seconds| format!("{seconds:.0} s"));
        out += &format!("{} # {seconds}\n", run.command(size));
    }
    out + "```\n\nFigures of the H200 are those of `benches/gpu/run`, in `benches/record/h200`.\n"
}

fn machine(figures: &Figures) -> String {
    let file = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = file
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches(['\t', ' ', ':']));
    let first = figures.lines("delta").first();
    let number = |field: &str| first.and_then(|line| line[field].as_f64()).unwrap_or_default();
    let isa = kvas_cpu::Isa::best().name();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let (version, threads, rate) = (env!("CARGO_PKG_VERSION"), number("threads"), number("bandwidth_gbs"));
    let name = name.unwrap_or("a processor");
    format!(
        "Measured {date} with kvas {version}: {name}, {threads} threads, {isa}, {rate:.1} GB/s read at the start.\n"
    )
}

/// A figure as it is read: few digits.
fn shown(value: f64, unit: &str) -> String {
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    if unit == "x" { text + "x" } else { format!("{text} {unit}") }
}

/// Predicted, measured and verdict.
fn cells(side: &Side, source: &Figures, missing: &str) -> [String; 3] {
    match side {
        Side::None(why) => [String::new(), (*why).into(), String::new()],
        Side::Figure(figure) => {
            let found = (figure.of)(source);
            let measured = found.map_or(missing.into(), |found| shown(found, figure.unit));
            [figure.predicted.into(), measured, found.map_or(String::new(), |found| verdict(figure, found))]
        }
    }
}

fn verdict(figure: &Figure, found: f64) -> String {
    let predicted = if figure.expect.is_met(found) { "as predicted" } else { "**less than predicted**" };
    match figure.better.map(|better| better.is_met(found)) {
        Some(true) => format!("better than published, {predicted}"),
        Some(false) => format!("less than published, {predicted}"),
        None => predicted.into(),
    }
}

fn row(claim: &Claim, figures: &Figures, size: Size) -> String {
    let [predicted, measured, mut verdict] = cells(&claim.here, figures, "no figure");
    if size == Size::Quick {
        verdict.clear();
    }
    let [gpu_predicted, gpu_measured, gpu_verdict] = cells(&claim.gpu, figures, "no record yet");
    format!(
        "| {} | {} | {} | {predicted} | {measured} | {verdict} | {gpu_predicted} | {gpu_measured} | {gpu_verdict} |\n",
        claim.id, claim.what, claim.paper
    )
}

/// Claims that were measured here: those that came out as predicted or better, and the others.
pub(super) fn counts(figures: &Figures) -> [usize; 2] {
    let mut counts = [0; 2];
    for claim in GROUPS.iter().flat_map(|group| group.claims) {
        if let Side::Figure(figure) = &claim.here
            && let Some(found) = (figure.of)(figures)
        {
            counts[usize::from(!figure.expect.is_met(found))] += 1;
        }
    }
    counts
}

/// The files of plots.
pub(super) fn plots(figures: &Figures) -> Vec<(&'static str, String)> {
    PLOTS.iter().map(|(name, x, panels)| (*name, svg(x, &panels(figures)))).collect()
}

fn curve(name: &str, points: Vec<(f64, f64)>) -> Curve {
    Curve { name: name.into(), points }
}

/// A panel of the curves that have points.
fn panel(title: &str, level: f64, curves: Vec<Curve>) -> Panel {
    let curves = curves.into_iter().filter(|curve| !curve.points.is_empty()).collect();
    Panel { title: title.into(), curves, level }
}

fn replay(figures: &Figures) -> Vec<Panel> {
    ["delta", "mamba2"]
        .map(|run| {
            let of = |name: &str, state: &str, field| curve(name, figures.curve(run, &[state], ("m=", field)));
            let curves = vec![
                of("f32", "f32", "measured"),
                of("f16", "f16", "measured"),
                of("f32, by the bytes", "f32", "predicted"),
                of("f16, by the bytes", "f16", "predicted"),
            ];
            panel(&format!("{run}: times faster than written every token"), 1.0, curves)
        })
        .to_vec()
}

fn verify(figures: &Figures) -> Vec<Panel> {
    let of = |name: &str, words: &[&str]| curve(name, figures.curve("verify", words, ("T=", "measured")));
    let curves = vec![
        of("row by row", &["row"]),
        of("flushed each step", &["flush", "a=2"]),
        of("replayed", &["replay", "a=2"]),
    ];
    vec![panel("times faster than a snapshot after each row", 1.0, curves)]
}

fn contexts(figures: &Figures) -> Vec<Panel> {
    let inputs = curve("measured", figures.curve("inputs", &["only"], ("n=", "measured")));
    let bytes = curve("by the bytes", figures.curve("inputs", &["only"], ("n=", "predicted")));
    let of = |name: &str, words: &[&str]| curve(name, figures.curve("given up", words, ("n=", "measured")));
    let held = vec![
        of("given up", &["given"]),
        of("moments f32", &["moments", "f32"]),
        of("moments f16", &["moments", "f16"]),
    ];
    vec![
        panel("no state: times faster than written", 1.0, vec![inputs, bytes]),
        panel("1024 tokens held: times less than all", 1.0, held),
    ]
}

fn pages(figures: &Figures) -> Vec<Panel> {
    let mut points = figures.curve("pages", &[], ("P=", "measured"));
    points.iter_mut().for_each(|(_, faster)| *faster = 1.0 / *faster);
    vec![panel("time against one piece", 1.0, vec![curve("random order", points)])]
}
