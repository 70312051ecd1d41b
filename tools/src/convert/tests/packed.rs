//! Checkpoints with weights as GPTQ, AWQ and compressed-tensors pack them: integers around zeros.

use super::*;

/// A matrix of integers.
pub(super) struct Integers {
    bits: u32,
    rows: usize,
    columns: usize,
    groups: usize,
    codes: Vec<u32>,
    /// By row and group.
    zeros: Vec<u32>,
    scales: Vec<f32>,
    group_of: Vec<usize>,
}

impl Integers {
    /// Integers of which every one is another, and groups in an order of their own if they are `shuffled`.
    pub(super) fn new([rows, columns]: [usize; 2], bits: u32, groups: usize, shuffled: bool) -> Integers {
        let range = 1u32 << bits;
        let mut group_of: Vec<usize> = (0..columns).map(|column| column * groups / columns).collect();
        if shuffled {
            group_of = (0..columns).map(|column| group_of[column * 5 % columns]).collect();
        }
        Integers {
            bits,
            rows,
            columns,
            groups,
            codes: (0..(rows * columns) as u32).map(|at| (at * 37 + at / 7 + 5) % range).collect(),
            zeros: (0..(rows * groups) as u32).map(|at| (at * 11 + 3) % range).collect(),
            scales: (0..rows * groups).map(|at| 0.25 + at as f32 / 16.0).collect(),
            group_of,
        }
    }

    pub(super) fn weights(&self) -> Vec<f32> {
        let number = |at: usize| {
            let group = at / self.columns * self.groups + self.group_of[at % self.columns];
            (self.codes[at] as f32 - self.zeros[group] as f32) * self.scales[group]
        };
        (0..self.rows * self.columns).map(number).collect()
    }

    /// Integers of a matrix in words of 32 bits, `order` says which of the neighbours along a row comes where.
    fn along_rows(&self, numbers: &[u32], columns: usize, order: &[usize]) -> Vec<f32> {
        let per_word = 32 / self.bits as usize;
        // Three bits are in two words at places: 32 of them take three.
        let together = if self.bits == 3 { 32 } else { per_word };
        let pack = |part: &[u32]| {
            let all = (0..together).map(|at| u128::from(part[order[at]]) << (at as u32 * self.bits)).sum::<u128>();
            (0..together * self.bits as usize / 32).map(move |word| f32::from_bits((all >> (32 * word)) as u32))
        };
        let words = numbers.chunks(columns).flat_map(|row| row.chunks(together)).flat_map(pack);
        words.collect()
    }
}

/// A matrix with its rows as columns.
fn turned<T: Copy>(numbers: &[T], rows: usize) -> Vec<T> {
    let columns = numbers.len() / rows;
    (0..numbers.len()).map(|at| numbers[at % rows * columns + at / rows]).collect()
}

/// In which way a matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    Gptq,
    GptqV2,
    Awq,
    AutoRound,
    AutoRoundGptq,
    AutoRoundAwq,
    Compressed,
}

impl Way {
    pub(super) fn config(self) -> Json {
        match self {
            Way::Gptq => json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq", "dynamic": {}}),
            Way::GptqV2 => json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
            Way::Awq => json!({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": true}),
            Way::AutoRound => json!({"quant_method": "auto-round", "packing_format": "auto_round", "group_size": -1}),
            Way::AutoRoundGptq => json!({"quant_method": "intel/auto-round", "backend": "auto_round:auto_gptq"}),
            Way::AutoRoundAwq => json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}),
            Way::Compressed => json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
        }
    }

    fn is_awq(self) -> bool {
        matches!(self, Way::Awq | Way::AutoRoundAwq)
    }
}

