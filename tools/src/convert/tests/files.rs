//! Types of numbers, shards, the progress of a conversion, and names.

use super::*;
use crate::quantize::{QuantizeOptions, quantize};

#[test]
fn every_source_type_is_read() {
    for dtype in [Dtype::BF16, Dtype::F16] {
        let mut fixture = llama();
        fixture.tensors.values_mut().for_each(|made| made.dtype = dtype);
        let file = fixture.f32();
        let narrow = |x: &f32| {
            if dtype == Dtype::BF16 { half::bf16::from_f32(*x).to_f32() } else { half::f16::from_f32(*x).to_f32() }
        };
        let expected: Vec<f32> = fixture.numbers("model.embed_tokens.weight").iter().map(narrow).collect();
        assert_eq!(numbers(&file, "token_embd.weight"), expected);
    }
}

#[test]
fn weights_have_the_type_asked_for_and_the_rest_stays_f32() {
    let fixture = qwen3next();
    for quant in [Quant::F16, Quant::Bf16] {
        let file = fixture.convert(&of(quant)).unwrap();
        for tensor in file.tensors() {
            let precise = tensor.shape.len() == 1
                || ["_norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"]
                    .iter()
                    .any(|ending| tensor.name.ends_with(ending));
            assert_eq!(tensor.quant, if precise { Quant::F32 } else { quant }, "{}", tensor.name);
        }
        let sources = fixture.numbers("model.layers.0.mlp.experts.2.down_proj.weight");
        let stored = &numbers(&file, "blk.0.ffn_down_exps.weight")[2 * 40..];
        for (stored, source) in stored.iter().zip(sources) {
            assert!((stored - source).abs() <= source.abs() / 256.0);
        }
    }
}

/// Rows of 32 numbers are whole blocks of Q8_0; rows of 6 are not.
#[test]
fn rows_that_are_no_whole_blocks_fall_back() {
    let mut fixture = llama();
    fixture.config["hidden_size"] = json!(32);
    fixture.config["head_dim"] = json!(4);
    let names: Vec<(String, Vec<usize>)> =
        fixture.tensors.iter().map(|(name, made)| (name.clone(), made.shape.clone())).collect();
    for (name, mut shape) in names {
        let width = if name.contains("o_proj") || name.contains("down_proj") { 0 } else { shape.len() - 1 };
        shape[width] = 32;
        fixture.add(&name, &shape);
    }
    let file = fixture.convert(&of(Quant::Q8_0)).unwrap();
    let quant = |name: &str| file.tensor(name).unwrap().quant;
    assert_eq!(quant("token_embd.weight"), Quant::Q8_0);
    assert_eq!(quant("blk.0.attn_q.weight"), Quant::Q8_0);
    assert_eq!(quant("blk.0.ffn_down.weight"), Quant::F16);
    assert_eq!(quant("blk.0.attn_output.weight"), Quant::F16);
    assert_eq!(uint(&file, "general.file_type"), 7);
    let source = fixture.numbers("model.embed_tokens.weight");
    for (stored, source) in numbers(&file, "token_embd.weight").iter().zip(source) {
        // Half a step of 1/127 of the largest number in the block.
        assert!((stored - source).abs() <= 1.0 / 127.0 * 0.51);
    }
    let file = fixture.convert(&of(Quant::Q4K)).unwrap();
    assert_eq!(file.tensor("token_embd.weight").unwrap().quant, Quant::Q5_0);
}

