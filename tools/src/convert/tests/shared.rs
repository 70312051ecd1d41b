//! Real checkpoints, where the shared data is present: a file made by another converter is the measure.

use super::*;

/// The shared data, if this machine has it.
fn data() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");
    let folder = std::env::var_os("KVAS_SHARED").map_or_else(|| PathBuf::from(default), PathBuf::from).join("data");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no shared data (KVAS_SHARED)");
    None
}

/// The tensors, types, data and keys of a file are those of the reference, in whatever order.
#[test]
fn a_hybrid_equals_the_file_of_the_reference_converter() {
    let Some(data) = data() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    convert(&data.join("models/hybrid-14m"), &out, &of(Quant::Q8_0)).unwrap();
    let ours = GgufFile::open(&out).unwrap();
    let reference = GgufFile::open(&data.join("models/hybrid-14m.Q8_0.gguf")).unwrap();
    assert_eq!(ours.tensors().len(), reference.tensors().len());
    for expected in reference.tensors() {
        let tensor = ours.tensor(&expected.name).unwrap_or_else(|| panic!("no tensor {}", expected.name));
        assert_eq!((tensor.quant, &tensor.shape), (expected.quant, &expected.shape), "{}", expected.name);
        assert!(ours.data(tensor)[..] == reference.data(expected)[..], "{} has other data", expected.name);
    }
    for (key, expected) in reference.metadata().iter() {
        assert_eq!(ours.metadata().get(key), Some(expected), "{key}");
    }
    // Of one key the reference knows nothing: this tokenizer composes no characters, though others of its name do.
    assert_eq!(ours.metadata().string("tokenizer.kvas.normalizer").unwrap(), "none");
    assert_eq!(ours.metadata().len(), reference.metadata().len() + 1);
}

/// The reference file has other types of weights; all keys and the F32 tensors are the same.
#[test]
fn a_dense_model_has_the_keys_of_the_reference_converter() {
    let Some(data) = data() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    convert(&data.join("models/dense-16m"), &out, &of(Quant::F32)).unwrap();
    let ours = GgufFile::open(&out).unwrap();
    let reference = GgufFile::open(&data.join("models/dense-16m.Q4_K_M.gguf")).unwrap();
    for expected in reference.tensors() {
        let tensor = ours.tensor(&expected.name).unwrap_or_else(|| panic!("no tensor {}", expected.name));
        assert_eq!(tensor.shape, expected.shape, "{}", expected.name);
        if expected.quant == Quant::F32 {
            assert!(ours.data(tensor)[..] == reference.data(expected)[..], "{} has other data", expected.name);
        }
    }
    for (key, expected) in reference.metadata().iter().filter(|(key, _)| *key != "general.file_type") {
        assert_eq!(ours.metadata().get(key), Some(expected), "{key}");
    }
}