/// Puts the matrix in the place of a weight.
pub(super) fn put(fixture: &mut Fixture, weight: &str, integers: &Integers, way: Way) {
    let Integers { bits, rows, columns, groups, .. } = *integers;
    let per_word = 32 / bits as usize;
    let stem = weight.strip_suffix("weight").unwrap();
    fixture.tensors.remove(weight).unwrap();
    let mut put = |ending: &str, dtype, shape: &[usize], numbers| {
        fixture.tensors.insert(format!("{stem}{ending}"), Made { dtype, shape: shape.to_vec(), numbers });
    };
    let plain: Vec<usize> = (0..if bits == 3 { 32 } else { per_word }).collect();
    let order = if way.is_awq() { vec![0, 2, 4, 6, 1, 3, 5, 7] } else { plain.clone() };
    let mut by_group = turned(&integers.zeros, rows);
    if way == Way::Gptq && bits == 3 {
        by_group.iter_mut().for_each(|zero| *zero -= 1);
    }
    let mut zeros = integers.along_rows(&by_group, rows, &order);
    if matches!(way, Way::Gptq | Way::AutoRoundGptq) && bits != 3 {
        let ones = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
        zeros.iter_mut().for_each(|word| *word = f32::from_bits(word.to_bits().wrapping_sub(ones)));
    }
    if way == Way::Compressed {
        let codes = integers.along_rows(&integers.codes, columns, &plain);
        put("weight_packed", Dtype::I32, &[rows, columns / per_word], codes);
        put("weight_zero_point", Dtype::I32, &[rows / per_word, groups], turned(&zeros, groups));
        put("weight_scale", Dtype::F16, &[rows, groups], integers.scales.clone());
        put("weight_shape", Dtype::I64, &[2], vec![rows as f32, columns as f32]);
    } else {
        let codes = match way {
            Way::Awq | Way::AutoRoundAwq => integers.along_rows(&turned(&integers.codes, rows), rows, &order),
            Way::Gptq | Way::GptqV2 | Way::AutoRound | Way::AutoRoundGptq | Way::Compressed => {
                turned(&integers.along_rows(&integers.codes, columns, &plain), rows)
            }
        };
        let words = |numbers: usize| numbers * bits as usize / 32;
        let shape = if way.is_awq() { [columns, words(rows)] } else { [words(columns), rows] };
        put("qweight", Dtype::I32, &shape, codes);
        put("qzeros", Dtype::I32, &[groups, words(rows)], zeros);
        put("scales", Dtype::F16, &[groups, rows], turned(&integers.scales, rows));
    }
    if !way.is_awq() && way != Way::AutoRound {
        let numbers = integers.group_of.iter().map(|group| f32::from_bits(*group as u32)).collect();
        put(if way == Way::Compressed { "weight_g_idx" } else { "g_idx" }, Dtype::I32, &[columns], numbers);
    }
}

/// The matrices of a layer of [`llama`] whose sizes are multiples of eight, with their shapes.
const MATRICES: [(&str, [usize; 2]); 4] = [
    ("self_attn.q_proj.weight", [8, 8]),
    ("mlp.gate_proj.weight", [16, 8]),
    ("mlp.up_proj.weight", [16, 8]),
    ("mlp.down_proj.weight", [8, 16]),
];

pub(super) fn wide() -> Fixture {
    let mut fixture = llama();
    fixture.config["intermediate_size"] = json!(16);
    for layer in 0..2 {
        for (name, shape) in &MATRICES[1..] {
            fixture.add(&format!("model.layers.{layer}.{name}"), shape);
        }
    }
    fixture
}

/// Rows that change places among them; what is not packed stays as it is.
#[test]
fn packed_integers_become_the_numbers_they_stand_for() {
    let ways =
        [Way::Gptq, Way::GptqV2, Way::Awq, Way::AutoRound, Way::AutoRoundGptq, Way::AutoRoundAwq, Way::Compressed];
    for way in ways {
        for (bits, groups, shuffled) in [(4, 1, false), (4, 4, false), (4, 4, true), (8, 2, true)] {
            if way.is_awq() && (bits == 8 || shuffled) || way == Way::AutoRound && shuffled {
                continue;
            }
            let (mut packed, mut plain) = (wide(), wide());
            packed.config["quantization_config"] = way.config();
            for (name, shape) in MATRICES {
                let name = format!("model.layers.1.{name}");
                let integers = Integers::new(shape, bits, groups, shuffled);
                plain.tensors.get_mut(&name).unwrap().numbers = integers.weights();
                put(&mut packed, &name, &integers, way);
            }
            let (packed_file, plain_file) = (packed.f32(), plain.f32());
            assert_eq!(packed_file.tensors().len(), plain_file.tensors().len());
            for info in plain_file.tensors() {
                let [found, expected] = [&packed_file, &plain_file].map(|file| numbers(file, &info.name));
                assert_eq!(found, expected, "{way:?} {bits} {groups} {shuffled}: {}", info.name);
            }
            assert!(plan(packed.folder.path(), &of(Quant::F32)).unwrap().ignored.is_empty());
        }
    }
}

