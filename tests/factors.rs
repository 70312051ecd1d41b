//! Weights in NVFP4 with factors beside them, as files of llama.cpp have them, against the same numbers in F32.

use crate::{
    commands::{fails, succeeds, text},
    golden::{converted_file, fixture},
};
use kvas_gguf::{GgufFile, GgufWriter, Quant};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// (name, format, shape, data)
type Tensor = (String, Quant, Vec<u64>, Vec<u8>);

/// A number from 0 to 1 that depends on what it is of.
fn random(seed: &mut u32) -> f32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*seed >> 8) as f32 / (1 << 24) as f32
}

/// The tensors of a file: gates of experts and what they gate as one if they are `fused`.
fn tensors(file: &GgufFile, fused: bool) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for info in file.tensors() {
        let mut add =
            |name: &str, shape: &[u64], data| tensors.push((name.to_string(), info.quant, shape.to_vec(), data));
        match info.name.strip_suffix("ffn_up_exps.weight") {
            Some(_) if fused => {}
            Some(_) | None => {
                let Some(stem) = info.name.strip_suffix("ffn_gate_exps.weight").filter(|_| fused) else {
                    add(&info.name, &info.shape, file.data(info).to_vec());
                    continue;
                };
                let up = file.tensor(&format!("{stem}ffn_up_exps.weight")).unwrap();
                let [gate, up] = [info, up].map(|info| file.data(info));
                let each = gate.len() / info.shape[2] as usize;
                let both = gate.chunks(each).zip(up.chunks(each)).flat_map(|(gate, up)| [gate, up].concat()).collect();
                let shape = [info.shape[0], 2 * info.shape[1], info.shape[2]];
                add(&format!("{stem}ffn_gate_up_exps.weight"), &shape, both);
            }
        }
    }
    tensors
}

