//! Checkpoints with weights in NVFP4, as ModelOpt and compressed-tensors write them.

use super::*;

/// Turns every matrix of layers whose rows are whole groups into NVFP4. Returns the names.
pub(super) fn with_nvfp4(fixture: &mut Fixture, packed: bool) -> Vec<String> {
    let is_linear = |name: &str, made: &Made| {
        let is_kept = ["norm", "conv1d", "mlp.gate.", "shared_expert_gate", "embed_tokens", "lm_head"];
        made.shape.len() == 2 && made.shape[1].is_multiple_of(16) && !is_kept.iter().any(|part| name.contains(part))
    };
    let chosen: Vec<(String, Vec<usize>)> = fixture
        .tensors
        .iter()
        .filter(|(name, made)| is_linear(name, made))
        .map(|(name, made)| (name.clone(), made.shape.clone()))
        .collect();
    for (at, (name, shape)) in chosen.iter().enumerate() {
        fixture.tensors.remove(name);
        let [rows, columns] = shape[..] else { panic!("a matrix") };
        let codes = (0..rows * columns / 2).map(|at| (at * 37 + 11) as f32 % 256.0).collect();
        // From 1 / 16 to 7.5.
        let scale = |at: usize| (1.0 + (at % 8) as f32 / 8.0) * 2f32.powi(at as i32 / 8 % 7 - 4);
        let scales = (0..rows * columns / 16).map(scale).collect();
        let factor = 0.01 + at as f32 / 100.0;
        let mut put = |ending: &str, dtype, shape: &[usize], numbers| {
            fixture.tensors.insert(format!("{name}{ending}"), Made { dtype, shape: shape.to_vec(), numbers });
        };
        put(if packed { "_packed" } else { "" }, Dtype::U8, &[rows, columns / 2], codes);
        put("_scale", Dtype::F8_E4M3, &[rows, columns / 16], scales);
        if packed {
            put("_global_scale", Dtype::F32, &[1], vec![1.0 / factor]);
        } else {
            put("_scale_2", Dtype::F32, &[], vec![factor]);
        }
        let stem = name.strip_suffix("weight").unwrap();
        fixture.add(&format!("{stem}{}", if packed { "input_global_scale" } else { "input_scale" }), &[1]);
    }
    chosen.into_iter().map(|(name, _)| name).collect()
}

/// Codes and scales are those of the checkpoint in the order of the file. The bytes were computed apart from this program.
#[test]
fn a_row_is_brought_into_the_order_of_the_file() {
    let mut fixture = llama();
    fixture.config["intermediate_size"] = json!(64);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.");
        fixture.add_all(&prefix, &[("gate_proj.weight", &[64, 8]), ("up_proj.weight", &[64, 8])]);
        fixture.add_all(&prefix, &[("down_proj.weight", &[8, 64])]);
    }
    let names = with_nvfp4(&mut fixture, false);
    assert_eq!(names.len(), 2, "{names:?}");
    let scales: Vec<f32> = (0..8).flat_map(|_| [0.5, 1.0, 2.25, 0.015625]).collect();
    fixture.tensors.get_mut("model.layers.0.mlp.down_proj.weight_scale").unwrap().numbers = scales;
    let file = fixture.convert(&of(Quant::Nvfp4)).unwrap();
    let info = file.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((info.quant, uint(&file, "general.file_type")), (Quant::Nvfp4, 39));
    #[rustfmt::skip]
    let expected: [u8; 36] = [
        48, 56, 65, 8, 251, 144, 64, 195, 149, 229, 234, 7, 115, 195, 200, 229, 29, 23, 98, 58, 251, 229, 64, 24, 149, 58, 234, 92, 115, 24, 200, 58, 29, 108, 98, 143,
    ];
    assert_eq!(file.data(info)[..36], expected);
    assert_eq!((shape(&file, "blk.0.ffn_down.scale"), numbers(&file, "blk.0.ffn_down.scale")), (vec![1], vec![0.01]));
    assert_eq!(file.tensor("blk.0.ffn_up.weight").unwrap().quant, Quant::Bf16);
}

