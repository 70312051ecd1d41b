//! Presets against what is known of the models: parameters as published, layers, the shapes of their files.

use super::{
    PRESETS, Preset,
    write::{Tensor, distribution, store_as, tensors},
};
use crate::{
    arch::{self, Header},
    model::{
        ModelSpec,
        kinds::{TensorKind, layers, legend},
        lower::lower,
    },
};
use kvas_gguf::{GgufFile, Quant};
use kvas_tools::{
    convert::{ConvertOptions, MtpBlocks, convert},
    quantize::{Facts, Mix},
};
use std::path::Path;

#[test]
fn presets_have_the_parameters_and_layers_of_their_models() {
    for preset in PRESETS {
        let spec = preset.spec(&preset.metadata()).unwrap();
        assert_eq!(spec.pattern(), preset.kinds().collect::<Vec<_>>().join(" "), "{}", preset.name);
        let found: usize = tensors(&spec, &lower(&spec)).iter().map(|tensor| tensor.elements()).sum();
        let ratio = found as f64 / (preset.millions * 1e6);
        println!("{}: {found} parameters, {ratio:.4} of the published number", preset.name);
        // Published numbers are rounded: 1.5 billion is 1.46, 48 billion is 49.1.
        assert!(
            (ratio - 1.0).abs() < 0.03,
            "{}: {found} parameters, {} million published",
            preset.name,
            preset.millions
        );
    }
}

#[test]
fn files_of_presets_are_read_as_the_models_they_are() {
    for preset in PRESETS {
        let metadata = preset.metadata();
        let spec = preset.spec(&metadata).unwrap();
        let tensors = tensors(&spec, &lower(&spec));
        let directory = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
        let read = arch::read(&Header::new(&metadata, directory).unwrap()).unwrap();
        assert_eq!(read, spec, "{}", preset.name);
    }
}

/// What is written for a model has the shapes and formats of what is converted of one.
#[test]
fn tensors_are_those_of_a_converter() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("preset-test.gguf");
    let mut compared = 0;
    for fixture in std::fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()) {
        let options = ConvertOptions { quant: Quant::Q8_0, mtp: MtpBlocks::Omit, ..ConvertOptions::default() };
        convert(&fixture, &out, &options).unwrap();
        let file = GgufFile::open(&out).unwrap();
        let spec = arch::read(&Header::of_file(&file).unwrap()).unwrap();
        let mut tensors = tensors(&spec, &lower(&spec));
        store_as(&mut tensors, Mix::from_name("q8_0").unwrap(), &Facts::of(file.metadata()).unwrap());
        assert_eq!(tensors.len(), file.tensors().len(), "{}", fixture.display());
        for Tensor { name, quant, shape } in tensors {
            let converted = file.tensor(&name).unwrap_or_else(|| panic!("{}: {name}", fixture.display()));
            assert_eq!((quant, &shape), (converted.quant, &converted.shape), "{}: {name}", fixture.display());
            compared += 1;
        }
    }
    std::fs::remove_file(out).unwrap();
    assert!(compared > 800, "{compared} tensors");
}

#[test]
fn numbers_are_such_as_a_model_has() {
    let of = |name: &str| distribution(&Tensor { name: name.into(), quant: Quant::F32, shape: vec![256, 4] });
    assert_eq!(of("blk.0.ssm_a"), (-1.0, 0.1));
    assert_eq!(of("blk.0.ssm_d"), (1.0, 0.1));
    assert_eq!(of("blk.0.ssm_dt.bias"), (-2.0, 0.5));
    assert_eq!(of("blk.0.ssm_dt_norm.weight"), (1.0, 0.1));
    assert_eq!(of("rope_freqs.weight"), (1.0, 0.1));
    assert_eq!(of("blk.0.exp_probs_b.bias"), (0.0, 0.01));
    for matrix in ["ssm_dt.weight", "shortconv.in_proj.weight", "attn_q.weight"] {
        assert_eq!(of(&format!("blk.0.{matrix}")), (0.0, 1.0 / 16.0), "{matrix}");
    }
}

fn spec(preset: &str) -> ModelSpec {
    let preset: &Preset = super::find(preset).unwrap();
    preset.spec(&preset.metadata()).unwrap()
}

/// Shape and format of a tensor of a preset in Q4_K_M.
fn tensor(preset: &str, name: &str) -> (Vec<u64>, Quant) {
    let preset: &Preset = super::find(preset).unwrap();
    let metadata = preset.metadata();
    let spec = preset.spec(&metadata).unwrap();
    let mut tensors = tensors(&spec, &lower(&spec));
    store_as(&mut tensors, Mix::from_name("q4_k_m").unwrap(), &Facts::of(&metadata).unwrap());
    let tensor = tensors.into_iter().find(|tensor| tensor.name == name).unwrap();
    (tensor.shape, tensor.quant)
}

