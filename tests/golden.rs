//! Reference logits: small checkpoints of every architecture, converted and run, against the logits a reference
//! implementation computed in f32.

use kvas::{engine, model::Model};
use kvas_backend::{Backend, KvType, Limits, Op, Outputs, Reference, Replay, StateType, Step};
use kvas_cpu::{Cpu, Isa};
use kvas_gguf::{GgufFile, GgufWriter, Quant, Value};
use kvas_tools::convert::{ConvertOptions, convert};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Largest difference of a logit with f32 pages. Floor: 5.8e-5 (qwen3next), 1e-5 without gated delta layers.
const WITH_F32_PAGES: f32 = 2e-4;

/// The same of the reference backend. Floor: 1.3e-4 (qwen3next), 5e-5 for the others.
const REFERENCE: f32 = 2.5e-4;

/// The same with f16 pages, which round keys and values: random weights give scores that a rounding moves far.
/// Floor: 6.0e-3 (qwen2).
const WITH_F16_PAGES: f32 = 1.2e-2;

pub(crate) fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    let mut found: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "the fixtures are in the repository");
    found
}

/// Largest difference of a logit from the naive reference, however a prompt is cut. Floor: 9.9e-5 (qwen3next, whose
/// experts amplify), 2.3e-5 for the others.
const CHUNKED: f32 = 2e-4;

/// The fixture of one checkpoint.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens").join(name)
}

pub(crate) struct Golden {
    pub(crate) ids: Vec<u32>,
    pub(crate) logits: Vec<f32>,
    greedy: Vec<u32>,
}