/// Rows and columns that change places, and experts that are stacked, keep their numbers.
#[test]
fn weights_that_stay_have_the_numbers_of_the_checkpoint() {
    for (name, least) in
        [("llama", 12), ("qwen3next", 20), ("qwen35", 12), ("granitehybrid-moe", 4), ("kimi-linear", 8)]
    {
        for packed in [false, true] {
            let mut fixture = Fixture::golden(name);
            let (chosen, method) =
                (with_nvfp4(&mut fixture, packed), if packed { "compressed-tensors" } else { "modelopt" });
            let (key, value) = if packed { ("format", "nvfp4-pack-quantized") } else { ("quant_algo", "NVFP4") };
            fixture.config["quantization_config"] = json!({"quant_method": method, key: value});
            let plain = fixture.f32();
            let plain: BTreeMap<String, Vec<f32>> =
                plain.tensors().iter().map(|info| (info.name.clone(), numbers(&plain, &info.name))).collect();
            let kept = fixture.convert(&of(Quant::Nvfp4)).unwrap();
            let mut count = 0;
            for info in kept.tensors().iter().filter(|info| info.quant == Quant::Nvfp4) {
                let factors = kept.factors(info).unwrap();
                let found = numbers(&kept, &info.name);
                let each = found.len() / factors.len();
                let found = found.chunks(each).zip(&factors).flat_map(|(found, by)| found.iter().map(move |x| x * by));
                assert!(found.eq(plain[&info.name].iter().copied()), "{name}: {}", info.name);
                assert!(plain[&info.name].iter().any(|x| *x != 0.0));
                count += factors.len();
            }
            assert!(count >= least, "{name}: {count} of {}", chosen.len());
            // Those that cannot stay are known to be in another type than they should.
            let planned = plan(fixture.folder.path(), &of(Quant::Nvfp4)).unwrap().tensors;
            let told = planned.iter().filter(|tensor| tensor.quant == Quant::Nvfp4 || !tensor.fits);
            let mut told: Vec<&str> = told.flat_map(|tensor| &tensor.sources).map(String::as_str).collect();
            told.sort_unstable();
            told.dedup();
            assert_eq!(told, chosen, "{name}");
            let beside = |info: &&kvas_gguf::TensorInfo| kept.weight_of_factor(&info.name).is_some();
            let others = kept.tensors().iter().filter(|info| !beside(info)).count();
            assert_eq!(others, plain.len(), "{name}");
        }
    }
}

#[test]
fn nvfp4_that_is_not_there_or_not_whole_is_named() {
    let error = llama().error(&of(Quant::Nvfp4));
    assert_eq!(error, "type NVFP4: no weight of the checkpoint is in NVFP4, expected another type");
    let mut odd = llama();
    odd.config["intermediate_size"] = json!(48);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.");
        odd.add_all(&prefix, &[("gate_proj.weight", &[48, 8]), ("up_proj.weight", &[48, 8])]);
        odd.add_all(&prefix, &[("down_proj.weight", &[8, 48])]);
    }
    assert_eq!(with_nvfp4(&mut odd, false).len(), 2);
    let error = odd.error(&of(Quant::Nvfp4));
    assert!(error.starts_with("type NVFP4: 2 weights of the checkpoint are in NVFP4, all with rows"), "{error}");
    let mut fixture = Fixture::golden("llama");
    let name = with_nvfp4(&mut fixture, false).remove(0);
    let mut of_factor = |shape: Vec<usize>, numbers: Vec<f32>| {
        fixture.tensors.insert(format!("{name}_scale_2"), Made { dtype: Dtype::F32, shape, numbers });
        fixture.error(&of(Quant::Nvfp4))
    };
    let error = of_factor(vec![2], vec![1.0, 2.0]);
    assert_eq!(error, format!("tensor {name}_scale_2 has the shape [2], expected one number"));
    let error = of_factor(vec![], vec![f32::INFINITY]);
    assert_eq!(error, format!("tensor {name}_scale_2 is inf, expected a finite number other than 0"));
    fixture.tensors.remove(&format!("{name}_scale_2"));
    assert!(fixture.error(&of(Quant::Nvfp4)).starts_with(&format!("tensor {name} has the shape")), "{name}");
}
