//! Any bytes: the container opens or is refused, and every tensor of what opened can be read; a model is read,
//! lowered and bound, or refused.
#![no_main]

use kvas::model::Model;
use kvas_gguf::GgufFile;
use libfuzzer_sys::fuzz_target;

/// Elements dequantised per input, so that a run is not spent on one large tensor.
const ELEMENTS: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = GgufFile::from_bytes("fuzz", data.to_vec()) else { return };
    for tensor in file.tensors() {
        let bytes = file.data(tensor);
        assert_eq!(bytes.len(), tensor.bytes);
        if tensor.elements() <= ELEMENTS {
            let mut values = vec![0.0; tensor.elements()];
            let _ = tensor.quant.dequantize(&bytes, &mut values);
        }
    }
    let _ = Model::of_file(file, None);
});