/// Splits a checkpoint over two files and names them in an index.
fn shard(fixture: &Fixture) {
    fixture.save();
    std::fs::remove_file(fixture.path("model.safetensors")).unwrap();
    let second = |name: &str| name.contains("layers.1") || name.contains("norm");
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    fixture.write_tensors(files[0], |name| !second(name));
    fixture.write_tensors(files[1], second);
    let map: serde_json::Map<String, Json> =
        fixture.tensors.keys().map(|name| (name.clone(), json!(files[usize::from(second(name))]))).collect();
    fixture.write("model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}).to_string());
}

#[test]
fn shards_are_one_checkpoint() {
    let fixture = llama();
    let whole = fixture.f32();
    let expected: Vec<Vec<f32>> = whole.tensors().iter().map(|tensor| numbers(&whole, &tensor.name)).collect();
    let fixture = llama();
    shard(&fixture);
    convert(fixture.folder.path(), &fixture.out(), &of(Quant::F32)).unwrap();
    let file = GgufFile::open(&fixture.out()).unwrap();
    let found: Vec<Vec<f32>> = file.tensors().iter().map(|tensor| numbers(&file, &tensor.name)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_missing_or_lying_shard_is_named() {
    let fixture = llama();
    shard(&fixture);
    let message = || format!("{:#}", plan(fixture.folder.path(), &of(Quant::F32)).unwrap_err());
    let (file, index) = ("model-00002-of-00002.safetensors", "model.safetensors.index.json");
    let bytes = std::fs::read(fixture.path(file)).unwrap();
    std::fs::remove_file(fixture.path(file)).unwrap();
    assert!(message().starts_with(&format!("{file}: missing, {index} says")), "{}", message());
    std::fs::write(fixture.path(file), &bytes[..bytes.len() - 1]).unwrap();
    assert!(message().starts_with(file) && message().contains("bytes, expected"), "{}", message());
    std::fs::write(fixture.path(file), [&bytes[..], &[0]].concat()).unwrap();
    assert!(message().starts_with(file) && message().contains("bytes, expected"), "{}", message());
    std::fs::write(fixture.path(file), &bytes[..5]).unwrap();
    assert!(message().ends_with("5 bytes, expected a safetensors file, which has at least 8"), "{}", message());
    std::fs::write(fixture.path(file), &bytes).unwrap();
    let index_text = std::fs::read_to_string(fixture.path(index)).unwrap();
    fixture.write(index, &index_text.replace("model.norm.weight", "model.norm.nothing"));
    assert!(message().contains("tensor model.norm.nothing is missing"), "{}", message());
    // What the index leaves out is there all the same.
    let left_out = index_text.replace(&format!("\"model.layers.1.input_layernorm.weight\":\"{file}\","), "");
    assert_ne!(left_out, index_text);
    fixture.write(index, &left_out);
    plan(fixture.folder.path(), &of(Quant::F32)).unwrap();
    fixture.write(index, &index_text);
    let both = |name: &str| name.contains("layers.1") || name.contains("norm") || name.contains("embed");
    fixture.write_tensors(file, both);
    let first = "model-00001-of-00002.safetensors";
    let expected =
        format!("{file}: tensor model.embed_tokens.weight is in {first} as well, expected it in one of them");
    assert_eq!(message(), expected);
    std::fs::write(fixture.path(file), &bytes).unwrap();
    fixture.write(index, &index_text.replace(file, "../other.safetensors"));
    assert!(message().contains("expected the name of a file in the same folder"), "{}", message());
    fixture.write(index, "{}");
    assert!(message().contains("weight_map is missing"), "{}", message());
}

/// What the directory of a file says is compared with what types and shapes make.
#[test]
fn a_tensor_that_does_not_fit_its_place_is_named() {
    let fixture = llama();
    fixture.save();
    let (file, name) = ("model.safetensors", "model.layers.0.mlp.gate_proj.weight");
    let bytes = std::fs::read(fixture.path(file)).unwrap();
    let (size, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*size) as usize);
    let whole: Json = serde_json::from_slice(header).unwrap();
    let error = |change: &dyn Fn(&mut Json)| {
        let mut header = whole.clone();
        change(&mut header[name]);
        let text = header.to_string();
        let all = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat();
        std::fs::write(fixture.path(file), all).unwrap();
        format!("{:#}", plan(fixture.folder.path(), &of(Quant::F32)).unwrap_err())
    };
    let begin = whole[name]["data_offsets"][0].as_u64().unwrap();
    for (field, value, expected) in [
        ("dtype", json!("F64"), " of F64 in the shape ["),
        ("dtype", json!("X9"), ": dtype = \"X9\", expected a type of safetensors such as BF16"),
        ("shape", json!([2, 3]), " bytes, expected 24 of F32 in the shape [2, 3]"),
        ("shape", json!([u64::MAX, 3]), " bytes, expected fewer numbers of F32"),
        ("shape", json!("x"), ": shape = \"x\", expected a list of sizes"),
        ("data_offsets", json!([8, 4]), ": data_offsets = [8,4], expected where it begins and ends"),
        ("data_offsets", Json::Null, ": data_offsets = null, expected"),
    ] {
        let error = error(&|entry| entry[field] = value.clone());
        assert!(error.starts_with(&format!("{file}: tensor {name}")) && error.contains(expected), "{error}");
    }
    let moved = error(&|entry| {
        let end = entry["data_offsets"][1].as_u64().unwrap();
        entry["data_offsets"] = json!([begin + 4, end + 4]);
    });
    assert!(moved.contains(" of the data, expected ") && moved.contains("where the one before it ends"), "{moved}");
}

/// Maps keep the last one of a name, which may be another tensor than the one that was trained.
#[test]
fn two_tensors_of_one_name_are_refused() {
    let fixture = llama();
    fixture.save();
    let name = "model.norm.weight";
    let bytes = std::fs::read(fixture.path("model.safetensors")).unwrap();
    let (_, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let end = data.len();
    let entry = json!({"dtype": "F32", "shape": [8], "data_offsets": [end, end + 32]});
    let header = String::from_utf8(header.to_vec()).unwrap().replacen('{', &format!("{{\"{name}\":{entry},"), 1);
    let all = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data, &[0; 32]].concat();
    std::fs::write(fixture.path("model.safetensors"), all).unwrap();
    let error = format!("{:#}", plan(fixture.folder.path(), &of(Quant::F32)).unwrap_err());
    let expected = format!("model.safetensors: tensor {name} occurs twice in the header, expected one of each name");
    assert_eq!(error, expected);
}

#[test]
fn what_is_no_checkpoint_yet_is_named() {
    for file in ["model.safetensors", "tokenizer.json"] {
        let fixture = llama();
        fixture.save();
        fixture.write(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3\n");
        let error = convert(fixture.folder.path(), &fixture.path("out.gguf"), &of(Quant::F32)).unwrap_err();
        let expected =
            format!("{file}: a pointer of Git LFS, expected the file that it stands for: `git lfs pull` fetches it");
        assert_eq!(format!("{error:#}"), expected);
    }
    let fixture = llama();
    fixture.save();
    std::fs::rename(fixture.path("model.safetensors"), fixture.path("pytorch_model.bin")).unwrap();
    let error = convert(fixture.folder.path(), &fixture.path("out.gguf"), &of(Quant::F32)).unwrap_err();
    assert!(error.to_string().ends_with("in it and not pytorch_model.bin: save it as safetensors"), "{error}");
}

/// As the cache of Hugging Face is where a download was not completed.
#[test]
#[cfg(unix)]
fn links_that_lead_nowhere_and_folders_around_a_checkpoint_are_named() {
    for file in ["model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        let fixture = llama();
        fixture.save();
        let _ = std::fs::remove_file(fixture.path(file));
        std::os::unix::fs::symlink("../../blobs/b0", fixture.path(file)).unwrap();
        let error = convert(fixture.folder.path(), &fixture.path("out.gguf"), &of(Quant::F32)).unwrap_err();
        let expected =
            format!("{file}: a link to ../../blobs/b0, expected a file there: download the checkpoint again");
        assert_eq!(format!("{error:#}"), expected);
    }
    let cache = tempfile::tempdir().unwrap();
    std::fs::create_dir(cache.path().join("snapshots")).unwrap();
    let error = convert(cache.path(), &cache.path().join("out.gguf"), &of(Quant::F32)).unwrap_err().to_string();
    assert!(error.ends_with("a folder of the Hugging Face cache, expected the one in its snapshots"), "{error}");
}

#[test]
fn progress_ends_at_the_total() {
    use std::{cell::RefCell, rc::Rc};
    let fixture = llama();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    let progress = move |progress: Progress<'_>| log.borrow_mut().push((progress.done, progress.total));
    let options = ConvertOptions { progress: Some(Box::new(progress)), ..of(Quant::F32) };
    fixture.convert(&options).unwrap();
    let seen = seen.borrow();
    assert!(seen.is_sorted() && seen.len() >= 20);
    assert_eq!(seen.last().map(|last| last.0), seen.last().map(|last| last.1));
}

#[test]
fn a_plan_is_what_is_written() {
    let fixture = qwen3next();
    fixture.save();
    let options = ConvertOptions { name: Some("A name".into()), ..of(Quant::Bf16) };
    let planned = plan(fixture.folder.path(), &options).unwrap();
    assert!(!fixture.out().exists());
    let report = convert(fixture.folder.path(), &fixture.out(), &options).unwrap();
    assert_eq!(report.plan.tensors, planned.tensors);
    let file = GgufFile::open(&fixture.out()).unwrap();
    assert_eq!(file.tensors().len(), planned.tensors.len());
    for (tensor, planned) in file.tensors().iter().zip(&planned.tensors) {
        assert_eq!((&tensor.name, tensor.quant, &tensor.shape), (&planned.name, planned.quant, &planned.shape));
        assert_eq!(tensor.bytes as u64, planned.bytes);
    }
    let written: Vec<_> = file.metadata().iter().collect();
    assert_eq!(written, planned.metadata.iter().collect::<Vec<_>>());
    assert_eq!(file.metadata().string("general.name").unwrap(), "A name");
    assert_eq!(report.bytes, planned.tensors.iter().map(|tensor| tensor.bytes).sum::<u64>());
    let experts = planned.tensors.iter().find(|tensor| tensor.name == "blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!(experts.sources.len(), EXPERTS);
}

#[test]
fn recommended_sampling_is_carried_over() {
    let fixture = llama();
    fixture.write("generation_config.json", r#"{"temperature": 0.6, "top_k": 20, "eos_token_id": [8, 9]}"#);
    let file = fixture.f32();
    assert_eq!(file.metadata().get("general.sampling.temp"), Some(&Value::F32(0.6)));
    assert_eq!(file.metadata().get("general.sampling.top_k"), Some(&Value::I32(20)));
    fixture.write("generation_config.json", r#"{"temperature": 0.6, "do_sample": false}"#);
    assert!(fixture.f32().metadata().get("general.sampling.temp").is_none());
    for (text, expected) in [
        (r#"{"temperature": -1}"#, "temperature = -1, expected a number from 0 to 2147483647"),
        (r#"{"temperature": true}"#, "temperature = true, expected a number from 0 to 2147483647"),
        (r#"{"top_p": [0.9]}"#, "top_p is a list, expected a number"),
        (r#"{"top_p": 2}"#, "top_p = 2, expected a number from 0 to 1"),
        (r#"{"repetition_penalty": 0}"#, "repetition_penalty = 0, expected a number above 0, up to 2147483647"),
        (r#"{"top_k": 20.5}"#, "top_k = 20.5, expected a whole number from -1 to 2147483647"),
        (r#"{"top_k": 1e12}"#, "top_k = 1000000000000.0, expected a whole number from -1 to 2147483647"),
        (r#"{"do_sample": "no"}"#, "do_sample is a text, expected true or false"),
    ] {
        fixture.write("generation_config.json", text);
        assert_eq!(fixture.error(&of(Quant::F32)), format!("generation_config.json: {expected}"));
    }
}

/// What a file of several parts holds, read as one.
#[test]
fn a_model_may_be_split_over_files() {
    let fixture = qwen3next();
    let whole = fixture.f32();
    let count = whole.tensors().len();
    let largest = whole.tensors().iter().map(|tensor| tensor.bytes as u64).max().unwrap();
    for (limit, most) in
        [(SplitLimit::Tensors(7), 7), (SplitLimit::Bytes(largest + 100), count), (SplitLimit::Bytes(1), 1)]
    {
        let options = ConvertOptions { split: Some(limit), ..of(Quant::F32) };
        let report = convert(fixture.folder.path(), &fixture.out(), &options).unwrap();
        let first = report.files[0].file_name().unwrap().to_str().unwrap();
        assert_eq!(first, format!("out-00001-of-{:05}.gguf", report.files.len()));
        let file = GgufFile::open(&report.files[0]).unwrap();
        assert_eq!((file.shard_count(), file.tensors().len()), (report.files.len(), count));
        for tensor in whole.tensors() {
            assert_eq!(numbers(&file, &tensor.name), numbers(&whole, &tensor.name), "{}", tensor.name);
        }
        assert_eq!(file.metadata().get("split.count"), Some(&Value::U16(report.files.len() as u16)));
        assert_eq!(file.metadata().get("split.tensors.count"), Some(&Value::I32(count as i32)));
        assert_eq!(file.metadata().len(), whole.metadata().len() + 3);
        for number in 0..report.files.len() {
            let held = file.tensors().iter().filter(|tensor| tensor.shard() == number);
            let bytes: Vec<u64> = held.map(|tensor| tensor.bytes as u64).collect();
            assert!((1..=most).contains(&bytes.len()), "{limit:?}: {}", bytes.len());
            let full = |limit: u64| bytes.len() > 1 && bytes.iter().sum::<u64>() > limit;
            assert!(!matches!(limit, SplitLimit::Bytes(limit) if full(limit)), "{limit:?}: {bytes:?}");
        }
        report.files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    // A name keeps its dots.
    let options = ConvertOptions { split: Some(SplitLimit::Tensors(7)), ..of(Quant::F32) };
    for (out, first) in [("Qwen3.5", "Qwen3.5-00001-of-"), ("Qwen3.5.gguf", "Qwen3.5-00001-of-")] {
        let report = convert(fixture.folder.path(), &fixture.path(out), &options).unwrap();
        let name = report.files[0].file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(first), "{name}");
        report.files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    // What fits into one file keeps its name.
    let options = ConvertOptions { split: Some(SplitLimit::Tensors(count)), ..of(Quant::F32) };
    assert_eq!(convert(fixture.folder.path(), &fixture.out(), &options).unwrap().files, [fixture.out()]);
}

/// The third tensor of five files is bad: nothing of the first two is left.
#[test]
fn no_part_appears_unless_all_do() {
    let mut fixture = llama();
    fixture.tensors.get_mut("model.layers.1.mlp.down_proj.weight").unwrap().numbers[3] = f32::NAN;
    fixture.save();
    let before = std::fs::read_dir(fixture.folder.path()).unwrap().count();
    let options = ConvertOptions { split: Some(SplitLimit::Tensors(4)), ..of(Quant::F32) };
    let error = convert(fixture.folder.path(), &fixture.out(), &options).unwrap_err();
    assert!(format!("{error:#}").contains("expected a finite one"), "{error:#}");
    assert_eq!(std::fs::read_dir(fixture.folder.path()).unwrap().count(), before);
    // The last name is taken by a folder: the files that have their names by then lose them.
    let fixture = llama();
    fixture.save();
    std::fs::create_dir(fixture.path("out-00005-of-00005.gguf")).unwrap();
    assert!(convert(fixture.folder.path(), &fixture.out(), &options).is_err());
    assert_eq!(std::fs::read_dir(fixture.folder.path()).unwrap().count(), before + 1);
}

/// Rows of 64 and 160 numbers: no whole blocks of 256, whole blocks of 32.
#[test]
fn every_type_that_can_be_written_is_written() {
    let error = llama().error(&of(Quant::Q8K));
    assert_eq!(error, "type Q8_K: tensors cannot be converted to it");
    let fixture = Fixture::golden("qwen35moe");
    for quant in Quant::ALL.iter().copied().filter(|quant| quant.is_for_weights()) {
        let file = fixture.convert(&of(quant)).unwrap();
        let expected = match quant.block_len() {
            256 if [Quant::Q2K, Quant::Q3K].contains(&quant) => Quant::Q4_0,
            256 if quant == Quant::Q4K => Quant::Q5_0,
            256 if quant == Quant::Q5K => Quant::Q5_1,
            256 if quant == Quant::Q6K => Quant::Q8_0,
            256 if quant == Quant::Iq4Xs => Quant::Iq4Nl,
            256 => Quant::F16,
            _ => quant,
        };
        assert_eq!(file.tensor("blk.0.ffn_down_exps.weight").unwrap().quant, expected, "{quant}");
        assert_eq!(file.tensor("blk.0.ssm_conv1d.weight").unwrap().quant, Quant::F32, "{quant}");
    }
}

/// Converting to a mix is converting and then quantising, to the byte.
#[test]
fn mixes_are_those_of_quantising_afterwards() {
    let fixture = Fixture::golden("qwen35moe");
    let exact = fixture.convert(&of(Quant::F32)).unwrap();
    for mix in ["q4_k_m", "q4_0", "iq4_xs"].map(|name| Mix::from_name(name).unwrap()) {
        let out = fixture.path("quantised.gguf");
        quantize(&exact, &out, &QuantizeOptions::new(mix)).unwrap();
        let expected = GgufFile::open(&out).unwrap();
        let found = fixture.convert(&ConvertOptions { mix: Some(mix), ..of(Quant::Bf16) }).unwrap();
        let file_type = |file: &GgufFile| file.metadata().uint("general.file_type").unwrap();
        assert_eq!(file_type(&found), file_type(&expected));
        for tensor in expected.tensors() {
            let other = found.tensor(&tensor.name).unwrap();
            assert_eq!((other.quant, &other.shape), (tensor.quant, &tensor.shape), "{} in {}", tensor.name, mix.name);
            assert!(found.data(other)[..] == expected.data(tensor)[..], "{} in {}", tensor.name, mix.name);
        }
    }
}
