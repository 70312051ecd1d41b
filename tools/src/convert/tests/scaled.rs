//! Checkpoints with FP8 and MXFP4 weights.

use super::*;

const UP: &str = "model.layers.0.mlp.up_proj.weight";

/// The tensor of 6 rows and 8 columns as FP8, with its scales: numbers of the tensor, of the scales, shape of those.
fn fp8(fixture: &mut Fixture, name: &str, scales: &[f32], shape: &[usize]) {
    let numbers: Vec<f32> = (0..48).map(|at| (at % 15) as f32 / 2.0 - 3.5).collect();
    fixture.tensors.insert(UP.into(), Made { dtype: Dtype::F8_E4M3, shape: vec![6, 8], numbers });
    let scales = Made { dtype: Dtype::F32, shape: shape.to_vec(), numbers: scales.to_vec() };
    fixture.tensors.insert(format!("{UP}{name}"), scales);
}

#[test]
fn fp8_weights_are_multiplied_by_their_scales() {
    // Blocks of 4 x 3 over 6 x 8, of whole rows, and everything.
    let blocks = [1.0, 2.0, 0.5, 4.0, 0.25, 8.0];
    let per_row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    type Case<'a> = (&'a str, &'a [f32], &'a [usize], fn(usize, usize) -> usize);
    let cases: [Case<'_>; 4] = [
        ("_scale_inv", &blocks, &[2, 3], |row, column| row / 4 * 3 + column / 3),
        ("_scale", &per_row, &[6, 1], |row, _| row),
        ("_scale", &per_row, &[6], |row, _| row),
        ("_scale", &[0.125], &[], |_, _| 0),
    ];
    for (name, scales, shape, place) in cases {
        let mut fixture = llama();
        fixture.config["quantization_config"] =
            json!({"quant_method": "fp8", "weight_block_size": [4, 3], "activation_scheme": "dynamic"});
        fp8(&mut fixture, name, scales, shape);
        fixture.add("model.layers.0.mlp.up_proj.input_scale", &[1]);
        let found = numbers(&fixture.f32(), "blk.0.ffn_up.weight");
        for (at, (found, number)) in found.iter().zip(fixture.numbers(UP)).enumerate() {
            assert_eq!(*found, number * scales[place(at / 8, at % 8)], "{name} {shape:?}: {at}");
        }
        assert_eq!(
            plan(fixture.folder.path(), &of(Quant::F32)).unwrap().ignored,
            ["model.layers.0.mlp.up_proj.input_scale"]
        );
    }
    let mut fixture = llama();
    fp8(&mut fixture, "_scale_inv", &blocks, &[3, 2]);
    assert_eq!(
        fixture.error(&of(Quant::F32)),
        format!("tensor {UP}_scale_inv has the shape [3, 2], expected a scale for each block of 128 x 128 of [6, 8]")
    );
    fixture.tensors.get_mut(&format!("{UP}_scale_inv")).unwrap().dtype = Dtype::I64;
    assert!(fixture.error(&of(Quant::F32)).contains("_scale_inv is I64, expected the type of scales"));
}

/// A model with rows of 64 numbers, whose weights are in a format of compressed-tensors.
fn of_compressed_tensors(format: &str) -> Fixture {
    let mut fixture = llama();
    fixture.config["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": format});
    fixture.config["intermediate_size"] = json!(64);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.");
        fixture.add_all(&prefix, &[("gate_proj.weight", &[64, 8]), ("up_proj.weight", &[64, 8])]);
        fixture.add_all(&prefix, &[("down_proj.weight", &[8, 64])]);
    }
    fixture
}

