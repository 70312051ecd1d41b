"""Writes tests/data/vectors: small inputs of the ops that `kvas bench-op` times, and of attention with a compressive
memory, and what they must come to.

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
EDGE_DIM, EDGE_TOKENS = 4, 32


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


def slake(oracle, seed):
    """A prompt that is cut to `keep` tokens, then tokens one by one, of which `page` are given up whenever there are that
    many more: what a layer would lose, and what attention gives."""
    rng = np.random.default_rng(seed)
    heads, kv_heads, dim, prompt, tokens, keep, page, window = 4, 2, 8, 72, 20, 32, 4, 8
    group, scale, gamma, mass_cap = heads // kv_heads, dim**-0.5, 200.0, 0.25
    q = exact(rng.normal(size=(heads, prompt + tokens, dim)) * 1.3)
    k = exact(rng.normal(size=(kv_heads, prompt + tokens, dim)) * 1.3)
    v = exact(rng.normal(size=(kv_heads, prompt + tokens, dim)))
    every = np.arange(kv_heads)
    weights = oracle.window_attention(q[:, :prompt], k[:, :prompt], scale, window)
    scores = oracle.cake_score(weights, window, kv_heads, gamma)
    best = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, : keep - window], axis=1)
    shift, values, entropy = oracle.vabs_terms(q[:, :prompt], k[:, :prompt], v[:, :prompt], scale, window, best)
    old = weights[:, :, :-window]
    preference = [-(old * np.log(old + 1e-10)).sum(), old.var(1, ddof=1).sum(), (shift * values).mean(), entropy.mean()]
    moments = oracle.Moments(kv_heads, dim, dim)
    held = [[*best[h], *range(prompt - window, prompt)] for h in every]
    lately = [np.append(scores[h, best[h]], np.zeros(window)) for h in every]
    gone = np.stack([np.setdiff1d(np.arange(prompt), held[h]) for h in every])
    for j in range(gone.shape[1]):
        moments.add(k[every, gone[:, j]], v[every, gone[:, j]])
    out = []
    for t in range(prompt, prompt + tokens):
        held = [[*held[h], t] for h in every]
        own_k, own_v = (np.stack([x[h, held[h]] for h in every]) for x in (k, v))
        parts = [oracle.partial(q[:, t], own_k, own_v, scale), moments.part(q[:, t], scale, mass_cap=mass_cap)]
        out.append(oracle.merge(parts))
        most = np.maximum(parts[0][0], parts[1][0])
        total = sum(part[1] * np.exp(part[0] - most) for part in parts)
        x = scale * np.einsum("hgd,hnd->hgn", q[:, t].reshape(kv_heads, group, dim), own_k)
        share = np.exp(x - most.reshape(kv_heads, group, 1)) / total.reshape(kv_heads, group, 1)
        lately = [0.9 * np.append(lately[h], 0.0) + share[h].sum(0) for h in every]
        if len(held[0]) == keep + page:
            for h in every:
                may = [i for i, j in enumerate(held[h]) if j < t + 1 - window]
                worst = sorted(may, key=lambda i: (lately[h][i], held[h][i]))[:page]
                stay = [i for i in range(len(held[h])) if i not in worst]
                gone = [held[h][i] for i in sorted(worst)] if h == 0 else [*gone, *(held[h][i] for i in sorted(worst))]
                held[h], lately[h] = [held[h][i] for i in stay], lately[h][stay]
            gone = np.array(gone).reshape(kv_heads, page)
            for j in range(page):
                moments.add(k[every, gone[:, j]], v[every, gone[:, j]])
    by_token = lambda x: flat(x.transpose(1, 0, 2))
    write("slake", {
        "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "prompt": prompt, "tokens": tokens, "keep": keep,
        "page": page, "window": window, "gamma": gamma, "mass_cap": mass_cap, "queries": by_token(q),
        "keys": by_token(k), "values": by_token(v), "preference": flat(preference, 12), "out": flat(out),
    })


def summed_up(oracle):
    """The model whose segments go into moments, which are one more part of every context instead of a memory and gates."""

    class SummedUp(oracle.EdgeInf):
        def reset(self):
            super().reset()
            self.moments = [oracle.Moments(self.Hkv, self.d, self.d) for _ in self.W]

        def absorb(self, kv):
            for moments, (k, v) in zip(self.moments, kv):
                for j in range(k.shape[1]):
                    moments.add(k[:, j], v[:, j])
            self.N += 1

        def fwd(self, x, at, keep=True):
            rows, scale, fresh = len(at), self.d**-0.5, []
            by_head = lambda y, heads: y.reshape(rows, heads, self.d).transpose(1, 0, 2)
            for layer, (w, moments) in enumerate(zip(self.W, self.moments)):
                q, k = (oracle.rope(by_head(x @ w[name], heads), self.p(at)) for name, heads in (("q", self.Hq), ("k", self.Hkv)))
                v = by_head(x @ w["v"], self.Hkv)
                keys, values = (np.concatenate([old, new], 1) for old, new in zip(self.c[layer], (k, v)))
                found = np.empty((rows, self.Hq, self.d))
                for row in range(rows):
                    seen = keys.shape[1] - rows + row + 1
                    held = oracle.partial(q[:, row], keys[:, :seen], values[:, :seen], scale)
                    found[row] = oracle.merge([held, moments.part(q[:, row], scale)])
                if keep:
                    self.c[layer] = [keys, values]
                fresh.append((k, v))
                x = x + found.reshape(rows, self.D) @ w["o"]
            return x, fresh

    return SummedUp


def before_rotation(oracle):
    """The model whose memory is of keys before rotation, and is asked by such queries: values carry these keys along."""

    class BeforeRotation(oracle.EdgeInf):
        def reset(self):
            super().reset()
            empty = lambda columns: np.zeros((self.Hkv, 0, columns))
            self.c = [[empty(self.d), empty(2 * self.d)] for _ in self.W]

        def absorb(self, kv):
            super().absorb([(v[..., self.d :], v[..., : self.d]) for _, v in kv])

        def fwd(self, x, at, keep=True):
            rows, group, fresh = len(at), self.Hq // self.Hkv, []
            by_head = lambda y, heads: y.reshape(rows, heads, self.d).transpose(1, 0, 2)
            for layer, w in enumerate(self.W):
                q, k, v = (by_head(x @ w[name], heads) for name, heads in (("q", self.Hq), ("k", self.Hkv), ("v", self.Hkv)))
                turned, new = oracle.rope(q, self.p(at)), (oracle.rope(k, self.p(at)), np.concatenate([v, k], -1))
                keys, values = (np.concatenate([old, own], 1) for old, own in zip(self.c[layer], new))
                mixed = np.empty((rows, self.Hq, self.d))
                for row in range(rows):
                    seen = keys.shape[1] - rows + row + 1
                    held = oracle.partial(turned[:, row], keys[:, :seen], values[:, :seen, : self.d], self.d**-0.5)
                    mixed[row] = oracle.merge([held])
                if self.N > 0:
                    for head in range(self.Hq):
                        asks, share = oracle.elu1(q[head]), oracle.sigmoid(w["g"][head])
                        total = np.maximum(asks @ self.z[layer][head // group], 1e-10)
                        found = (asks @ self.M[layer][head // group]) / total[:, None]
                        found = np.maximum(found @ w["W1"] + w["b1"], 0) @ w["W2"] + w["b2"]
                        mixed[:, head] = share * found + (1 - share) * mixed[:, head]
                if keep:
                    self.c[layer] = [keys, values]
                fresh.append(new)
                x = x + mixed.reshape(rows, self.D) @ w["o"]
            return x, fresh

    return BeforeRotation


def edgeinfinite(oracle, seed):
    """Two attention layers without norms or feed-forward halves, `x += heads(x) Wo`, read with sinks, segments and a
    window: what comes out, token by token, of a prompt of each length in `prompts`, of decoding from `first` tokens on
    in place and with recomputation, and the memories after the last prompt; the same of memories of keys before rotation, and
    of segments that are summed up.
    Matrices are `[inputs, outputs]`."""
    rng = np.random.default_rng(seed)
    like = oracle.EdgeInf(rng, d=EDGE_DIM)
    for layer in like.W:
        for name, matrix in layer.items():
            layer[name] = exact(matrix)
    inputs, first = exact(rng.normal(size=(EDGE_TOKENS, like.D))), 5
    fields = {
        "layers": like.nl, "heads": like.Hq, "kv_heads": like.Hkv, "head_dim": like.d, "hidden": like.W[0]["W1"].shape[1],
        "sink": like.sink, "window": like.win, "segment": like.seg, "rope_base": 10000.0, "first": first,
        "weights": [{name: flat(matrix) for name, matrix in layer.items()} for layer in like.W], "inputs": flat(inputs),
    }
    ways = [("", oracle.EdgeInf), ("plain_", before_rotation(oracle)), ("ptaa_", summed_up(oracle))]
    for way, pos in ((way, pos) for way in ways for pos in ("cache", "abs")):
        def model():
            made = way[1](rng, d=EDGE_DIM, pos=pos)
            made.W = like.W
            return made
        has_matrix = way[0] != "ptaa_"
        prompts, answers = [first, 12, 13, 18, 19, EDGE_TOKENS - 1, EDGE_TOKENS], []
        for length in prompts:
            prompt = model()
            answers.append(flat(prompt.prefill(inputs[:length]), 7))
        memory = {"m": flat(prompt.M, 7), "z": flat(prompt.z, 7)} if has_matrix else {}
        decoded = {}
        for mode in ("inplace", "recompute"):
            made = model()
            made.prefill(inputs[:first])
            decoded[mode] = flat([made.decode(x, mode) for x in inputs[first:]], 7)
            if has_matrix:
                decoded[f"{mode}_m"], decoded[f"{mode}_z"] = flat(made.M, 7), flat(made.z, 7)
        fields[way[0] + pos] = {"prompts": prompts, "prompt_out": answers, **memory, **decoded}
    write("edgeinfinite", fields)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    oracle = load_oracle()
    for seed, kind in enumerate(("gdn", "kda", "mamba2")):
        recurrence(oracle, kind, seed)
    attention(oracle, 9)
    slake(oracle, 13)
    edgeinfinite(oracle, 10)
