//! Presets against what is known of the models: parameters as published, layers, the shapes of their files.

use super::{PRESETS, Preset, write::tensors};
use crate::{
    arch::{self, Header},
    model::lower::lower,
};
use kvas_gguf::Quant;

#[test]
fn presets_have_the_parameters_and_layers_of_their_models() {
    for preset in PRESETS {
        let spec = preset.spec(&preset.metadata()).unwrap();
        assert_eq!(spec.pattern(), preset.kinds().collect::<Vec<_>>().join(" "), "{}", preset.name);
        let found: usize = tensors(&spec, &lower(&spec), Quant::F32).iter().map(|tensor| tensor.elements()).sum();
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
        let tensors = tensors(&spec, &lower(&spec), Quant::Q4K);
        let directory = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
        let read = arch::read(&Header::new(&metadata, directory).unwrap()).unwrap();
        assert_eq!(read, spec, "{}", preset.name);
    }
}

/// Shape and format of a tensor of a preset whose matrices are Q4_K.
fn tensor(preset: &str, name: &str) -> (Vec<u64>, Quant) {
    let preset: &Preset = super::find(preset).unwrap();
    let spec = preset.spec(&preset.metadata()).unwrap();
    let tensors = tensors(&spec, &lower(&spec), Quant::Q4K);
    let tensor = tensors.into_iter().find(|tensor| tensor.name == name).unwrap();
    (tensor.shape, tensor.quant)
}

#[test]
fn shapes_and_formats_are_those_of_a_converter() {
    use Quant::{F32, Q4K, Q8_0};
    for (preset, name, shape, quant) in [
        ("llama-3.2-1b", "rope_freqs.weight", &[32][..], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_a", &[16], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_norm.weight", &[128], F32),
        ("qwen3.5-0.8b", "blk.0.ssm_conv1d.weight", &[4, 6144], F32),
        ("qwen3.5-0.8b", "blk.3.attn_q.weight", &[1024, 4096], Q4K),
        ("qwen3.5-35b-a3b", "blk.0.ffn_gate_inp.weight", &[2048, 256], F32),
        ("qwen3.5-35b-a3b", "blk.0.ffn_gate_inp_shexp.weight", &[2048, 1], F32),
        ("qwen3.5-35b-a3b", "blk.0.ffn_down_exps.weight", &[512, 2048, 256], Q4K),
        ("qwen3-next-80b-a3b", "blk.0.ssm_ba.weight", &[2048, 64], Q4K),
        ("mamba2-370m", "blk.0.ssm_d", &[1, 32], F32),
        ("mamba2-370m", "blk.0.ssm_norm.weight", &[2048, 1], F32),
        ("nemotron-3-nano-4b", "blk.0.ssm_norm.weight", &[960, 8], F32),
        ("nemotron-3-nano-4b", "blk.0.ssm_in.weight", &[3136, 17_504], Q8_0),
        ("nemotron-3-nano-30b-a3b", "blk.1.exp_probs_b.bias", &[128], F32),
        ("nemotron-3-nano-30b-a3b", "blk.1.ffn_up_exps.weight", &[2688, 1856, 128], Q8_0),
        ("falcon-h1-0.5b", "blk.0.ffn_norm", &[1024], F32),
        ("lfm2-1.2b", "blk.0.shortconv.conv.weight", &[3, 2048], F32),
        ("lfm2-1.2b", "blk.0.shortconv.in_proj.weight", &[2048, 6144], Q4K),
        ("kimi-linear-48b", "blk.0.ssm_a", &[1, 32, 1, 1], F32),
        ("kimi-linear-48b", "blk.0.ssm_conv1d_q.weight", &[4, 1, 4096, 1], F32),
        ("kimi-linear-48b", "blk.3.attn_k_b.weight", &[128, 512, 32], Q8_0),
        ("kimi-linear-48b", "blk.3.attn_v_b.weight", &[512, 128, 32], Q4K),
        ("jamba-reasoning-3b", "blk.0.ssm_a", &[16, 5120], F32),
        ("jamba-reasoning-3b", "blk.0.ssm_d", &[5120], F32),
        ("jamba-reasoning-3b", "blk.0.ssm_dt.weight", &[160, 5120], Q8_0),
    ] {
        assert_eq!(tensor(preset, name), (shape.to_vec(), quant), "{preset} {name}");
    }
}
