#!/usr/bin/env python3
"""Ours beside the Triton kernels of flash-linear-attention and PyTorch's attention, on one GPU in one call.

Layers of linear attention (one token of every sequence, and prompts) and attention (the same two). Both sides are timed
on the GPU, as graphs that are run again and again where steps are short, over buffers that no cache holds; medians.
What theirs computes is compared with a few lines in float64 first. Where there are several ways to call theirs, each is
timed and the fastest counts.

usage: benches/gpu/beside.py [decode|prompt|attention|attention_prompt]… (default: all)
KVAS names the kvas binary, MEMORY_SPEED the test binary of cuda/tests/memory_speed.rs; fla (or fla-core) has to be importable.
KINDS=gdn,kda,mamba2 says which layers, FLEX=0 leaves out flex_attention, WARM=0 compiles theirs one by one.
"""

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

# Kernels are compiled by many processes at first, and what is fastest is then chosen by this one alone.
os.environ["FLA_CACHE_RESULTS"] = "0"
KVAS, MEMORY_SPEED = os.environ.get("KVAS", "target/release/kvas"), os.environ.get("MEMORY_SPEED", "")
PARTS = ["decode", "prompt", "attention", "attention_prompt"]
BATCHES = [1, 8, 32, 64, 128, 256]
CONTEXTS, ATTENTION_BATCHES = [2000, 8192], [1, 8, 32, 64, 128]
PROMPTS = [(1, 2048), (1, 8192), (4, 2048)]
# Many times the cache.
WORKING_SET = 512 << 20
# Key heads, value heads, key columns, value columns; name in memory_speed.
KINDS = {
    "gdn": (16, 32, 128, 128, "Delta"),
    "kda": (32, 32, 128, 128, "PerChannel"),
    # Theirs has no groups: the 8 of ours are repeated before the clock starts.
    "mamba2": (128, 128, 128, 64, "Mamba2"),
}
INCLUDED = """Layers of linear attention, theirs: q, k and v of bf16, normalised inside, gates and steps made from what models
hand over (mamba2: simple GLA, whose gates are made before), the f32 state read from one buffer and written to another;
GPU time of a graph. Ours: the same over activations of f32, the state in place; tokens by the clock of the host, with what it does
for a step (of many layers), prompts by that of the GPU. `written`: the state every token, `16 kept`: the average over 16.
Attention, theirs: contexts in one piece, f16. Ours: pages of 16 tokens all over the memory, f16, activations of f32."""
TABLE = []


class TooLong(Exception):
    pass