/// A model with a matrix of 96 columns, its name and shape.
fn large() -> (Fixture, String, [usize; 2]) {
    let mut fixture = wide();
    fixture.config["intermediate_size"] = json!(96);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.");
        fixture.add_all(&prefix, &[("gate_proj.weight", &[96, 8]), ("up_proj.weight", &[96, 8])]);
        fixture.add_all(&prefix, &[("down_proj.weight", &[8, 96])]);
    }
    (fixture, "model.layers.1.mlp.down_proj.weight".into(), [8, 96])
}

/// 32 of them take three words, as columns and as rows.
#[test]
fn integers_of_three_bits_become_the_numbers_they_stand_for() {
    const WIDTH: usize = 32;
    let made = || {
        let mut fixture = llama();
        fixture.config["hidden_size"] = json!(WIDTH);
        fixture.config["head_dim"] = json!(4);
        fixture.config["intermediate_size"] = json!(3 * WIDTH);
        fixture.add_all("model.", &[("embed_tokens.weight", &[12, WIDTH]), ("norm.weight", &[WIDTH])]);
        for layer in 0..2 {
            let prefix = format!("model.layers.{layer}.");
            let norms = ["input_layernorm.weight", "post_attention_layernorm.weight"];
            norms.iter().for_each(|name| fixture.add(&format!("{prefix}{name}"), &[WIDTH]));
            for (name, shape) in [
                ("self_attn.q_proj", [8, WIDTH]),
                ("self_attn.k_proj", [4, WIDTH]),
                ("self_attn.v_proj", [4, WIDTH]),
                ("self_attn.o_proj", [WIDTH, 8]),
                ("mlp.gate_proj", [3 * WIDTH, WIDTH]),
                ("mlp.up_proj", [3 * WIDTH, WIDTH]),
                ("mlp.down_proj", [WIDTH, 3 * WIDTH]),
            ] {
                fixture.add(&format!("{prefix}{name}.weight"), &shape);
            }
        }
        fixture
    };
    let (name, shape) = ("model.layers.1.mlp.down_proj.weight", [WIDTH, 3 * WIDTH]);
    for (way, shuffled) in [(Way::Gptq, true), (Way::GptqV2, false), (Way::AutoRound, false)] {
        let (mut packed, mut plain) = (made(), made());
        let mut integers = Integers::new(shape, 3, 3, shuffled);
        // Too small by one, a zero of 0 cannot be written.
        integers.zeros.iter_mut().for_each(|zero| *zero = (*zero).max(1));
        plain.tensors.get_mut(name).unwrap().numbers = integers.weights();
        packed.config["quantization_config"] = way.config();
        put(&mut packed, name, &integers, way);
        let of_both = [&packed, &plain].map(|fixture| numbers(&fixture.f32(), "blk.1.ffn_down.weight"));
        assert_eq!(of_both[0], of_both[1], "{way:?}");
    }
}

/// Groups are as long as the settings say, and what is left makes a shorter one.
#[test]
fn the_last_group_may_be_shorter() {
    let ((mut packed, name, [rows, columns]), (mut plain, ..)) = (large(), large());
    packed.config["quantization_config"] = json!({"quant_method": "auto-round", "group_size": 64});
    let mut integers = Integers::new([rows, columns], 4, 2, false);
    integers.group_of = (0..columns).map(|column| column / 64).collect();
    plain.tensors.get_mut(&name).unwrap().numbers = integers.weights();
    put(&mut packed, &name, &integers, Way::AutoRoundGptq);
    packed.tensors.remove(&name.replace("weight", "g_idx")).unwrap();
    let of_both = [&packed, &plain].map(|fixture| numbers(&fixture.f32(), "blk.1.ffn_down.weight"));
    assert_eq!(of_both[0], of_both[1]);
    packed.config["quantization_config"]["packing_format"] = json!("auto_round:new");
    let error = packed.error(&of(Quant::F32));
    assert!(error.contains("packing_format = \"auto_round:new\", expected"), "{error}");
}