#[test]
fn shapes_and_formats_are_those_of_a_converter() {
    use Quant::{F32, Q4K, Q5_0, Q6K};
    for (preset, name, shape, quant) in [
        ("llama-3.2-1b", "rope_freqs.weight", &[32][..], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_a", &[16], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_norm.weight", &[128], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_conv1d.weight", &[4, 6144], F32),
        ("qwen3.5-0.8b", "blk.3.attn_q.weight", &[1024, 4096], Q4K),
        ("qwen3.5-35b-a3b", "blk.0.ffn_gate_inp.weight", &[2048, 256], F32),
        ("qwen3.5-35b-a3b", "blk.0.ffn_gate_inp_shexp.weight", &[2048, 1], F32),
        ("qwen3.5-35b-a3b", "blk.0.ffn_down_exps.weight", &[512, 2048, 256], Q6K),
        ("qwen3-next-80b-a3b", "blk.0.ssm_ba.weight", &[2048, 64], Q4K),
        ("mamba2-370m", "blk.0.ssm_d", &[1, 32], F32),
        ("mamba2-370m", "blk.0.ssm_norm.weight", &[2048, 1], F32),
        ("mamba2-780m", "blk.0.ssm_in.weight", &[1536, 6448], Q4K),
        ("nemotron-3-nano-4b", "blk.0.ssm_norm.weight", &[960, 8], F32),
        ("nemotron-3-nano-4b", "blk.0.ssm_in.weight", &[3136, 17_504], Q5_0),
        ("nemotron-3-nano-30b-a3b", "blk.1.exp_probs_b.bias", &[128], F32),
        ("nemotron-3-nano-30b-a3b", "blk.1.ffn_up_exps.weight", &[2688, 1856, 128], Q5_0),
        ("falcon-h1-0.5b", "blk.0.ffn_norm", &[1024], F32),
        ("lfm2-1.2b", "blk.0.shortconv.conv.weight", &[3, 2048], F32),
        ("lfm2-1.2b", "blk.0.shortconv.in_proj.weight", &[2048, 6144], Q4K),
        ("kimi-linear-48b", "blk.0.ssm_a", &[1, 32, 1, 1], F32),
        ("kimi-linear-48b", "blk.0.ssm_conv1d_q.weight", &[4, 1, 4096, 1], F32),
        ("kimi-linear-48b", "blk.3.attn_k_b.weight", &[128, 512, 32], Q5_0),
        ("kimi-linear-48b", "blk.3.attn_v_b.weight", &[512, 128, 32], Q4K),
        ("jamba-reasoning-3b", "blk.0.ssm_a", &[16, 5120], F32),
        ("jamba-reasoning-3b", "blk.0.ssm_d", &[5120], F32),
        ("jamba-reasoning-3b", "blk.0.ssm_dt.weight", &[160, 5120], Q5_0),
    ] {
        assert_eq!(tensor(preset, name), (shape.to_vec(), quant), "{preset} {name}");
    }
}

#[test]
fn kinds_follow_the_mixer_of_the_layer() {
    for (preset, name, kind) in [
        ("qwen3.5-0.8b", "blk.0.attn_qkv.weight", "gated delta"),
        ("qwen3.5-0.8b", "blk.3.attn_q.weight", "attention"),
        ("qwen3.5-0.8b", "blk.3.attn_q_norm.weight", "norm"),
        ("qwen3.5-0.8b", "blk.24.attn_q.weight", "prediction"),
        ("falcon-h1-0.5b", "blk.0.attn_q.weight", "attention"),
        ("falcon-h1-0.5b", "blk.0.ssm_in.weight", "mamba-2"),
        ("falcon-h1-0.5b", "blk.0.ffn_norm", "norm"),
        ("kimi-linear-48b", "blk.0.attn_q.weight", "gated delta"),
        ("kimi-linear-48b", "blk.3.attn_k_b.weight", "latent attention"),
        ("kimi-linear-48b", "blk.1.exp_probs_b.bias", "router"),
        ("qwen3.5-35b-a3b", "blk.1.ffn_gate_inp_shexp.weight", "shared expert"),
        ("lfm2-1.2b", "blk.0.shortconv.conv.weight", "short convolution"),
        ("jamba-reasoning-3b", "blk.0.ssm_x.weight", "mamba-1"),
    ] {
        assert_eq!(TensorKind::of(name, Some(&spec(preset))).name(), kind, "{preset} {name}");
    }
    assert_eq!(TensorKind::of("blk.0.ssm_in.weight", None), TensorKind::Recurrent);
    assert_eq!(TensorKind::of("v.patch_embd.weight", None), TensorKind::Other);
}

#[test]
fn layers_say_once_what_repeats() {
    assert_eq!(layers(&spec("qwen3.5-0.8b")), "24: 6 x (Df Df Df Af)");
    assert_eq!(layers(&spec("mamba2-370m")), "48: 48 x (M)");
    assert_eq!(layers(&spec("lfm2-1.2b")), "16: Cf Cf Af Cf Cf Af Cf Cf Af Cf Af Cf Af Cf Af Cf");
    assert_eq!(
        legend(&spec("kimi-linear-48b")),
        "L latent attention, K gated delta per channel, f feed-forward, e experts"
    );
}