/// Exponents in bytes, one for each 32 numbers of a row.
#[test]
fn mxfp8_weights_are_multiplied_by_powers_of_two() {
    let mut fixture = of_compressed_tensors("mxfp8-quantized");
    let down = "model.layers.0.mlp.down_proj.weight";
    let codes: Vec<f32> = (0..8 * 64).map(|at| (at % 15) as f32 / 2.0 - 3.5).collect();
    let scales: Vec<f32> = (0..8 * 2).map(|at| (120 + at % 9) as f32).collect();
    fixture.tensors.insert(down.into(), Made { dtype: Dtype::F8_E4M3, shape: vec![8, 64], numbers: codes.clone() });
    let made = Made { dtype: Dtype::U8, shape: vec![8, 2], numbers: scales.clone() };
    fixture.tensors.insert(format!("{down}_scale"), made);
    for (at, found) in numbers(&fixture.f32(), "blk.0.ffn_down.weight").iter().enumerate() {
        assert_eq!(*found, codes[at] * 2f32.powi(scales[at / 32] as i32 - 127), "{at}");
    }
}

/// Rows of 32 numbers: one block each.
#[test]
fn mxfp4_blocks_are_unpacked() {
    let mut fixture = qwen3next();
    let name = "model.layers.0.mlp.experts.";
    fixture.config["moe_intermediate_size"] = json!(32);
    fixture.tensors.retain(|name, _| !name.contains(".experts."));
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.experts.");
        fixture.add(&format!("{prefix}gate_up_proj"), &[EXPERTS, 64, 8]);
        fixture.add(&format!("{prefix}down_proj"), &[EXPERTS, 8, 32]);
    }
    fixture.tensors.remove(&format!("{name}down_proj"));
    let bytes = |count: usize, of: fn(usize) -> usize| (0..count).map(|at| of(at) as f32).collect::<Vec<f32>>();
    let blocks = bytes(EXPERTS * 8 * 16, |at| at * 7 % 256);
    let scales = bytes(EXPERTS * 8, |at| 120 + at % 9);
    for (ending, shape, numbers) in
        [("_blocks", vec![EXPERTS, 8, 1, 16], &blocks), ("_scales", vec![EXPERTS, 8, 1], &scales)]
    {
        let made = Made { dtype: Dtype::U8, shape, numbers: numbers.clone() };
        fixture.tensors.insert(format!("{name}down_proj{ending}"), made);
    }
    let found = numbers(&fixture.f32(), "blk.0.ffn_down_exps.weight");
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    for (at, found) in found.iter().enumerate() {
        let byte = blocks[at / 2] as usize;
        let code = if at % 2 == 0 { byte % 16 } else { byte / 16 };
        assert_eq!(*found, sizes[code] * 2f32.powi(scales[at / 32] as i32 - 127), "{at}");
    }
    let sources = plan(fixture.folder.path(), &of(Quant::F32)).unwrap();
    assert!(sources.ignored.is_empty());
}

/// As compressed-tensors writes them: the blocks of a row one after the other.
#[test]
fn packed_mxfp4_is_unpacked() {
    let mut fixture = of_compressed_tensors("mxfp4-pack-quantized");
    let down = "model.layers.0.mlp.down_proj.weight";
    fixture.tensors.remove(down);
    let codes: Vec<f32> = (0..8 * 32).map(|at| (at * 7 % 256) as f32).collect();
    let scales: Vec<f32> = (0..8 * 2).map(|at| (120 + at % 9) as f32).collect();
    for (ending, shape, numbers) in [("_packed", [8, 32], &codes), ("_scale", [8, 2], &scales)] {
        let made = Made { dtype: Dtype::U8, shape: shape.to_vec(), numbers: numbers.clone() };
        fixture.tensors.insert(format!("{down}{ending}"), made);
    }
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    for (at, found) in numbers(&fixture.f32(), "blk.0.ffn_down.weight").iter().enumerate() {
        let code = codes[at / 2] as usize >> (at % 2 * 4) & 15;
        assert_eq!(*found, sizes[code] * 2f32.powi(scales[at / 32] as i32 - 127), "{at}");
    }
}