#[test]
fn packed_integers_that_are_not_whole_are_named() {
    let (name, shape) = MATRICES[3];
    let name = format!("model.layers.1.{name}");
    let stem = name.strip_suffix("weight").unwrap();
    type Change = fn(&mut BTreeMap<String, Made>, &str);
    let cases: [(Change, &str); 6] = [
        (|tensors, stem| drop(tensors.remove(&format!("{stem}qzeros"))), "qzeros is missing from the checkpoint"),
        (|tensors, stem| drop(tensors.remove(&format!("{stem}scales"))), "scales is missing from the checkpoint"),
        (
            |tensors, stem| tensors.get_mut(&format!("{stem}qzeros")).unwrap().dtype = Dtype::F32,
            "qzeros is F32, expected I32",
        ),
        (
            |tensors, stem| {
                let zeros = tensors.get_mut(&format!("{stem}qzeros")).unwrap();
                zeros.shape = vec![1, 4];
            },
            "qweight has the shape [2, 8] beside zeros of [1, 4] and scales of [4, 8], expected integers of 2, 3, 4 or 8 bits",
        ),
        (
            |tensors, stem| {
                let groups = tensors.get_mut(&format!("{stem}g_idx")).unwrap();
                groups.shape = vec![4, 4];
            },
            "g_idx has the shape [4, 4], expected [16]",
        ),
        (
            |tensors, stem| tensors.get_mut(&format!("{stem}g_idx")).unwrap().numbers[3] = f32::from_bits(4),
            "g_idx has 4 in it, expected 0 to 3",
        ),
    ];
    for (change, expected) in cases {
        let mut fixture = wide();
        fixture.config["quantization_config"] = Way::Gptq.config();
        put(&mut fixture, &name, &Integers::new(shape, 4, 4, false), Way::Gptq);
        change(&mut fixture.tensors, stem);
        assert_eq!(fixture.error(&of(Quant::F32)), format!("tensor {stem}{expected}"));
    }
}

/// A zero of 0 borrows from its neighbour where zeros are stored too small by one.
#[test]
fn zeros_of_gptq_that_borrowed_come_back() {
    let (name, shape) = MATRICES[2];
    let name = format!("model.layers.0.{name}");
    let (mut packed, mut plain) = (wide(), wide());
    let mut integers = Integers::new(shape, 4, 2, false);
    integers.zeros = (0..32).map(|at| [0, 15, 8, 0, 0, 1][at % 6]).collect();
    plain.tensors.get_mut(&name).unwrap().numbers = integers.weights();
    packed.config["quantization_config"] = Way::Gptq.config();
    put(&mut packed, &name, &integers, Way::Gptq);
    assert_eq!(numbers(&packed.f32(), "blk.0.ffn_up.weight"), numbers(&plain.f32(), "blk.0.ffn_up.weight"));
}

/// GPTQ writes biases for matrices that have none; any other number than 0 would be lost.
#[test]
fn biases_of_zeros_are_left_out() {
    let mut fixture = wide();
    let bias = "model.layers.0.self_attn.o_proj.bias";
    let mut with = |number: f32| {
        let numbers = vec![0.0, 0.0, 0.0, number, 0.0, 0.0, 0.0, 0.0];
        fixture.tensors.insert(bias.into(), Made { dtype: Dtype::F16, shape: vec![8], numbers });
        fixture.convert(&of(Quant::F32)).map(|_| plan(fixture.folder.path(), &of(Quant::F32)).unwrap().ignored)
    };
    assert_eq!(with(0.0).unwrap(), [bias]);
    assert_eq!(with(0.5).unwrap_err().to_string(), format!("tensor {bias} has no place in a llama file"));
}