/// Turns matrices into NVFP4 with a factor, of experts with one for each. Returns how many.
fn with_factors(tensors: &mut Vec<Tensor>) -> usize {
    let mut factors = Vec::new();
    for (name, quant, shape, data) in tensors.iter_mut() {
        let is_small = ["norm", "conv1d", "ssm_a", "rope_freqs", "ffn_gate_inp"].iter().any(|part| name.contains(part));
        if shape.len() < 2 || !shape[0].is_multiple_of(64) || is_small {
            continue;
        }
        let mut seed = name.bytes().fold(7, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let blocks = shape.iter().product::<u64>() as usize / 64;
        // Scales from 1/2 to 2, any codes.
        let mut block = || -> Vec<u8> {
            let scales: Vec<u8> = (0..4).map(|_| 0x30 + (random(&mut seed) * 16.0) as u8).collect();
            scales.into_iter().chain((0..32).map(|_| (random(&mut seed) * 256.0) as u8)).collect()
        };
        *data = (0..blocks).flat_map(|_| block()).collect();
        *quant = Quant::Nvfp4;
        let matrices = shape.get(2).map_or(1, |&count| count as usize);
        let of_each: Vec<u8> = (0..matrices).flat_map(|_| (0.003 + 0.03 * random(&mut seed)).to_le_bytes()).collect();
        let stem = name.strip_suffix(".weight").unwrap();
        factors.push((format!("{stem}.scale"), Quant::F32, vec![matrices as u64], of_each));
        factors.push((format!("{stem}.input_scale"), Quant::F32, vec![1], 5.0f32.to_le_bytes().to_vec()));
    }
    let count = factors.len() / 2;
    tensors.extend(factors);
    count
}

/// Models in F32 have keys and values in it, too.
const PRECISE: [&str; 4] = ["--cache-type-k", "f32", "--cache-type-v", "f32"];

struct Files {
    folder: TempDir,
    model: PathBuf,
    folded: PathBuf,
}

impl Files {
    /// A fixture with factors, and the same with them in numbers in F32.
    fn of(checkpoint: &str, change: impl FnOnce(&GgufFile) -> Vec<Tensor>) -> Files {
        let source = converted_file(&fixture(checkpoint), Quant::F32);
        let source = GgufFile::open(&source).unwrap();
        let folder = crate::temporary::folder();
        let [model, folded] = ["model.gguf", "folded.gguf"].map(|name| folder.path().join(name));
        let mut tensors = change(&source);
        assert!(with_factors(&mut tensors) > 2, "{checkpoint}");
        write(&model, &source, &tensors);
        succeeds(&["quantize", "--allow-requantize", &text(&model), &text(&folded), "f32"]);
        let is_f32 = |file: &GgufFile| file.tensors().iter().all(|info| info.quant == Quant::F32);
        assert!(is_f32(&GgufFile::open(&folded).unwrap()));
        Files { folder, model, folded }
    }

    /// The logits after some tokens of both, computed on a device.
    fn logits(&self, device: &str) -> [Vec<f32>; 2] {
        [&self.model, &self.folded].map(|model| {
            let out = self.folder.path().join("logits");
            let ids = "1,2,3,4,5,6,7";
            let asked = ["logits", "-m", &text(model), "--device", device, "--ids", ids, "-o", &text(&out)];
            succeeds(&[&asked[..], &PRECISE].concat());
            let bytes = std::fs::read(&out).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let found = file.tensor("logits").unwrap();
            found.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        })
    }
}

fn write(path: &Path, source: &GgufFile, tensors: &[Tensor]) {
    let mut writer = GgufWriter::new(source.metadata().clone());
    tensors.iter().for_each(|(name, quant, shape, _)| writer.declare(name, *quant, shape).unwrap());
    let data: Vec<&[u8]> = tensors.iter().map(|(_, _, _, data)| &data[..]).collect();
    std::fs::write(path, writer.to_bytes(&data).unwrap()).unwrap();
}

/// Heads, experts and parts of a state-space layer that lie in one tensor are rows of several weights.
#[test]
fn factors_beside_weights_are_in_their_numbers() {
    let all = |fused: bool| move |file: &GgufFile| tensors(file, fused);
    let tied = |file: &GgufFile| {
        let mut tensors = tensors(file, false);
        tensors.retain(|(name, ..)| name != "output.weight");
        tensors
    };
    let mut made: Vec<(String, Files)> =
        ["qwen3next", "qwen35moe", "kimi-linear", "granitehybrid-moe", "nemotron_h_moe"]
            .map(|name| (name.to_string(), Files::of(name, all(false))))
            .into();
    made.push(("qwen35moe, fused".into(), Files::of("qwen35moe", all(true))));
    made.push(("llama, tied".into(), Files::of("llama", tied)));
    for (name, files) in made {
        // The naive one computes with the numbers alone.
        let [found, expected] = files.logits("reference");
        assert!(found == expected, "{name}");
        let [found, expected] = files.logits("cpu");
        let spread = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(spread > 0.05, "{name}: {spread}");
        let worst = found.iter().zip(&expected).fold(0.0f32, |worst, (x, y)| worst.max((x - y).abs()));
        // Floor: 0, for the same rows are multiplied in the same order.
        assert!(worst <= 1e-5 * spread, "{name}: {worst} of {spread}");
    }
}

#[test]
fn what_looks_at_files_knows_factors() {
    let files = Files::of("qwen35moe", |file| tensors(file, false));
    let model = text(&files.model);
    assert!(succeeds(&["inspect", &model, "--tensors"]).contains(".scale"));
    succeeds(&["plan", "-m", &model]);
    let story = text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/story.txt"));
    let perplexity = |model: &Path| {
        let asked = ["perplexity", "-m", &text(model), "-f", &story, "-c", "32", "--chunks", "2", "--json"];
        let said = succeeds(&[&asked[..], &PRECISE].concat());
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["ppl"].as_f64().unwrap()
    };
    let [found, expected] = [perplexity(&files.model), perplexity(&files.folded)];
    assert!((found / expected - 1.0).abs() < 1e-4, "{found}, expected {expected}");
    succeeds(&["diff", "-m", &model, "--device", "cpu", "--ids", "1,2,3"]);
}

/// Only what is computed with the numbers of NVFP4 looks at factors.
#[test]
fn factors_that_would_not_be_looked_at_are_refused() {
    let checkpoint = converted_file(&fixture("llama"), Quant::F32);
    let source = GgufFile::open(&checkpoint).unwrap();
    let folder = crate::temporary::folder();
    let path = folder.path().join("model.gguf");
    let refused = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = tensors(&source, false);
        change(&mut tensors);
        write(&path, &source, &tensors);
        fails(&["run", "-m", &text(&path), "--ids", "1", "-n", "1"])
    };
    let half = |name: &str| (name.to_string(), Quant::F32, vec![1], 0.5f32.to_le_bytes().to_vec());
    let error = refused(&|tensors| tensors.push(half("blk.0.ffn_up.scale")));
    let expected = "tensor blk.0.ffn_up.scale: is a factor beside blk.0.ffn_up.weight, which is F32, expected NVFP4 or \
                    the factor in the numbers, where kvas quantize --allow-requantize puts it";
    assert!(error.contains(expected), "{error}");
    let folded = path.with_file_name("folded.gguf");
    succeeds(&["quantize", &text(&path), &text(&folded), "f32"]);
    let numbers = |path: &Path| {
        let file = GgufFile::open(path).unwrap();
        let info = file.tensor("blk.0.ffn_up.weight").unwrap();
        let mut numbers = vec![0.0; info.elements()];
        info.quant.dequantize(&file.data(info), &mut numbers).unwrap();
        numbers
    };
    let halves: Vec<f32> = numbers(&path).iter().map(|x| 0.5 * x).collect();
    assert_eq!(numbers(&folded), halves);
    succeeds(&["run", "-m", &text(&folded), "--ids", "1", "-n", "1", "--ignore-eos"]);
    let wrong = |change: &dyn Fn(&mut Tensor)| {
        refused(&|tensors| {
            with_factors(tensors);
            change(tensors.iter_mut().find(|(name, ..)| name == "blk.0.ffn_up.scale").unwrap());
        })
    };
    let error = wrong(&|(_, _, shape, data)| (*shape, *data) = (vec![2], data.repeat(2)));
    assert!(error.contains("tensor blk.0.ffn_up.scale: has 2 numbers, expected 1"), "{error}");
    let error = wrong(&|(_, quant, shape, _)| (*quant, *shape) = (Quant::F16, vec![2]));
    assert!(error.contains("tensor blk.0.ffn_up.scale: is F16, expected F32"), "{error}");
    let error = wrong(&|(_, _, _, data)| *data = f32::NAN.to_le_bytes().to_vec());
    assert!(error.contains("tensor blk.0.ffn_up.scale: has NaN, expected numbers that are finite"), "{error}");
    let error = wrong(&|(name, ..)| *name = "blk.0.no_such.scale".into());
    assert!(error.contains("tensor blk.0.no_such.scale: is not used by architecture llama"), "{error}");
}

/// Whole numbers are no weights, and what is read as one weight has one format.
#[test]
fn formats_that_are_none_of_weights_are_named() {
    for (name, quant, expected) in [
        ("blk.0.attn_norm.weight", Quant::I32, "is I32, expected a format of weights such as F32 or Q8_0"),
        ("blk.0.ssm_conv1d_k.weight", Quant::F16, "is F32 and read together with F16, expected one format"),
    ] {
        let temporary = crate::temporary::folder();
        let path = temporary.path().join("changed.gguf");
        let source = GgufFile::open(&converted_file(&fixture("kimi-linear"), Quant::F32)).unwrap();
        let mut tensors = tensors(&source, false);
        let (_, format, _, data) = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
        (*format, *data) = (quant, vec![0; data.len() * quant.block_bytes() / 4]);
        write(&path, &source, &tensors);
        let error = fails(&["plan", "-m", &text(&path)]);
        assert!(error.contains("tensor blk.0.") && error.ends_with(expected), "{error}");
        assert!(error.starts_with(&format!("error: {}: ", path.display())), "{error}");
    }
}
