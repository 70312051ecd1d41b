//! The reference checkpoints of the repository as fixtures, and what a file of one is expected to hold.

use super::*;

/// The folder of the reference checkpoints.
fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/goldens")
}

#[test]
fn every_golden_converts_to_every_type() {
    let mut count = 0;
    for entry in std::fs::read_dir(goldens()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let fixture = Fixture::golden(&name);
        for quant in [Quant::F32, Quant::F16, Quant::Bf16, Quant::Q8_0, Quant::Q4K] {
            let file = fixture.convert(&of(quant)).unwrap();
            assert!(file.tensors().iter().any(|tensor| tensor.quant == quant || quant == Quant::Q4K), "{name} {quant}");
        }
        assert!(plan(fixture.folder.path(), &of(Quant::F32)).unwrap().ignored.is_empty(), "{name}");
        count += 1;
    }
    assert_eq!(count, 22);
}

impl Fixture {
    /// A reference checkpoint of the repository, to be changed.
    pub(super) fn golden(name: &str) -> Fixture {
        let folder = goldens().join(name);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let mut fixture = Fixture::new(serde_json::from_slice(&config).unwrap());
        fixture.write("tokenizer.json", &std::fs::read_to_string(folder.join("tokenizer.json")).unwrap());
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        for (name, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
            assert_eq!(view.dtype(), Dtype::BF16);
            let number = |raw: &[u8; 2]| half::bf16::from_le_bytes(*raw).to_f32();
            let numbers = view.data().as_chunks::<2>().0.iter().map(number).collect();
            fixture.tensors.insert(name, Made { dtype: Dtype::BF16, shape: view.shape().to_vec(), numbers });
        }
        fixture
    }

    /// Joins the tensors of every expert, given as `prefix.{e}.name`, to one of all of them: their rows after another.
    pub(super) fn fuse(&mut self, prefix: &str, names: &[&str], experts: usize, fused: &str) {
        let (mut numbers, mut rows, mut columns) = (Vec::new(), 0, 0);
        for expert in 0..experts {
            for name in names {
                let made = self.tensors.remove(&format!("{prefix}.{expert}.{name}.weight")).unwrap();
                (rows, columns) = (made.shape[0] * names.len(), made.shape[1]);
                numbers.extend(made.numbers);
            }
        }
        let made = Made { dtype: Dtype::BF16, shape: vec![experts, rows, columns], numbers };
        self.tensors.insert(format!("{prefix}.{fused}"), made);
    }

    /// Every tensor under another name.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, made)| (name.replace(from, to), made)).collect();
    }
}

/// What a file is expected to hold.
pub(super) struct Expected {
    pub(super) file: GgufFile,
    pub(super) checked: usize,
}

impl Expected {
    pub(super) fn of(fixture: &Fixture, architecture: &str) -> Expected {
        let file = fixture.convert(&of(Quant::Bf16)).unwrap();
        assert_eq!(file.metadata().architecture().unwrap(), architecture);
        Expected { file, checked: 0 }
    }

    /// Tensors as `name 64x512`, or `name 64x512 w` if they have the type asked for and are not F32, with the prefix
    /// of each of these blocks; a negative number stands for none.
    pub(super) fn tensors(&mut self, blocks: &[i32], tensors: &str) {
        for block in blocks {
            for tensor in tensors.split(',').map(str::trim).filter(|tensor| !tensor.is_empty()) {
                let mut words = tensor.split(' ');
                let (name, sizes) = (words.next().unwrap(), words.next().unwrap());
                let name = if *block < 0 { name.into() } else { format!("blk.{block}.{name}") };
                let sizes: Vec<u64> = sizes.split('x').map(|size| size.parse().unwrap()).collect();
                let quant = if words.next().is_some() { Quant::Bf16 } else { Quant::F32 };
                assert_eq!(shape(&self.file, &name), sizes, "{name}");
                assert_eq!(self.file.tensor(&name).unwrap().quant, quant, "{name}");
                self.checked += 1;
            }
        }
    }

    pub(super) fn counts(&self, keys: &[(&str, u32)]) {
        keys.iter().for_each(|(key, expected)| self.key(key, &Value::U32(*expected)));
    }

    pub(super) fn key(&self, key: &str, expected: &Value) {
        let key = format!("{}.{key}", self.file.metadata().architecture().unwrap());
        assert_eq!(self.file.metadata().get(&key), Some(expected), "{key}");
    }

    pub(super) fn no_key(&self, key: &str) {
        let key = format!("{}.{key}", self.file.metadata().architecture().unwrap());
        assert_eq!(self.file.metadata().get(&key), None, "{key}");
    }

    /// Nothing else is in the file.
    pub(super) fn finish(self) {
        assert_eq!(self.file.tensors().len(), self.checked);
    }
}

/// All tensors and keys of two checkpoints become the same.
pub(super) fn same(a: &Fixture, b: &Fixture) {
    let (a, b) = (a.f32(), b.f32());
    assert_eq!(a.tensors().len(), b.tensors().len());
    for tensor in a.tensors() {
        assert_eq!(shape(&b, &tensor.name), tensor.shape);
        assert_eq!(numbers(&a, &tensor.name), numbers(&b, &tensor.name), "{}", tensor.name);
    }
    for (key, value) in a.metadata().iter().filter(|(key, _)| !key.starts_with("general.")) {
        assert_eq!(b.metadata().get(key), Some(value), "{key}");
    }
}

pub(super) fn i32s(list: &[i32]) -> Value {
    Value::I32s(list.to_vec())
}

/// Halves of each head of 16 rows to pairs.
pub(super) fn paired(heads: usize) -> Vec<usize> {
    (0..heads * 16).map(|row| row / 16 * 16 + row % 2 * 8 + row % 16 / 2).collect()
}

pub(super) fn negated_exp(numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|x| -x.exp()).collect()
}

/// Four heads of 16, of which two for keys and values.
pub(super) const ATTENTION: &str =
    "attn_q.weight 64x64 w, attn_k.weight 64x32 w, attn_v.weight 64x32 w, attn_output.weight 64x64 w";