/// Puts 4-bit codes of bitsandbytes in the place of a weight. Returns what they stand for.
fn put_blocks(fixture: &mut Fixture, weight: &str, [rows, columns]: [usize; 2], nested: bool) -> Vec<f32> {
    const BLOCK: usize = 12;
    let (count, blocks) = (rows * columns, (rows * columns).div_ceil(BLOCK));
    let table: Vec<f32> = (0..16).map(|at| (at as f32 - 7.0) / 8.0).collect();
    let code = |at: usize| (at * 7 + 3) % 16;
    let mut state = json!({"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [rows, columns]});
    let mut put = |ending: &str, dtype, shape: &[usize], numbers| {
        fixture.tensors.insert(format!("{weight}{ending}"), Made { dtype, shape: shape.to_vec(), numbers });
    };
    let bytes = (0..count / 2).map(|at| (code(2 * at) * 16 + code(2 * at + 1)) as f32).collect();
    put("", Dtype::U8, &[count / 2, 1], bytes);
    put(".quant_map", Dtype::F32, &[16], table.clone());
    let scales: Vec<f32> = if nested {
        let codes: Vec<usize> = (0..blocks).map(|at| at * 19 % 256).collect();
        let (numbers, factors) = (|code: usize| code as f32 / 64.0 - 2.0, |at: usize| 0.5 + at as f32);
        put(".absmax", Dtype::U8, &[blocks], codes.iter().map(|code| *code as f32).collect());
        put(".nested_quant_map", Dtype::F32, &[256], (0..256).map(numbers).collect());
        put(".nested_absmax", Dtype::F32, &[blocks.div_ceil(4)], (0..blocks.div_ceil(4)).map(factors).collect());
        state["nested_blocksize"] = json!(4);
        state["nested_offset"] = json!(0.25);
        codes.iter().enumerate().map(|(at, code)| numbers(*code) * factors(at / 4) + 0.25).collect()
    } else {
        let scales: Vec<f32> = (0..blocks).map(|at| 0.125 + at as f32 / 32.0).collect();
        put(".absmax", Dtype::F32, &[blocks], scales.clone());
        scales
    };
    let text = state.to_string();
    let numbers = text.bytes().map(f32::from).collect();
    put(".quant_state.bitsandbytes__nf4", Dtype::U8, &[text.len()], numbers);
    (0..count).map(|at| table[code(at)] * scales[at / BLOCK]).collect()
}

/// Blocks go on from one row to the next.
#[test]
fn codes_of_bitsandbytes_become_the_numbers_they_stand_for() {
    for nested in [false, true] {
        let (mut packed, mut plain) = (wide(), wide());
        packed.config["quantization_config"] =
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false});
        for (name, shape) in MATRICES {
            let name = format!("model.layers.0.{name}");
            plain.tensors.get_mut(&name).unwrap().numbers = put_blocks(&mut packed, &name, shape, nested);
        }
        let (packed_file, plain_file) = (packed.f32(), plain.f32());
        for info in plain_file.tensors() {
            let [found, expected] = [&packed_file, &plain_file].map(|file| numbers(file, &info.name));
            assert_eq!(found, expected, "{nested}: {}", info.name);
        }
        assert!(plan(packed.folder.path(), &of(Quant::F32)).unwrap().ignored.is_empty());
    }
    let mut fixture = wide();
    let name = format!("model.layers.0.{}", MATRICES[0].0);
    put_blocks(&mut fixture, &name, MATRICES[0].1, false);
    fixture.tensors.remove(&format!("{name}.quant_map"));
    assert_eq!(fixture.error(&of(Quant::F32)), format!("tensor {name}.quant_map is missing from the checkpoint"));
    put_blocks(&mut fixture, &name, MATRICES[0].1, false);
    fixture.tensors.get_mut(&format!("{name}.absmax")).unwrap().numbers.pop();
    fixture.tensors.get_mut(&format!("{name}.absmax")).unwrap().shape = vec![5];
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, format!("tensor {name}.absmax is F32 of the shape [5], expected 6 of F32"));
}

/// The largest integer of a row stands for its scale.
#[test]
fn int8_of_bitsandbytes_becomes_the_numbers_it_stands_for() {
    let (name, [rows, columns]) = (format!("model.layers.0.{}", MATRICES[3].0), MATRICES[3].1);
    let stem = name.strip_suffix("weight").unwrap();
    let mut fixture = wide();
    fixture.config["quantization_config"] =
        json!({"quant_method": "bitsandbytes", "load_in_4bit": false, "load_in_8bit": true});
    let codes: Vec<f32> = (0..rows * columns).map(|at| (at * 37 % 255) as f32 - 127.0).collect();
    let scales: Vec<f32> = (0..rows).map(|at| 0.5 + at as f32 / 4.0).collect();
    let mut put = |name: String, dtype, shape: &[usize], numbers: &[f32]| {
        fixture.tensors.insert(name, Made { dtype, shape: shape.to_vec(), numbers: numbers.to_vec() });
    };
    put(name.clone(), Dtype::I8, &[rows, columns], &codes);
    put(format!("{stem}SCB"), Dtype::F32, &[rows], &scales);
    put(format!("{stem}weight_format"), Dtype::U8, &[], &[0.0]);
    for (at, found) in numbers(&fixture.f32(), "blk.0.ffn_down.weight").iter().enumerate() {
        assert_eq!(*found, codes[at] * scales[at / columns] * (1.0 / 127.0), "{at}");
    }
    assert!(fixture.error(&of(Quant::Nvfp4)).contains("no weight of the checkpoint is in NVFP4"));
    fixture.tensors.get_mut(&format!("{stem}weight_format")).unwrap().numbers = vec![2.0];
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, format!("tensor {stem}weight_format is 2, expected 0: rows one after the other"));
}