@contextlib.contextmanager
def tried(what, seconds):
    """Goes on if this fails or takes too long."""

    def stop(*_):
        raise TooLong(f"more than {seconds} s")

    before, left, start = signal.signal(signal.SIGALRM, stop), signal.alarm(seconds), time.time()
    try:
        yield
    except Exception as error:
        print(f"  failed: {what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        # What this is part of has its own time.
        signal.alarm(max(1, int(left - (time.time() - start))) if left else 0)


def note(what, theirs, ours, how):
    """A line of the table; microseconds."""
    ratio = f"{theirs / ours:.2f} x" if theirs and ours else "-"
    shown = [f"{number:.1f}" if number else "-" for number in (theirs, ours)]
    TABLE.append(f"{what:<40} {shown[0]:>9} {shown[1]:>9} {ratio:>8}  {how}")
    print(f"  {TABLE[-1]}", flush=True)


# Ours


def ours(command, seconds):
    """What a program of ours prints."""
    with tried(" ".join(command[:3]), seconds + 5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            print(f"  exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout
    return ""


def our_decode(kind, batch):
    """Microseconds of a layer and token with the state written every token, and with 16 tokens kept as inputs."""
    layers = {1: 128, 8: 64}.get(batch, 36 if batch < 256 else 24)
    flags = f"--kind {kind} --device cuda --batch {batch} --layers {layers} --m 16 --state f32 -r 8 --json"
    found = {}
    for line in ours([KVAS, "bench-op", "lin_ar", *flags.split()], 60).splitlines():
        line = json.loads(line)
        history = re.search(r"m=(\d+)", line.get("test", ""))
        if history:
            found[int(history[1])] = line["ms_median"] * 1e3 / layers
    return found.get(0), found.get(16)


def our_memory(table):
    """Microseconds by the beginnings of the lines of a table."""
    found = {}
    for line in ours([MEMORY_SPEED, table], 90).splitlines():
        match = re.match(r"(.*?): +([0-9.]+) us", line)
        if match:
            found[match[1]] = float(match[2])
        elif ": copy" in line:
            print(f"  {line}", flush=True)
    return found


# Theirs


def replayed(work, count, keep, replays=10):
    """Microseconds of one of `work(0)` to `work(count - 1)`, which are one graph."""
    import torch

    kept = []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in range(min(3, count)):
            work(number)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            out = work(number)
            # What is let go is written to again by the next one, out of the cache.
            kept += [out] if keep else []
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(2):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (2 * count))
    del graph, kept
    return statistics.median(times)


def inputs(kind, batch, tokens):
    """What a layer reads, as models hand it over: bf16."""
    import torch

    keys, values, key_dim, value_dim, _ = KINDS[kind]
    rand = lambda *shape: torch.randn(batch, tokens, *shape, device="cuda", dtype=torch.bfloat16)
    given = {"q": rand(keys, key_dim), "k": rand(keys, key_dim), "v": rand(values, value_dim)}
    if kind == "mamba2":
        given["g"] = torch.nn.functional.logsigmoid(rand(values).float() + 2)
        return given
    decays = (values, key_dim) if kind == "kda" else (values,)
    given |= {"g": rand(*decays), "beta": rand(values)}
    given["A_log"] = torch.rand(values, device="cuda")
    given["dt_bias"] = torch.randn(values * key_dim if kind == "kda" else values, device="cuda")
    flags = ["use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel"]
    return given | {flag: True for flag in flags}


def states(kind, batch, v_first=False):
    import torch

    _, values, key_dim, value_dim, _ = KINDS[kind]
    state = torch.randn(batch, values, key_dim, value_dim, device="cuda") * 0.1
    return state.transpose(-1, -2).contiguous() if v_first else state


def function(kind, is_prompt):
    from fla.ops import gated_delta_rule, kda, simple_gla

    return {
        "gdn": (gated_delta_rule.fused_recurrent_gated_delta_rule, gated_delta_rule.chunk_gated_delta_rule),
        "kda": (kda.fused_recurrent_kda, kda.chunk_kda),
        "mamba2": (simple_gla.fused_recurrent_simple_gla, simple_gla.chunk_simple_gla),
    }[kind][is_prompt]


def call(kind, is_prompt, given, state, v_first):
    return function(kind, is_prompt)(**given, initial_state=state, output_final_state=True, state_v_first=v_first)


def reference(kind, given, state, tokens):
    """Outputs of the first tokens, and the state after them, in float64."""
    import torch

    g = {name: value[:, :tokens].double() for name, value in given.items() if name in ("q", "k", "v", "g", "beta")}
    q, k, v, decay, S = g["q"], g["k"], g["v"], g["g"], state.double()
    heads = v.shape[2]
    if kind != "mamba2":
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
        rate, bias = given["A_log"].double().exp(), given["dt_bias"].double()
        if kind == "kda":
            rate, bias = rate[:, None], bias.view(heads, -1)
        decay = -rate * torch.nn.functional.softplus(decay + bias)
    decay = decay.exp() if kind == "kda" else decay.exp()[..., None]
    outs = []
    for t in range(q.shape[1]):
        S = S * decay[:, t][..., None]
        u = v[:, t]
        if kind != "mamba2":
            u = g["beta"][:, t].sigmoid()[..., None] * (u - torch.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = S + k[:, t][..., None] * u[:, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(outs, 1), S


def error(found, right):
    return ((found.double() - right).norm() / right.norm()).item()


def check(kind, is_prompt, given, v_first, tokens):
    """The relative error of theirs."""
    batch = given["q"].shape[0]
    state = states(kind, batch, v_first)
    out, after = call(kind, is_prompt, given, state, v_first)
    right, S = reference(kind, given, state.transpose(-1, -2) if v_first else state, tokens)
    found = error(out[:, :tokens], right)
    if tokens == given["q"].shape[1]:
        found = max(found, error(after.transpose(-1, -2) if v_first else after, S))
    if not found < 2e-2:
        raise ValueError(f"is off by {found:.1e}")
    return found


def decode(kind):
    import torch

    for batch in BATCHES:
        best, how = None, ""
        for v_first in (False, True):
            layout = "v k" if v_first else "k v"
            with tried(f"{kind} {batch} {layout}", 60):
                given = inputs(kind, batch, 1)
                off = check(kind, False, given, v_first, 1)
                bytes = states(kind, batch)[0].nbytes * batch
                layers = max(2, -(-WORKING_SET // bytes))
                memory = [states(kind, batch, v_first) for _ in range(layers)]
                time_of = replayed(lambda at: call(kind, False, given, memory[at], v_first), layers, keep=True)
                print(f"  {kind} {batch} state {layout}: {time_of:.1f} us, off by {off:.1e}", flush=True)
                if best is None or time_of < best:
                    best, how = time_of, f"state {layout}"
        memory = given = None
        torch.cuda.empty_cache()
        written, kept = our_decode(kind, batch)
        note(f"decode {kind} {batch}, written", best, written, how)
        note(f"decode {kind} {batch}, 16 kept", best, kept, how)


def prompt(kinds):
    import torch

    found = {}
    for kind in kinds:
        for batch, tokens in PROMPTS:
            for v_first in (False, True):
                layout = "v k" if v_first else "k v"
                with tried(f"{kind} prompt {batch} x {tokens} {layout}", 90):
                    given = [inputs(kind, batch, tokens) for _ in range(3)]
                    memory = [states(kind, batch, v_first) for _ in range(3)]
                    off = check(kind, True, given[0], v_first, 256)
                    work = lambda at: call(kind, True, given[at], memory[at], v_first)
                    time_of = replayed(work, 3, keep=False)
                    print(f"  {kind} {batch} x {tokens} state {layout}: {time_of:.1f} us, off by {off:.1e}", flush=True)
                    if (kind, batch, tokens) not in found or time_of < found[kind, batch, tokens][0]:
                        found[kind, batch, tokens] = time_of, f"state {layout}"
                given = memory = None
                torch.cuda.empty_cache()
    own = our_memory("lin_prompt")
    for kind in kinds:
        for batch, tokens in PROMPTS:
            name = KINDS[kind][-1] + (f" {batch} x {tokens}" if batch > 1 else f" {tokens}")
            theirs, how = found.get((kind, batch, tokens), (None, ""))
            note(f"prompt {kind} {batch} x {tokens}", theirs, own.get(name), how)


def backend(name, work):
    """One of PyTorch's kernels only."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def only(at):
        with sdpa_kernel([getattr(SDPBackend, name)]):
            return work(at)

    return only


def fastest(what, ways, count, right):
    """The fastest way that is right, with `right(out)` its error."""
    import torch

    best, how, flash = None, "", ""
    for name, work in ways:
        with tried(f"{what} {name}", 60):
            off = right(work(0))
            if not off < 5e-3:
                raise ValueError(f"is off by {off:.1e}")
            time_of = replayed(work, count, keep=False)
            print(f"  {what} {name}: {time_of:.1f} us, off by {off:.1e}", flush=True)
            if best is None or time_of < best:
                best, how = time_of, name
            # It is there wherever PyTorch is.
            flash = flash or (f" (flash {time_of:.1f})" if "flash" in name.lower() else "")
        torch.cuda.empty_cache()
    return best, how if "flash" in how.lower() else how + flash


def compiled_flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=False)


def random(*shape):
    import torch

    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def decode_ways(batch, context, count, flex):
    """Inputs of one sequence for the check, and ways to call theirs: each key and value is read by four queries."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    q = random(batch, 32, 1, 128)
    k, v = ([random(batch, 8, context, 128) for _ in range(count)] for _ in range(2))
    grouped = q.view(batch, 8, 4, 128)
    ways = []
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        ways.append((f"{name} gqa", backend(name, lambda at: sdpa(q, k[at], v[at], enable_gqa=True))))
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        ways.append((f"{name} four rows", backend(name, lambda at: sdpa(grouped, k[at], v[at]))))
    if flex and batch in (1, 32):
        ways.append(("flex_attention", lambda at: flex(q, k[at], v[at], enable_gqa=True)))
    return (q, k[0], v[0]), ways


def attention(flex):
    import torch

    found = {}
    for context in CONTEXTS:
        for batch in ATTENTION_BATCHES:
            with tried(f"attention {batch} x {context}", 120):
                count = -(-WORKING_SET // (batch * context * 8 * 128 * 2 * 2))
                (q, k, v), ways = decode_ways(batch, context, count, flex)
                each = q[0].double().view(8, 4, 128)
                scores = each @ k[0].double().transpose(-1, -2) / 128**0.5
                right = (scores.softmax(-1) @ v[0].double()).view(-1)
                name = f"attention {batch} x {context}"
                found[batch, context] = fastest(name, ways, count, lambda out: error(out[0].reshape(-1), right))
            ways = q = k = v = None
            torch.cuda.empty_cache()
    own = our_memory("decode_turns")
    for context in CONTEXTS:
        for batch in ATTENTION_BATCHES:
            theirs, how = found.get((batch, context), (None, ""))
            note(f"attention {batch} x {context}", theirs, own.get(f"turns 32/8 128 f16 {batch:>3} x {context:>5}"), how)


def prompt_ways(q, k, v, context, flex):
    import torch
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    rows, keys = q[0].shape[2], k[0].shape[2]
    direct = torch.ops.aten._scaled_dot_product_flash_attention
    all_k, all_v = ([x.repeat_interleave(4, 1) for x in each] for each in (k, v))
    lower = causal_lower_right(rows, keys)
    ways = [
        ("flash gqa", lambda at: direct(q[at], k[at], v[at], 0.0, True)[0]),
        ("flash expanded", lambda at: direct(q[at], all_k[at], all_v[at], 0.0, True)[0]),
    ]
    if context == 0:
        work = lambda at: sdpa(q[at], k[at], v[at], is_causal=True, enable_gqa=True)
        ways.append(("CUDNN_ATTENTION gqa", backend("CUDNN_ATTENTION", work)))
        work = lambda at: sdpa(q[at], all_k[at], all_v[at], is_causal=True)
        ways.append(("CUDNN_ATTENTION expanded", backend("CUDNN_ATTENTION", work)))
    else:
        seen = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(context)
        work = lambda at: sdpa(q[at], all_k[at], all_v[at], attn_mask=seen)
        ways.append(("CUDNN_ATTENTION expanded, mask", backend("CUDNN_ATTENTION", work)))
        ways.append(("sdpa expanded, lower right", lambda at: sdpa(q[at], all_k[at], all_v[at], attn_mask=lower)))
    if flex:
        mask = create_block_mask(lambda b, h, i, j: i + context >= j, None, None, rows, keys, device="cuda")
        ways.append(("flex_attention", lambda at: flex(q[at], k[at], v[at], block_mask=mask, enable_gqa=True)))
    return ways


def attention_prompt(flex):
    import torch

    found, rows = {}, 2048
    for context in (0, 8192):
        with tried(f"prompt after {context}", 180):
            q = [random(1, 32, rows, 128) for _ in range(3)]
            k, v = ([random(1, 8, context + rows, 128) for _ in range(3)] for _ in range(2))
            some = [0, 1, 999, 2047]
            scores = q[0][0, :, some].double().view(8, 4, 4, 128) @ k[0][0].double()[:, None].transpose(-1, -2)
            places = torch.arange(context + rows, device="cuda")
            ends = torch.tensor(some, device="cuda")[:, None] + context
            scores = (scores / 128**0.5).masked_fill(places > ends, float("-inf"))
            right = (scores.softmax(-1) @ v[0][0].double()[:, None]).view(32, 4, 128)
            ways = prompt_ways(q, k, v, context, flex)
            found[context] = fastest(f"prompt after {context}", ways, 3, lambda out: error(out[0][:, some], right))
        ways = q = k = v = None
        torch.cuda.empty_cache()
    own = our_memory("prefill")
    for context in (0, 8192):
        theirs, how = found.get(context, (None, ""))
        note(f"attention {rows} rows after {context}", theirs, own.get(f"32/8 128 f16 {rows} after {context}"), how)


# Compiling


def warm(share, kinds):
    """Compiles this share of the variants of every kernel of theirs, into the cache of all processes."""
    import torch

    if share == "flex":
        flex = compiled_flex()
        for context in CONTEXTS:
            for batch in (1, 32):
                with tried("flex", 60):
                    q, k = random(batch, 32, 1, 128), random(batch, 8, context, 128)
                    flex(q, k, k, enable_gqa=True)
        return
    from triton.runtime import autotuner

    at, of = (int(number) for number in share.split("/"))
    before = autotuner.Autotuner.__init__

    def some(self, *args, **kwargs):
        before(self, *args, **kwargs)
        self.configs = self.configs[at::of] or self.configs[:1]

    autotuner.Autotuner.__init__ = some
    for kind in kinds:
        for is_prompt in (True, False):
            for v_first in (False, True):
                with tried(f"warm {kind}", 60):
                    given = inputs(kind, 1, 2048 if is_prompt else 1)
                    call(kind, is_prompt, given, states(kind, 1, v_first), v_first)
                    torch.cuda.synchronize()


def main():
    import torch

    kinds = os.environ.get("KINDS", "gdn,kda,mamba2").split(",")
    torch.set_grad_enabled(False)
    if sys.argv[1:2] == ["--warm"]:
        return warm(sys.argv[2], kinds)
    parts = sys.argv[1:] or PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        sys.exit(f"benches/gpu/beside.py: {unknown[0]}, expected some of {', '.join(PARTS)}")
    use_flex, start = os.environ.get("FLEX", "1") == "1", time.time()
    properties = torch.cuda.get_device_properties(0)
    versions = f"torch {torch.__version__}"
    with tried("import", 60):
        import fla
        import triton

        versions += f", triton {triton.__version__}, fla {fla.__version__}"
    print(f"{properties.name}, {versions}", flush=True)
    if os.environ.get("WARM", "1") == "1":
        of = max(1, (os.cpu_count() or 4) - 4)
        shares = [f"{at}/{of}" for at in range(of)] if {"decode", "prompt"} & set(parts) else []
        shares += ["flex"] if use_flex and "attention" in parts else []
        running = [subprocess.Popen([sys.executable, __file__, "--warm", share], stdout=subprocess.DEVNULL) for share in shares]
        deadline = time.time() + 100
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()
        print(f"compiled by {len(running)} processes in {time.time() - start:.0f} s", flush=True)
    our_memory("copy")  # The name of no table.
    flex = None
    if use_flex:
        with tried("flex_attention", 30):
            flex = compiled_flex()
    for part in parts:
        print(f"== {part}, at {time.time() - start:.0f} s", flush=True)
        with tried(part, 300):
            if part == "decode":
                for kind in kinds:
                    decode(kind)
            elif part == "prompt":
                prompt(kinds)
            elif part == "attention":
                attention(flex)
            else:
                attention_prompt(flex)
    print(INCLUDED)
    print(f"== {time.time() - start:.0f} s; microseconds of a layer (and token) on {properties.name}, {versions}")
    print(f"{'':<40} {'theirs':>9} {'ours':>9} {'ratio':>8}")
    print("\n".join(TABLE))


if __name__ == "__main__":
    main()
