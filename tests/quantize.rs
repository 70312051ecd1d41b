//! `kvas quantize` and `kvas imatrix` as a user runs them.

use crate::{
    commands::{fails, succeeds, text},
    golden::{converted_file, fixture},
};
use kvas_gguf::{GgufFile, Quant};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, TempPath};

/// A converted checkpoint and a place beside it for what is made of it; both are removed at the end.
struct Files {
    source: PathBuf,
    out: PathBuf,
    importance: PathBuf,
    _places: (TempPath, TempDir),
}

impl Files {
    fn of(checkpoint: &str) -> Files {
        let source = converted_file(&fixture(checkpoint), Quant::F32);
        let folder = crate::temporary::folder();
        let [out, importance] = ["out.gguf", "imatrix.gguf"].map(|name| folder.path().join(name));
        Files { source: source.to_path_buf(), out, importance, _places: (source, folder) }
    }

    fn quantize(&self, arguments: &[&str]) -> GgufFile {
        succeeds(&[&["quantize", &text(&self.source), &text(&self.out)], arguments].concat());
        GgufFile::open(&self.out).unwrap()
    }

    fn refuses(&self, arguments: &[&str]) -> String {
        let error = fails(&[&["quantize", &text(&self.source), &text(&self.out)], arguments].concat());
        assert!(!self.out.exists(), "{error}");
        error
    }

    fn measure(&self) -> GgufFile {
        let story = story();
        succeeds(&[
            "imatrix",
            "-m",
            &text(&self.source),
            "-f",
            &text(&story),
            "-o",
            &text(&self.importance),
            "-c",
            "32",
            "--chunks",
            "3",
        ]);
        GgufFile::open(&self.importance).unwrap()
    }
}

fn story() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/story.txt")
}

fn numbers(file: &GgufFile, tensor: &str) -> Vec<f32> {
    let info = file.tensor(tensor).unwrap_or_else(|| panic!("{tensor}"));
    let mut numbers = vec![0.0; info.elements()];
    info.quant.dequantize(&file.data(info), &mut numbers).unwrap();
    numbers
}

#[test]
fn an_importance_matrix_is_not_written_over() {
    let files = Files::of("qwen3");
    files.measure();
    let (importance, before) = (text(&files.importance), std::fs::read(&files.importance).unwrap());
    let error = fails(&["quantize", &text(&files.source), &importance, "q8_0", "--imatrix", &importance]);
    assert_eq!(error, format!("error: {importance}: is a file that is read for it, expected another one"));
    assert!(std::fs::read(&files.importance).unwrap() == before);
}

#[test]
fn a_quantised_model_has_the_formats_listed_and_runs() {
    let files = Files::of("qwen3next");
    let (source, out) = (text(&files.source), text(&files.out));
    let flags = ["q5_0", "--tensor-type", r"blk\.0\..*_exps=q4_1", "--output-tensor-type", "f16"];
    let listed = succeeds(&[&["quantize", &source, &out], &flags[..], &["--dry-run"]].concat());
    assert!(!files.out.exists());
    let file = files.quantize(&flags);
    let quant = |name: &str| file.tensor(name).unwrap().quant;
    assert_eq!(quant("blk.0.ffn_down_exps.weight"), Quant::Q4_1);
    assert_eq!(quant("blk.1.ffn_up_exps.weight"), Quant::Q5_0);
    assert_eq!(quant("output.weight"), Quant::F16);
    assert_eq!(quant("blk.0.ffn_gate_inp.weight"), Quant::F32);
    for tensor in file.tensors() {
        let mut words = listed.lines().find(|line| line.starts_with(&format!("{} ", tensor.name))).unwrap().split(' ');
        assert!(words.any(|word| word == tensor.quant.name()), "{}", tensor.name);
    }
    assert_eq!(file.metadata().uint("general.file_type").unwrap(), 8);
    assert_eq!(file.metadata().uint("general.quantization_version").unwrap(), 2);
    let answer = succeeds(&["run", "-m", &out, "--ids", "1,2,3", "-n", "3", "--temp", "0", "--ignore-eos", "--json"]);
    assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
}

