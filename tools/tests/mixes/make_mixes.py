"""Writes the tables that tools/tests/mixes.rs compares with: which format llama.cpp gives each tensor in each mix.

Run in this folder with `llama-cpp-python`, `gguf` and `numpy` installed: python make_mixes.py [MODEL.gguf ...]

The models below are made up, as small as they can be and still make every rule apply; a table of a file named on the
command line is written as well. The first line of a table is the model's facts, the second names the columns: a mix, or
with a `+` a mix with an importance matrix. Then one line for each tensor: name, shape, and its formats.
"""

import ctypes
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

MIXES = {
    "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "IQ4_XS": 30, "IQ4_NL": 25, "Q4_0": 2, "Q4_1": 3,
    "Q4_K_S": 14, "Q4_K_M": 15, "MXFP4_MOE": 38, "Q5_0": 8, "Q5_1": 9, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
    "Q8_0": 7, "F16": 1, "BF16": 32,
}
# Where an importance matrix changes a choice.
WEIGHTED = ["IQ4_XS", "Q4_0", "Q5_0", "Q4_K_M"]
KEYS = ["block_count", "expert_count", "attention.head_count", "attention.head_count_kv"]


def dense(layers, tied=False, down="ffn_down", stack=1, width=256):
    """The tensors of a small Llama: (name, shape in the order of numpy)."""
    tensors = [("token_embd.weight", (64, width)), ("output_norm.weight", (width,))]
    if not tied:
        tensors.append(("output.weight", (64, width)))
    outer = (stack,) if stack > 1 else ()
    for layer in range(layers):
        for stem, shape in [
            ("attn_norm.weight", (width,)), ("attn_q.weight", (width, width)), ("attn_k.weight", (64, width)),
            ("attn_v.weight", (64, width)), ("attn_output.weight", (width, width)),
            (f"{down}.weight", (*outer, width, width)),
        ]:
            tensors.append((f"blk.{layer}.{stem}", shape))
        if stack > 1:
            tensors.append((f"blk.{layer}.ffn_gate_inp.weight", (stack, width)))
            tensors.append((f"blk.{layer}.ffn_down_shexp.weight", (width, width)))
    return tensors


# Name: (heads, key heads, experts, tensors).
MODELS = {
    "shared-heads": (8, 2, 0, dense(24)),
    "tied": (8, 4, 0, dense(17, tied=True)),
    "no-heads-first": (8, [0, 2] * 4, 0, dense(8)),
    "eight-experts": (8, 2, 8, dense(16, down="ffn_down_exps", stack=8)),
    "many-experts": (8, 4, 16, dense(16, down="ffn_down_exps", stack=16)),
    "eighty-layers": (8, 1, 0, [tensor for tensor in dense(80) if "blk" not in tensor[0] or "attn_v" in tensor[0]]),
    "odd-rows": (8, 2, 0, dense(8, width=96)),
    "odder-rows": (8, 2, 0, dense(8, width=40)),
}


def write_model(path, heads, key_heads, experts, tensors):
    layers = 1 + max(int(name.split(".")[1]) for name, _ in tensors if name.startswith("blk."))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    writer.add_rope_dimension_count(32)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    for name, shape in tensors:
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types(source, folder, mix, weighted):
    """The format of each tensor of a file that llama.cpp made."""
    out = str(folder / "out.gguf")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = MIXES[mix]
    params.allow_requantize = True
    params.nthread = 2
    if weighted:
        # One entry that no tensor has: it is there, and that is all the choice looks at.
        values = (ctypes.c_float * 1)(1.0)
        entries = (llama_cpp.llama_model_imatrix_data * 2)()
        entries[0].name = b"nothing"
        entries[0].data = values
        entries[0].size = 1
        params.imatrix = entries
    if llama_cpp.llama_model_quantize(str(source).encode(), out.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"{source}: {mix} failed")
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}


def facts(reader):
    architecture = reader.get_field("general.architecture").contents()
    words = [architecture]
    for key in KEYS:
        field = reader.get_field(f"{architecture}.{key}")
        if field is not None:
            value = field.contents()
            words.append(f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return " ".join(words)


def table(source, name, folder):
    reader = gguf.GGUFReader(str(source))
    columns = [(mix, False) for mix in MIXES] + [(mix, True) for mix in WEIGHTED]
    found = [types(source, folder, *column) for column in columns]
    lines = [facts(reader), " ".join(mix + "+" * weighted for mix, weighted in columns)]
    for tensor in reader.tensors:
        shape = "x".join(map(str, tensor.shape))
        lines.append(" ".join([tensor.name, shape, *(column[tensor.name] for column in found)]))
    (Path(__file__).parent / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name, model in MODELS.items():
            source = folder / "model.gguf"
            write_model(source, *model)
            table(source, name, folder)
        for path in map(Path, sys.argv[1:]):
            table(path, path.name.split(".")[0], folder)


main()