/// Eight integers of four bits, or four of eight, are one of 32: the first in its lowest bits, the middle of the range is 0.
#[test]
fn integers_are_multiplied_by_their_scales() {
    let mut fixture = llama();
    fixture.config["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": "pack-quantized"});
    let numbers_of =
        |bits: u32| -> Vec<i32> { (0..48).map(|at| (at * 37 + 5) % (1 << bits) - (1 << (bits - 1))).collect() };
    let scale = |at: usize| 0.25 + at as f32 / 8.0;
    // Over 6 x 8: a scale for each row, for each 4 of a row, and integers that are not packed.
    for (bits, groups, packed) in [(4, 1, true), (4, 2, true), (8, 2, true), (8, 1, true), (8, 1, false)] {
        let wanted = numbers_of(bits);
        let mut put = |ending: &str, dtype, shape: &[usize], numbers| {
            fixture.tensors.insert(format!("{UP}{ending}"), Made { dtype, shape: shape.to_vec(), numbers });
        };
        if packed {
            let words = wanted.chunks(32 / bits as usize).map(|numbers| {
                let shifted = |(at, number): (usize, &i32)| ((number + (1 << (bits - 1))) as u32) << (at as u32 * bits);
                f32::from_bits(numbers.iter().enumerate().map(shifted).sum())
            });
            put("_packed", Dtype::I32, &[6, bits as usize / 4], words.collect());
            put("_shape", Dtype::I64, &[2], vec![6.0, 8.0]);
        } else {
            put("", Dtype::I8, &[6, 8], wanted.iter().map(|number| *number as f32).collect());
        }
        put("_scale", Dtype::BF16, &[6, groups], (0..6 * groups).map(scale).collect());
        let name = |ending: &str| format!("{UP}{ending}");
        let gone = if packed { vec![name("")] } else { vec![name("_packed"), name("_shape")] };
        gone.iter().for_each(|name| drop(fixture.tensors.remove(name)));
        let found = numbers(&fixture.f32(), "blk.0.ffn_up.weight");
        for (at, (found, number)) in found.iter().zip(&wanted).enumerate() {
            let expected = *number as f32 * scale(at / 8 * groups + at % 8 * groups / 8);
            assert_eq!(*found, expected, "{bits} bits, {groups}, {packed}: {at}");
        }
        assert!(plan(fixture.folder.path(), &of(Quant::F32)).unwrap().ignored.is_empty());
        if packed {
            fixture.tensors.get_mut(&name("_shape")).unwrap().numbers = vec![6.0, 9.0];
            let error = fixture.error(&of(Quant::F32));
            assert!(error.ends_with("expected 6 rows of 9 numbers in 4 or 8 bits"), "{error}");
        }
    }
    // Integers around another number than 0 are not read.
    let zero = Made { dtype: Dtype::I8, shape: vec![6, 1], numbers: vec![1.0; 6] };
    fixture.tensors.insert(format!("{UP}_zero_point"), zero);
    assert_eq!(fixture.error(&of(Quant::F32)), format!("tensor {UP}_zero_point has no place in a llama file"));
}

#[test]
fn weights_stored_in_other_ways_are_refused_by_the_name_of_the_way() {
    let cases = [
        (json!({"quant_method": "hqq", "bits": 4}), "quant_method = \"hqq\", expected \"fp8\" or"),
        (
            json!({"quant_method": "gptq", "checkpoint_format": "marlin"}),
            "checkpoint_format = \"marlin\", expected \"gptq\" or \"gptq_v2\"",
        ),
        (json!({"quant_method": "awq", "version": "gemv"}), "version = \"gemv\", expected \"gemm\""),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}),
            "quant_algo = \"W4A16_AWQ\", expected \"FP8\" or",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24"}),
            "format = \"marlin-24\", expected \"float-quantized\" or",
        ),
    ];
    for (config, expected) in cases {
        let mut fixture = llama();
        fixture.config["quantization_config"] = config;
        let error = fixture.error(&of(Quant::F32));
        assert!(error.starts_with("config.json: quantization_config.") && error.contains(expected), "{error}");
    }
    let fixture = llama();
    for (algorithm, is_read) in [(json!("W4A16_AWQ"), false), (json!("FP8"), true), (Json::Null, true)] {
        fixture.write("hf_quant_config.json", &json!({"quantization": {"quant_algo": algorithm}}).to_string());
        if is_read {
            fixture.f32();
            continue;
        }
        assert_eq!(
            fixture.error(&of(Quant::F32)).split(", expected").next(),
            Some("hf_quant_config.json: quantization.quant_algo = \"W4A16_AWQ\"")
        );
    }
}