#[test]
fn wrong_requests_are_one_line_and_leave_no_file() {
    let mut files = Files::of("qwen2");
    assert!(files.refuses(&["q9"]).starts_with("error: type q9, expected one of q2_k, "));
    assert_eq!(files.refuses(&["q8_0", "--tensor-type", "a"]), "error: --tensor-type a, expected REGEX=TYPE");
    assert!(files.refuses(&["q8_0", "--tensor-type", "a(=q8_0"]).contains("a( is no regular expression"));
    assert!(files.refuses(&["q8_0", "--tensor-type", "a=iq1_s"]).contains("--tensor-type iq1_s, expected one of f32"));
    let model = text(&files.source);
    assert!(files.refuses(&["q8_0", "--imatrix", &model]).contains("is no importance matrix, expected general.type"));
    files.source = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/hybrid-14m.q4_0.gguf");
    let error = files.refuses(&["q8_0"]);
    assert!(error.contains("is Q4_0 already, expected F32, F16 or BF16 (--allow-requantize"), "{error}");
    let file = files.quantize(&["q8_0", "--allow-requantize", "-t", "1"]);
    assert_eq!(file.tensor("blk.0.ffn_up.weight").unwrap().quant, Quant::Q8_0);
}

/// The first matrices of a model meet its normed embeddings, which are easily had otherwise.
#[test]
fn importance_is_the_sum_of_squares_of_inputs() {
    let files = Files::of("qwen2");
    let measured = files.measure();
    let model = GgufFile::open(&files.source).unwrap();
    let ids = succeeds(&["tokenize", "-m", &text(&files.source), "-f", &text(&story()), "--json"]);
    let ids: Value = serde_json::from_str(&ids).unwrap();
    let ids: Vec<usize> = ids["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect();
    let (embedding, norm) = (numbers(&model, "token_embd.weight"), numbers(&model, "blk.0.attn_norm.weight"));
    let width = norm.len();
    let mut expected = vec![0.0; width];
    for id in &ids[..96] {
        let row = &embedding[id * width..][..width];
        let mean = row.iter().map(|x| x * x).sum::<f32>() / width as f32;
        for ((sum, x), norm) in expected.iter_mut().zip(row).zip(&norm) {
            *sum += (x / (mean + 1e-6).sqrt() * norm).powi(2);
        }
    }
    for (found, expected) in numbers(&measured, "blk.0.attn_q.weight.in_sum2").iter().zip(&expected) {
        assert!((found - expected).abs() <= expected * 1e-4, "{found}, expected {expected}");
    }
    assert_eq!(numbers(&measured, "blk.0.attn_q.weight.counts"), [96.0]);
    assert_eq!(measured.metadata().uint("imatrix.chunk_count").unwrap(), 3);
    assert_eq!(measured.metadata().uint("imatrix.chunk_size").unwrap(), 32);
}

#[test]
fn importance_of_experts_counts_the_rows_they_met() {
    let files = Files::of("qwen3next");
    let measured = files.measure();
    for stem in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
        let counts = numbers(&measured, &format!("blk.0.{stem}.weight.counts"));
        assert_eq!((counts.len(), counts.iter().sum::<f32>()), (8, 192.0), "96 rows, 2 experts each");
    }
    let plain = files.quantize(&["q4_0"]);
    let weighted = files.quantize(&["q4_0", "--imatrix", &text(&files.importance)]);
    assert_eq!(
        weighted.metadata().uint("quantize.imatrix.entries_count").unwrap(),
        measured.tensors().len() as u64 / 2
    );
    assert_eq!(weighted.metadata().uint("quantize.imatrix.chunks_count").unwrap(), 3);
    assert_eq!(weighted.metadata().string("quantize.imatrix.dataset").unwrap(), text(&story()));
    // Each expert is nearer to its numbers where its own inputs are large.
    let model = GgufFile::open(&files.source).unwrap();
    let tensor = "blk.0.ffn_up_exps.weight";
    let (x, sums) = (numbers(&model, tensor), numbers(&measured, &format!("{tensor}.in_sum2")));
    let (columns, rows) = (sums.len() / 8, x.len() / sums.len());
    let error = |file: &GgufFile| -> f32 {
        let found = numbers(file, tensor);
        (0..x.len()).map(|at| (x[at] - found[at]).powi(2) * sums[at / columns / rows * columns + at % columns]).sum()
    };
    let (plain, weighted) = (error(&plain), error(&weighted));
    // Measured: 0.873.
    assert!(weighted < 0.9 * plain, "{weighted} with importance, {plain} without");
}

