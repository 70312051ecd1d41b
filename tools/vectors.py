"""Writes tests/data/vectors: small inputs of the ops that `kvas bench-op` times, and what they must come to.

The answers are those of the float64 oracle module `oracle.py`, found in the folder `spec` of the one that KVAS_SHARED
names, or at the path given as the only argument. Needs numpy. Inputs are multiples of 1/64, exact in every 16-bit
format.
"""

import importlib.util
import json
import os
import pathlib
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "vectors"
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, ROWS = 2, 4, 6, 4, 12
HEADS, KV_HEADS, HEAD_DIM, TOKENS = 4, 2, 8, 21


def load_oracle():
    path = sys.argv[1] if len(sys.argv) > 1 else os.environ["KVAS_SHARED"] + "/spec/oracle.py"
    spec = importlib.util.spec_from_file_location("oracle", path)
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    return oracle


def exact(values):
    return np.round(np.clip(values, -3.9, 3.9) * 64) / 64


def flat(values, digits=9):
    return [float(f"{value:.{digits}g}") for value in np.asarray(values).reshape(-1)]


def write(name, fields):
    (FOLDER / f"{name}.json").write_text(json.dumps(fields, separators=(",", ":")) + "\n")


def recurrence(oracle, kind, seed):
    """Inputs after the convolution, gates before their nonlinearity, answers from an empty state."""
    rng = np.random.default_rng(seed)
    mixer = oracle.Mixer(kind, rng, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    mixer.A, mixer.D, mixer.bias = (exact(x) for x in (mixer.A, mixer.D, mixer.bias))
    inputs = exact(rng.normal(size=(ROWS, mixer.C)))
    raw = exact(rng.normal(size=(ROWS, mixer.nraw)) * 1.5)
    q, k, v, g, beta, skip = mixer.prep(inputs, raw)
    out, _ = oracle.recurrent(mixer.zero(), q, k, v, g, beta)
    steps = VALUE_HEADS * mixer.gd
    write(kind, {
        "key_heads": KEY_HEADS, "value_heads": VALUE_HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, "rows": ROWS,
        "inputs": flat(inputs), "steps": flat(raw[:, :steps]), "beta": flat(raw[:, steps:]),
        "ssm_a": flat(-mixer.A), "dt": flat(mixer.bias), "d": flat(mixer.D),
        "out": flat((out + skip).transpose(1, 0, 2)),
    })


def attention(oracle, seed):
    """One query over a paged context: keys and values token by token, head by head."""
    rng = np.random.default_rng(seed)
    keys, values = exact(rng.normal(size=(2, TOKENS, KV_HEADS, HEAD_DIM)))
    query = exact(rng.normal(size=(HEADS, HEAD_DIM)))
    pool = oracle.PagedPool(8, 4, KV_HEADS, HEAD_DIM)
    sequence = pool.new()
    for key, value in zip(keys, values):
        pool.append(sequence, key, value)
    out = oracle.paged_flash_decode(pool, sequence, query, HEAD_DIM**-0.5, 3)
    write("attention", {
        "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "tokens": TOKENS,
        "query": flat(query), "keys": flat(keys), "values": flat(values), "out": flat(out),
    })


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    oracle = load_oracle()
    for seed, kind in enumerate(("gdn", "kda", "mamba2")):
        recurrence(oracle, kind, seed)
    attention(oracle, 9)
