"""Writes what tests/errors.rs compares with: rows of numbers, and the error that llama.cpp's quantisers leave on them.

Run in this folder with `llama-cpp-python`, `gguf` and `numpy` installed, naming a tensor of at least 16 rows of 512
columns or more, and an importance matrix of its model: python make_errors.py MODEL.gguf IMATRIX.gguf TENSOR

gaussian.rows and weights.rows hold 16 rows of 512 numbers and then the importance of the 512 columns, as f32,
little-endian. errors.txt says for each format and file the root of the mean squared error without importance, and that
of the mean squared error times importance when it is given.
"""

import ctypes
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

ROWS, COLUMNS = 16, 512
FORMATS = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "F16",
    "BF16",
]

library = ctypes.CDLL(next(Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so")))
library.ggml_quantize_chunk.restype = ctypes.c_size_t
library.ggml_quantize_chunk.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
]


def become(rows, name, importance):
    """What the rows are after quantising and back."""
    length, size = gguf.GGML_QUANT_SIZES[Type[name]]
    out = np.zeros((ROWS, COLUMNS // length * size), dtype=np.uint8)
    weights = None if importance is None else importance.ctypes.data
    library.ggml_quantize_chunk(Type[name], rows.ctypes.data, out.ctypes.data, 0, ROWS, COLUMNS, weights)
    return dequantize(out, Type[name])


def error(rows, name, importance):
    squares = (become(rows, name, importance).astype(np.float64) - rows) ** 2
    return np.sqrt(np.mean(squares if importance is None else squares * importance))


def main():
    model, imatrix, tensor = sys.argv[1:]
    random = np.random.default_rng(7)
    found = next(t for t in gguf.GGUFReader(model).tensors if t.name == tensor)
    weights = dequantize(found.data, found.tensor_type)[:ROWS, :COLUMNS]
    statistics = {t.name: t.data for t in gguf.GGUFReader(imatrix).tensors}
    importance = statistics[f"{tensor}.in_sum2"].ravel()[:COLUMNS] / statistics[f"{tensor}.counts"].ravel()[0]
    files = {
        "gaussian": (random.normal(0, 1, (ROWS, COLUMNS)), random.normal(0, 1, COLUMNS) ** 2),
        "weights": (weights, importance),
    }
    lines = []
    for name, (rows, importance) in files.items():
        rows, importance = (np.ascontiguousarray(part, dtype="<f4") for part in (rows, importance))
        Path(f"{name}.rows").write_bytes(rows.tobytes() + importance.tobytes())
        for quant in FORMATS:
            lines.append(f"{quant} {name} {error(rows, quant, None):.6e} {error(rows, quant, importance):.6e}")
    Path("errors.txt").write_text("\n".join(lines) + "\n")


main()