/// The file with what a format makes of bytes in the place of its matrices: as blocks, and as the numbers they stand for.
fn twins(source: &GgufFile, quant: Quant, paths: [&Path; 2]) {
    let mut writers = [(); 2].map(|()| kvas_gguf::GgufWriter::new(source.metadata().clone()));
    let fits = |info: &kvas_gguf::TensorInfo| info.shape.len() > 1 && quant.row_bytes(info.columns()).is_some();
    let mut data = [Vec::new(), Vec::new()];
    for info in source.tensors() {
        let stored = source.data(info).to_vec();
        let (formats, bytes) = if fits(info) {
            let blocks: Vec<u8> = (0..info.elements() / quant.block_len())
                .flat_map(|block| (0..quant.block_bytes()).map(move |at| (block * 131 + at * 89) as u8))
                .collect();
            let mut blocks = blocks;
            for block in blocks.chunks_exact_mut(quant.block_bytes()) {
                // Scales near those of a model: 0.03 as f16, and 0.0078 as half an 8-bit float.
                let scale: &[u8] = if quant == Quant::Nvfp4 { &[0x08; 4] } else { &[0xAE, 0x27] };
                block[..scale.len()].copy_from_slice(scale);
            }
            let mut numbers = vec![0.0; info.elements()];
            quant.dequantize(&blocks, &mut numbers).unwrap();
            ([quant, Quant::F32], [blocks, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()])
        } else {
            ([info.quant; 2], [stored.clone(), stored])
        };
        for (((writer, data), format), bytes) in writers.iter_mut().zip(&mut data).zip(formats).zip(bytes) {
            writer.declare(&info.name, format, &info.shape).unwrap();
            data.push(bytes);
        }
    }
    for ((writer, data), path) in writers.iter().zip(&data).zip(paths) {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        std::fs::write(path, writer.to_bytes(&data).unwrap()).unwrap();
    }
}

#[test]
fn formats_that_are_only_read_run_as_their_numbers_do() {
    let files = Files::of("qwen3next");
    let source = GgufFile::open(&files.source).unwrap();
    let folder = files.out.parent().unwrap();
    let [blocks, plain] = ["blocks.gguf", "plain.gguf"].map(|name| folder.join(name));
    for quant in [Quant::Nvfp4, Quant::Q1_0, Quant::Q2_0] {
        twins(&source, quant, [&blocks, &plain]);
        assert!(succeeds(&["inspect", &text(&blocks)]).contains(quant.name()), "{quant}");
        let [found, expected] = [&blocks, &plain].map(|path| logits(path, &folder.join("logits")));
        let spread = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(spread > 0.1, "{quant}: {spread}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-4 * spread, "{quant} at {at}: {found}, expected {expected}");
        }
    }
}

/// The logits of a model after some tokens.
fn logits(model: &Path, out: &Path) -> Vec<f32> {
    succeeds(&["logits", "-m", &text(model), "--ids", "1,2,3,4,5,6,7", "-o", &text(out)]);
    let bytes = std::fs::read(out).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.tensor("logits").unwrap().data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}