pub(crate) fn golden(directory: &Path) -> Golden {
    let bytes = std::fs::read(directory.join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    Golden {
        ids: words(&tensors, "ids").into_iter().map(u32::from_le_bytes).collect(),
        logits: words(&tensors, "logits").into_iter().map(f32::from_le_bytes).collect(),
        greedy: words(&tensors, "greedy").into_iter().map(u32::from_le_bytes).collect(),
    }
}

/// A checkpoint converted to a temporary file, which the caller removes.
pub(crate) fn converted_file(directory: &Path, quant: Quant) -> TempPath {
    let name = directory.file_name().unwrap().to_str().unwrap();
    let out = crate::temporary::file(".gguf");
    let options = ConvertOptions { quant, ..ConvertOptions::default() };
    convert(directory, &out, &options).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    out
}

pub(crate) fn converted(directory: &Path, quant: Quant) -> Model {
    let out = converted_file(directory, quant);
    Model::open(&out, None).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

/// A trained model through the commands: its last 32 rows of logits within (largest, mean) difference, and its greedy
/// answer to a chat.
pub(crate) fn check_trained(folder: &Path, model: &str, bounds: (f32, f32), run: &dyn Fn(&[&str]) -> String) {
    let golden = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let list = |name: &str| words(&golden, name).into_iter().map(u32::from_le_bytes).map(|id| id.to_string());
    let ids = list("ids").collect::<Vec<_>>().join(",");
    let out = format!("{model}.logits");
    run(&["logits", "-m", model, "--ids", &ids, "-o", &out]);
    let found = std::fs::read(&out).unwrap();
    std::fs::remove_file(&out).unwrap();
    let found = SafeTensors::deserialize(&found).unwrap();
    let floats = |tensors: &SafeTensors, name: &str| -> Vec<f32> {
        words(tensors, name).into_iter().map(f32::from_le_bytes).collect()
    };
    let (all, expected) = (floats(&found, "logits"), floats(&golden, "logits_last32"));
    let last = &all[all.len() - expected.len()..];
    let largest = largest_difference(last, &expected);
    let mean = last.iter().zip(&expected).map(|(a, b)| (a - b).abs()).sum::<f32>() / last.len() as f32;
    println!("{model}: largest difference {largest:.2e}, mean {mean:.2e}");
    assert!(largest <= bounds.0 && mean <= bounds.1, "{model}: largest {largest}, mean {mean}");
    let (prompt, greedy) = (list("chat_ids").collect::<Vec<_>>().join(","), list("chat_greedy").collect::<Vec<_>>());
    let length = greedy.len().to_string();
    let answer = run(&["run", "-m", model, "--ids", &prompt, "-n", &length, "--temp", "0", "--json", "--ignore-eos"]);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let found: Vec<String> = answer["ids"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found, greedy, "{model}");
}

fn words(tensors: &SafeTensors, name: &str) -> Vec<[u8; 4]> {
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
}

pub(crate) fn limits(rows: usize, replay: Replay, kv_type: KvType) -> Limits {
    let (snapshots, state_type) = (0, StateType::F32);
    Limits {
        context: 0,
        rows,
        outputs: rows,
        pages: 400,
        page_size: 4,
        slots: 3,
        snapshots,
        replay,
        kv_type,
        state_type,
    }
}

pub(crate) fn logits(model: &Model, backend: Box<dyn Backend>, limits: Limits, ids: &[u32]) -> Vec<f32> {
    let mut runner = model.prepare(backend, limits, &mut |_, _| {}).unwrap();
    let mut all = Vec::new();
    engine::score(&mut runner, ids, |_, row| all.extend_from_slice(row)).unwrap();
    all
}

pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_reference_implementation() {
    for directory in fixtures() {
        let (model, golden) = (converted(&directory, Quant::F32), golden(&directory));
        let name = directory.file_name().unwrap().to_str().unwrap();
        let vocab = model.spec.vocab;
        for (label, kv_type, bound) in [("f32", KvType::F32, WITH_F32_PAGES), ("f16", KvType::F16, WITH_F16_PAGES)] {
            let limits = limits(64, Replay::new(8, 4), kv_type);
            let found = logits(&model, Box::new(Cpu::new(2)), limits, &golden.ids);
            let difference = largest_difference(&found, &golden.logits);
            println!("{name}: largest difference {difference:.2e} with {label} pages");
            assert!(difference <= bound, "{name}: {difference} with {label} pages");
        }
        let mut ids = golden.ids.clone();
        for expected in &golden.greedy {
            let limits = limits(ids.len(), Replay::new(8, 4), KvType::F32);
            let found = logits(&model, Box::new(Cpu::new(1)), limits, &ids);
            let last = &found[(ids.len() - 1) * vocab..];
            let best = (0..vocab).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            assert_eq!(best as u32, *expected, "{name}: token {}", ids.len() - golden.ids.len());
            ids.push(*expected);
        }
    }
}

/// The naive reference backend: what is wrong here is wrong in a reader, the lowering or the converter.
#[test]
fn the_reference_backend_computes_the_same_logits() {
    for directory in fixtures() {
        let (model, golden) = (converted(&directory, Quant::F32), golden(&directory));
        let name = directory.file_name().unwrap().to_str().unwrap();
        let limits = limits(64, Replay::OFF, KvType::F32);
        let found = logits(&model, Box::new(Reference::default()), limits, &golden.ids);
        let difference = largest_difference(&found, &golden.logits);
        println!("{name}: largest difference {difference:.2e} with the reference backend");
        assert!(difference <= REFERENCE, "{name}: {difference} with the reference backend");
    }
}

/// The reference normalises latents with 1e-6, whatever the model says of its other norms.
#[test]
fn latents_are_normalised_with_an_epsilon_of_their_own() {
    let program = converted(&fixture("kimi-linear"), Quant::F32).program;
    let mut latents = 0;
    for op in &program.ops {
        let Op::Norm(norm) = op else { continue };
        let is_latent = program.weight(norm.weight).name.ends_with("attn_kv_a_norm.weight");
        assert_eq!(norm.eps, if is_latent { 1e-6 } else { 1e-5 });
        latents += usize::from(is_latent);
    }
    assert_eq!(latents, 1);
}

/// In one batch, in ragged chunks and token by token, with every replay capacity; the reference backend too.
#[test]
fn chunks_and_replay_do_not_change_the_logits() {
    for directory in fixtures() {
        let (model, golden) = (converted(&directory, Quant::F32), golden(&directory));
        let name = directory.file_name().unwrap().to_str().unwrap();
        let whole = logits(&model, Box::new(Reference::default()), limits(64, Replay::OFF, KvType::F32), &golden.ids);
        let mut worst = 0.0f32;
        for rows in [1, 3, 7, 64] {
            for replay in [Replay::OFF, Replay::new(1, 1), Replay::new(3, 3), Replay::new(16, 4)] {
                let found = logits(&model, Box::new(Cpu::new(2)), limits(rows, replay, KvType::F32), &golden.ids);
                let difference = largest_difference(&found, &whole);
                worst = worst.max(difference);
                assert!(difference < CHUNKED, "{name}: {difference} at {rows} rows, replay {}", replay.history);
            }
        }
        println!("{name}: largest difference {worst:.2e} over chunks and replay");
    }
}

/// Logits of `ids`, read 7 at a time, beside another sequence that reads 5 at a time.
pub(crate) fn beside(model: &Model, backend: Box<dyn Backend>, other: &[u32], ids: &[u32]) -> Vec<f32> {
    let limits = limits(64, Replay::new(8, 4), KvType::F32);
    let mut runner = model.prepare(backend, limits, &mut |_, _| {}).unwrap();
    let mut memory = runner.memory();
    let mut open = |tokens| {
        let (id, work) = memory.open().unwrap();
        runner.apply(&work).unwrap();
        (id, tokens)
    };
    let mut sequences = [open(other.chunks(5)), open(ids.chunks(7))];
    let mut all = Vec::new();
    while all.len() < ids.len() * model.spec.vocab {
        let (mut step, mut accepted) = (Step::default(), Vec::new());
        for (id, chunks) in &mut sequences {
            let Some(tokens) = chunks.next() else { continue };
            runner.apply(&memory.reserve(*id, tokens.len() as u32).unwrap()).unwrap();
            step.push(memory.slot(*id), memory.committed(*id), tokens, Outputs::All, memory.tables(*id));
            accepted.push((*id, tokens.len() as u32));
        }
        runner.run_step(&step).unwrap();
        let (_, rows) = *accepted.last().unwrap();
        let first = step.outputs().len() - rows as usize;
        (first..step.outputs().len()).for_each(|row| all.extend_from_slice(runner.logits_mut(row).unwrap()));
        for (id, rows) in accepted {
            runner.commit(&[(memory.slot(id), rows)]).unwrap();
            memory.commit(id, rows);
        }
    }
    all
}

#[test]
fn a_second_sequence_in_the_batch_changes_no_bit() {
    for directory in fixtures() {
        let (model, golden) = (converted(&directory, Quant::F32), golden(&directory));
        let other: Vec<u32> = golden.ids.iter().rev().copied().collect();
        let beside = |other| beside(&model, Box::new(Cpu::new(2)), other, &golden.ids);
        let (alone, together) = (beside(&[]), beside(&other[..31]));
        assert!(alone == together, "{}", directory.display());
    }
}

/// Mean over positions of the divergence of the found next-token distribution from the golden one, in nats.
pub(crate) fn divergence(expected: &[f32], found: &[f32], vocab: usize) -> f64 {
    let rows = expected.chunks(vocab).zip(found.chunks(vocab));
    rows.clone().map(|(expected, found)| engine::divergence(expected, found)).sum::<f64>() / rows.len() as f64
}

/// Largest divergence in nats of BF16 and F16, with f16 pages. Floor: 3.3e-6 (falcon-h1, whose multipliers are folded
/// into the weights and rounded with them), 4e-7 for the others.
const HALVES: f64 = 1e-5;

/// The divergence of Q8_0, with f16 pages: what was measured, of which a test allows twice as much. Random weights
/// spread logits like no trained model does, and a router that chooses another expert changes everything after it.
const Q8_0: [(&str, f64); 22] = [
    ("falcon-h1", 7.2e-5),
    ("granite", 1.8e-3),
    ("granitehybrid", 8.2e-6),
    ("granitehybrid-moe", 1.0e-5),
    ("granitemoe", 5.1e-4),
    ("jamba", 2.9e-2),
    ("kimi-linear", 1.6e-1),
    ("lfm2", 1.2e-2),
    ("lfm2moe", 4.6e-2),
    ("llama", 2.7e-3),
    ("llama3-rope", 2.0e-3),
    ("mamba", 7.8e-4),
    ("mamba2", 2.6e-3),
    ("mistral", 2.1e-3),
    ("nemotron_h", 3.1e-3),
    ("nemotron_h_moe", 1.3e-1),
    ("qwen2", 2.1e-3),
    ("qwen3", 2.1e-3),
    ("qwen35", 1.8e-2),
    ("qwen35moe", 7.1e-2),
    ("qwen3moe", 3.7e-3),
    ("qwen3next", 1.5e-1),
];

/// That of qwen3moe where sums are of 8 lanes (AVX2, scalar, NEON): its routers choose other experts in rows 12 and 47.
const OF_8_LANES: f64 = 4.4e-2;

/// That of granitemoe where the matrix unit takes activations of bf16: its routers choose other experts in row 40, which is
/// 8.8e-2 nats off; no other row is more than 1.5e-3.
const OF_TILES: f64 = 2.1e-3;

fn floor_of_q8_0(name: &str) -> f64 {
    let isa = Cpu::new(1).isa().expect("instructions that are there");
    if name == "qwen3moe" && isa < Isa::Avx512 {
        return OF_8_LANES;
    }
    if name == "granitemoe" && isa == Isa::Amx {
        return OF_TILES;
    }
    Q8_0.iter().find(|(known, _)| *known == name).expect("every fixture has a measured floor").1
}

#[test]
fn smaller_formats_stay_close_to_the_reference_implementation() {
    let mut far = Vec::new();
    for directory in fixtures() {
        let golden = golden(&directory);
        let name = directory.file_name().unwrap().to_str().unwrap();
        for (quant, bound) in [(Quant::Bf16, HALVES), (Quant::F16, HALVES), (Quant::Q8_0, 2.0 * floor_of_q8_0(name))] {
            let model = converted(&directory, quant);
            let of_backend = |backend: Box<dyn Backend>| {
                let found = logits(&model, backend, limits(64, Replay::new(8, 4), KvType::F16), &golden.ids);
                divergence(&golden.logits, &found, model.spec.vocab)
            };
            let found = of_backend(Box::new(Cpu::new(2)));
            print!("{name}: {found:.1e} nats as {quant}");
            match quant {
                Quant::Q8_0 => println!(", {:.1e} with exact activations", of_backend(Box::<Reference>::default())),
                _ => println!(),
            }
            if found > bound {
                far.push(format!("{name}: {found:.2e} nats as {quant}, at most {bound:.0e}"));
            }
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

/// All of a model in one file, another name, and keys that say what is known: the part for text computes the same.
#[test]
fn files_of_ollama_are_read_for_their_text() {
    let path = converted_file(&fixture("qwen35"), Quant::F32);
    let source = GgufFile::open(&path).unwrap();
    let mut metadata = source.metadata().clone();
    metadata.set("qwen35.ssm.v_head_reordered", Value::Bool(true));
    metadata.set("qwen35.vision.block_count", Value::U32(1));
    let mut writer = GgufWriter::new(metadata);
    let mut data = Vec::new();
    for info in source.tensors() {
        let name = info.name.strip_suffix(".bias").filter(|stem| stem.ends_with(".ssm_dt")).unwrap_or(&info.name);
        writer.declare(name, info.quant, &info.shape).unwrap();
        data.push(source.data(info).to_vec());
    }
    for name in ["v.blk.0.attn_qkv.weight", "mm.0.weight", "mtp.fc.weight"] {
        writer.declare(name, Quant::F32, &[4, 2]).unwrap();
        data.push(vec![0; 32]);
    }
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let out = crate::temporary::file(".gguf");
    std::fs::write(&out, writer.to_bytes(&data).unwrap()).unwrap();
    let ids = golden(&fixture("qwen35")).ids;
    let [found, expected] = [&out, &path].map(|path| {
        let model = Model::open(path, None).unwrap();
        logits(&model, Box::new(Cpu::new(1)), limits(64, Replay::new(0, 1), KvType::F32), &ids)
    });
    assert_eq!(found, expected);
    // Who runs it hears what it cannot do.
    let args = ["run", "-m", out.to_str().unwrap(), "--ids", "1,2", "-n", "1"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvas")).args(args).output().unwrap();
    let noted = String::from_utf8(output.stderr).unwrap();
    let expected =
        ": left out, since the language model does not need it: v.blk.0.attn_qkv.weight and 2 other tensors\n";
    assert!(output.status.success() && noted.contains(expected), "{noted}");
}
