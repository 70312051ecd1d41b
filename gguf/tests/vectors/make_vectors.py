"""Writes the vectors that tests/quant.rs compares with: one file per format, made by the PyPI package `gguf`.

Run in this folder with `gguf`, `llama-cpp-python` and `numpy` installed: python make_vectors.py

NAME.dequantize holds random valid blocks and, after them, the f32 bits they stand for.
NAME.quantize holds f32 elements and, after them, the blocks they become; only for formats whose quantiser there is the
reference. All numbers are little-endian. The number of blocks follows from the size of the file.

little.container and big.container are whole GGUF files with every type of metadata, for tests/round_trip.rs.
"""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFEndian, GGUFWriter
from gguf.quants import dequantize, quantize

BLOCKS = 6
# Bytes where the f16 scales of a block lie; their exponents are kept small enough to be finite.
F16_AT = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64],
}
# Those that `gguf` cannot read are read by the library of `llama-cpp-python` 0.3.36. Bytes where the f16 scales lie, too.
NEWER = {"NVFP4": [], "Q1_0": [0], "Q2_0": [0]}
OTHER = ["IQ1_M", "MXFP4", "BF16", "F32", "F64", "I8", "I16", "I32", "I64"]
# Formats of table rows: entries in the table, bytes where the low 8 bits of the indices begin, and where the others do.
TABLES = {
    "IQ1_S": (2048, 2, 34), "IQ2_XXS": (256, 2, None), "IQ2_XS": (512, 2, None), "IQ2_S": (1024, 2, 66),
    "IQ3_XXS": (256, 2, None), "IQ3_S": (512, 2, 66),
}
QUANTIZE = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
PLAIN = {"F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def random_blocks(random, name):
    """Random bytes, with finite scales."""
    length, size = GGML_QUANT_SIZES[Type[name]]
    count = BLOCKS if length > 1 else 64
    if name in TABLES:
        # A row is 4 elements in the IQ3 formats, 8 in the others.
        count = TABLES[name][0] // (64 if name.startswith("IQ3") else 32)
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in F16_AT.get(name, []):
        # Of either sign, from subnormal to large.
        scales = random.integers(0, 0x7000, count).astype("<u2") | (random.integers(0, 2, count).astype("<u2") << 15)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    if name == "IQ1_M":
        # The scale is the top nibbles of four words; the last one holds sign and exponent.
        blocks[:, 55] = blocks[:, 55] & 0x0F | random.integers(0, 7, count).astype(np.uint8) << 4
    if name in ("BF16", "F32"):
        # No infinities and no NaNs: their sign and payload are nobody's promise.
        blocks[:, -1] = blocks[:, -1] & 0xBF
    if name == "F64":
        blocks[:] = random.normal(0, 1e3, count).astype("<f8").view(np.uint8).reshape(count, size)
    if name in TABLES:
        enumerate_rows(blocks, name)
    return blocks


def enumerate_rows(blocks, name):
    """Sets the indices so that every row of the table occurs once, whatever else the blocks say."""
    entries, low, high = TABLES[name]
    rows = np.arange(entries, dtype=np.uint16).reshape(len(blocks), -1)
    for block, indices in zip(blocks, rows):
        if name == "IQ2_XXS":
            block[low:].reshape(8, 8)[:, :4] = indices.reshape(8, 4)
        elif name == "IQ2_XS":
            words = block[low : low + 64].view("<u2")
            words[:] = words & 0xFE00 | indices
        else:
            block[low : low + len(indices)] = indices & 0xFF
        for group, index in enumerate(indices >> 8 if high else []):
            # How many bits of an index are high ones, and how many indices share a byte or, in IQ1_S, a u16.
            bits, share = {"IQ1_S": (3, 4), "IQ2_S": (2, 4), "IQ3_S": (1, 8)}[name]
            shift = bits * (group % share)
            if name == "IQ1_S":
                word = block[high + group // share * 2 :][:2].view("<u2")
            else:
                word = block[high + group // share :][:1]
            word[0] = int(word[0]) & ~(((1 << bits) - 1) << shift) & 0xFFFF | int(index) << shift


def elements(random, name):
    """Gaussian rows, and the awkward ones: zeros, one outlier, constants, ties, tiny and large values."""
    length = max(GGML_QUANT_SIZES[Type[name]][0], 32)
    rows = [random.normal(0, 1, length) for _ in range(4)]
    rows += [np.zeros(length), np.full(length, 0.25), np.full(length, -3.0), np.arange(length) - length / 2]
    rows += [random.normal(0, 1e-4, length), random.normal(0, 1e3, length), random.integers(-8, 8, length) / 2]
    outlier = random.normal(0, 0.1, length)
    outlier[5] = -7.5
    rows += [outlier, np.abs(random.normal(0, 1, length)) + 1, -np.abs(random.normal(0, 1, length))]
    return np.array(rows, dtype="<f4")


def container(folder, name, endian):
    """A file with every type of value and, since the package turns no blocks around, plain tensors only."""
    writer = GGUFWriter(folder / f"{name}.container", "test", endianess=endian)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 1 << 63)
    writer.add_int64("t.i64", -(1 << 62))
    writer.add_float32("t.f32", 1.5)
    writer.add_float64("t.f64", -2.25)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "straße")
    writer.add_array("t.strings", ["a", "", "🦀"])
    writer.add_array("t.integers", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -0.5])
    writer.add_array("t.flags", [True, False])
    writer.add_tensor("t.f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("t.f16", np.arange(5, dtype=np.float16))
    writer.add_tensor("t.i32", np.array([[1], [-2]], dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_library(library, name, blocks, length):
    """What the C function of the format makes of blocks."""
    values = np.zeros((len(blocks), length), dtype=np.float32)
    read = getattr(library, f"dequantize_row_{name.lower()}")
    read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    read.restype = None
    read(blocks.ctypes.data, values.ctypes.data, values.size)
    return values


def newer(folder):
    """The formats that came last, from numbers of their own, so that the older files stay as they are."""
    library = ctypes.CDLL(next(Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so")))
    random = np.random.default_rng(20241)
    for name, scales_at in NEWER.items():
        length, size = {"NVFP4": (64, 36), "Q1_0": (128, 18), "Q2_0": (64, 18)}[name]
        # NVFP4: every code of a scale once.
        blocks = random.integers(0, 256, (64, size), dtype=np.uint8)
        if name == "NVFP4":
            blocks[:, :4] = np.arange(256).reshape(64, 4)
        for at in scales_at:
            scales = random.integers(0, 0x7000, 64).astype("<u2") | (random.integers(0, 2, 64).astype("<u2") << 15)
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(64, 2)
        values = by_library(library, name, blocks, length)
        if name == "NVFP4":
            # The package takes a scale for unsigned, where the library does not look at its sign.
            below = np.repeat(blocks[:, :4] < 128, 16, axis=1)
            assert (dequantize(blocks, Type[name]) == values)[below].all()
        (folder / f"{name}.dequantize").write_bytes(blocks.tobytes() + values.tobytes())


def main():
    random = np.random.default_rng(20240)
    folder = Path(__file__).parent
    for name in [*F16_AT, *OTHER]:
        blocks = random_blocks(random, name)
        if name in PLAIN:
            values = blocks.view(PLAIN[name]).astype("<f4")
        else:
            values = dequantize(blocks, Type[name])
        assert np.isfinite(values).all(), name
        data = blocks.tobytes() + np.ascontiguousarray(values, dtype="<f4").tobytes()
        (folder / f"{name}.dequantize").write_bytes(data)
    for name in QUANTIZE:
        rows = elements(random, name)
        (folder / f"{name}.quantize").write_bytes(rows.tobytes() + quantize(rows, Type[name]).tobytes())
    newer(folder)
    container(folder, "little", GGUFEndian.LITTLE)
    container(folder, "big", GGUFEndian.BIG)


main()
