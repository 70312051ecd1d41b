"""EdgeInfinite's attention: sinks, a window, and what lies between them in a matrix per key head.

A sequence is cut into `sink | segments | residual | window`. Token `i` is read in stage
`N = floor((i + 1 - sink - window) / segment)` (0 where that is negative): it sees the sinks, everything from token
`sink + N * segment` on, and a memory of the `N` segments before that. All stages of a layer are computed at once:

- `in place`: a token has one hidden state, of its own stage. Its key is rotated again when the stage changes, and
  absorbed as it is. This is decoding without running anything twice.
- `recompute`: every stage runs the segment it will absorb and the window behind it again, with its own memory. Rows of
  a stage that are ahead of the window are those of decoding with recomputation, and the last stage is exactly what
  reading the same tokens as one prompt gives.
"""

import dataclasses
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PARTS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "gate")
SCORES_AT_ONCE = 1 << 28


@dataclasses.dataclass(frozen=True)
class Settings:
    sink: int = 16
    window: int = 240
    segment: int = 256
    pos_mode: str = "cache"
    rope_in_memory: bool = True

    def __post_init__(self):
        if self.sink < 0 or self.window < 1 or self.segment < 1 or self.pos_mode not in ("cache", "abs"):
            raise SystemExit(f"{self}: expected sink >= 0, window and segment >= 1, pos_mode cache or abs")

    @property
    def first_with_memory(self):
        """The first token that is read with a memory."""
        return self.sink + self.window + self.segment - 1


class Schedule:
    """Which rows are computed for `tokens` tokens, and what each of them sees.

    Rows are a prefix, computed as plain causal attention, and then `stages` groups of `queries` rows each. The rows
    that go beyond the sequence repeat its last token; nothing that counts sees them.
    """

    def __init__(self, settings, tokens, recompute):
        s, window, segment = settings.sink, settings.window, settings.segment
        self.settings, self.tokens, self.recompute = settings, tokens, recompute
        lead = window - 1
        prefix = min(tokens, s if recompute else s + lead)
        last = max(0, (tokens - s - window) // segment)
        stages = 0 if tokens <= prefix else last + 1
        self.prefix, self.stages = prefix, stages
        self.queries, self.keys = segment + (lead if recompute else 0), segment + lead
        starts = s + segment * torch.arange(stages)
        key_tokens = starts[:, None] + torch.arange(self.keys)
        query_tokens = key_tokens if recompute else key_tokens[:, lead:]
        self.row_tokens = torch.cat([torch.arange(prefix), query_tokens.flatten()]).clamp(max=max(tokens - 1, 0))
        # Rows of a recomputing stage are its own; those in place are shared.
        if recompute:
            self.key_rows = prefix + torch.arange(stages * self.keys).view(stages, self.keys)
        else:
            self.key_rows = key_tokens.clamp(max=len(self.row_tokens) - 1)
        moved = (starts - s if settings.pos_mode == "cache" else torch.zeros_like(starts))[:, None]
        self.key_positions = key_tokens - moved
        self.query_positions = query_tokens - moved
        self.absorbed = slice(0, segment)
        # A key comes into view when its token is read, the sinks always are.
        ahead = torch.arange(self.keys)[None] > torch.arange(self.queries)[:, None] + self.keys - self.queries
        self.mask = torch.cat([torch.ones(self.queries, s, dtype=torch.bool), ~ahead], 1)
        # Where the row of each token is that it is predicted from, when tokens come one by one.
        index = torch.arange(tokens)
        stage = ((index + 1 - s - window).clamp(min=0) // segment).clamp(max=max(stages - 1, 0))
        inside = index - s - stage * segment - (0 if recompute else lead)
        self.token_rows = torch.where(index < prefix, index, prefix + stage * self.queries + inside)

    def to(self, device):
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))
        return self


def sigma(x):
    return F.elu(x) + 1


class Gates(torch.nn.Module):
    """The trained part: per layer one MLP for all heads, `d -> m -> d`, and one number per head and channel."""

    def __init__(self, layers, heads, head_dim, hidden=None):
        super().__init__()
        hidden = hidden or 4 * head_dim
        self.fc1_weight = torch.nn.Parameter(torch.randn(layers, hidden, head_dim) / head_dim**0.5)
        self.fc1_bias = torch.nn.Parameter(torch.zeros(layers, hidden))
        # The model starts as what it is without a memory, and 1.8 % of that is what the memory says: nothing.
        self.fc2_weight = torch.nn.Parameter(torch.zeros(layers, head_dim, hidden))
        self.fc2_bias = torch.nn.Parameter(torch.zeros(layers, head_dim))
        self.gate = torch.nn.Parameter(torch.full((layers, heads, head_dim), -4.0))

    def mlp(self, layer, found):
        """`W2 relu(W1 x + b1) + b2` of every head."""
        hidden = F.relu(F.linear(found, self.fc1_weight[layer], self.fc1_bias[layer]))
        return F.linear(hidden, self.fc2_weight[layer], self.fc2_bias[layer])

    def mix(self, layer, found, dot):
        """`sig(g) mlp(A_mem) + (1 - sig(g)) A_dot`, all `[..., heads, head_dim]`."""
        share = torch.sigmoid(self.gate[layer])
        return share * self.mlp(layer, found) + (1 - share) * dot

    def parameters_by_decay(self):
        """Everything but the gating vectors, and those."""
        return [p for n, p in self.named_parameters() if n != "gate"], [self.gate]

    def save(self, folder, settings, model):
        """Writes the adapter as `kvas adapter` and `kvas convert --adapter` read it."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for layer in range(model.layers):
            for part in PARTS:
                tensor = getattr(self, part.replace(".", "_"))[layer]
                tensors[f"model.layers.{layer}.self_attn.mem_{part}"] = tensor.detach().float().cpu().contiguous()
        save_file(tensors, folder / WEIGHTS)
        config = {
            "adapter_type": "edgeinfinite",
            "sink_length": settings.sink,
            "window_length": settings.window,
            "segment_length": settings.segment,
            "pos_mode": settings.pos_mode,
            "rope_in_memory": settings.rope_in_memory,
            "activation": "elu1",
            "gate_scope": "head_channel",
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "head_dim": model.head_dim,
        }
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")

    @classmethod
    def load(cls, folder, model):
        """The gates and settings of an adapter that was made for `model`."""
        folder = pathlib.Path(folder)
        config = json.loads((folder / CONFIG).read_text())
        for key, own in [
            ("num_hidden_layers", model.layers),
            ("num_attention_heads", model.heads),
            ("num_key_value_heads", model.kv_heads),
            ("head_dim", model.head_dim),
            ("adapter_type", "edgeinfinite"),
            ("activation", "elu1"),
            ("gate_scope", "head_channel"),
        ]:
            if config.get(key) != own:
                raise SystemExit(f"{folder}/{CONFIG}: {key} is {config.get(key)}, expected {own}")
        tensors = load_file(folder / WEIGHTS)
        name = "model.layers.{}.self_attn.mem_{}".format
        gates = cls(model.layers, model.heads, model.head_dim, tensors[name(0, "fc1.weight")].shape[0])
        with torch.no_grad():
            for part in PARTS:
                stacked = torch.stack([tensors[name(layer, part)] for layer in range(model.layers)])
                getattr(gates, part.replace(".", "_")).copy_(stacked)
        lengths = [config[f"{part}_length"] for part in ("sink", "window", "segment")]
        return gates.to(model.device), Settings(*lengths, config["pos_mode"], config["rope_in_memory"])


def wide(x):
    """At least f32, as memories are kept."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal(q, k, v):
    """Plain causal attention of `[batch, rows, heads, head_dim]`."""
    if q.shape[1] == 0:
        return q
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def exclusive_sum(parts):
    """Sums of the parts before each, along dimension 1: nothing for the first."""
    sums = parts.cumsum(1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)


def split(x, schedule):
    """The rows of the prefix, and those of the stages as `[batch, stages, queries, ...]`."""
    rest = x[:, schedule.prefix :].unflatten(1, (schedule.stages, schedule.queries))
    return x[:, : schedule.prefix], rest


class Layer:
    """What attention needs of one layer: unrotated `q, k, v` of all rows, cut into stages and rotated."""

    def __init__(self, model, schedule, q, k, v):
        self.model, self.schedule, s = model, schedule, schedule.settings.sink
        start = torch.arange(schedule.prefix, device=q.device)
        first_q, first_k, first_v = (x[:, : schedule.prefix] for x in (q, k, v))
        self.prefix = causal(model.rotate(first_q, start), model.rotate(first_k, start), first_v)
        if schedule.stages == 0:
            return
        self.plain_q, self.plain_k, self.v = split(q, schedule)[1], k[:, schedule.key_rows], v[:, schedule.key_rows]
        self.q = model.rotate(self.plain_q, schedule.query_positions)
        self.k = model.rotate(self.plain_k, schedule.key_positions)
        sinks = model.rotate(k[:, :s], torch.arange(s, device=q.device))
        self.sinks = [x[:, None].expand(-1, schedule.stages, -1, -1, -1) for x in (sinks, v[:, :s])]

    def local(self):
        """What heads find in the sinks and in the tokens of their stage, `[batch, stages, queries, heads, d]`."""
        group = self.model.heads // self.model.kv_heads
        k, v = (torch.cat(pair, 2).flatten(0, 1) for pair in ((self.sinks[0], self.k), (self.sinks[1], self.v)))
        q, k, v = self.q.flatten(0, 1).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        dot = F.scaled_dot_product_attention(q, k, v, attn_mask=self.schedule.mask)
        return dot.transpose(1, 2).unflatten(0, self.q.shape[:2])

    def memories(self):
        """`M [batch, stages, kv_heads, d, d]` and `z [batch, stages, kv_heads, d]` before each stage, in f32."""
        rotated = self.schedule.settings.rope_in_memory
        k = sigma(wide((self.k if rotated else self.plain_k)[:, :, self.schedule.absorbed].detach()))
        v = wide(self.v[:, :, self.schedule.absorbed].detach())
        return exclusive_sum(torch.einsum("bnthd,bnthe->bnhde", k, v)), exclusive_sum(k.sum(2))

    def read(self):
        """`A_mem` of every row; nothing where there is no memory yet."""
        matrix, norm = self.memories()
        q = wide(self.q if self.schedule.settings.rope_in_memory else self.plain_q)
        q = sigma(q).unflatten(-2, (self.model.kv_heads, -1))
        found = torch.einsum("bnthgd,bnhde->bnthge", q, matrix)
        weight = torch.einsum("bnthgd,bnhd->bnthg", q, norm)
        return (found / weight.clamp(min=1e-10)[..., None]).flatten(-3, -2)

    def moments(self):
        """Centred moments of what was absorbed before each stage: count, mean key, mean value, their covariance."""
        k, v = (x[:, :, self.schedule.absorbed].double() for x in (self.k, self.v))
        size = k.shape[2]
        mean_k, mean_v = k.mean(2), v.mean(2)
        spread = torch.einsum("bnthd,bnthe->bnhde", k - mean_k[:, :, None], v - mean_v[:, :, None])
        count, out = 0, []
        key, value, both = (torch.zeros_like(part[:, 0]) for part in (mean_k, mean_v, spread))
        for stage in range(self.schedule.stages):
            out.append((key, value, both))
            dk, dv, total = mean_k[:, stage] - key, mean_v[:, stage] - value, count + size
            both = both + spread[:, stage] + count * size / total * dk[..., None] * dv[..., None, :]
            key, value, count = key + dk * size / total, value + dv * size / total, total
        counts = size * torch.arange(self.schedule.stages, device=k.device)
        return counts, *[torch.stack(parts, 1).to(wide(self.k).dtype) for parts in zip(*out)]

    def local_with_moments(self):
        """As `local`, with one more share of the softmax: all absorbed tokens by their moments, to first order."""
        counts, key, value, both = self.moments()
        scale, kv_heads = self.model.head_dim**-0.5, self.model.kv_heads
        k, v = (wide(torch.cat(pair, 2)) for pair in ((self.sinks[0], self.k), (self.sinks[1], self.v)))
        q = wide(self.q).unflatten(-2, (kv_heads, -1))
        at_once = max(1, SCORES_AT_ONCE // (len(q) * self.schedule.mask.numel() * self.model.heads))
        out = []
        for at in range(0, self.schedule.stages, at_once):
            part = slice(at, at + at_once)
            scores = scale * torch.einsum("bnthgd,bnshd->bnhgts", q[:, part], k[:, part])
            scores = scores.masked_fill(~self.schedule.mask, -torch.inf)
            mean = scale * torch.einsum("bnthgd,bnhd->bnhgt", q[:, part], key[:, part])
            absorbed = counts[part, None, None, None].to(q.dtype)
            mean = mean.masked_fill(absorbed == 0, -torch.inf)
            top = torch.maximum(scores.amax(-1), mean)
            weights, mass = (scores - top[..., None]).exp(), (mean - top).exp()
            change = scale * torch.einsum("bnthgd,bnhde->bnhgte", q[:, part], both[:, part])
            absorbed_value = absorbed[..., None] * value[:, part, :, None, None] + change
            found = torch.einsum("bnhgts,bnshe->bnhgte", weights, v[:, part]) + mass[..., None] * absorbed_value
            found = found / (weights.sum(-1) + absorbed * mass)[..., None]
            out.append(found.permute(0, 1, 4, 2, 3, 5).flatten(-3, -2))
        return torch.cat(out, 1)


def attend(model, schedule, layer, qkv, memory, gates):
    """What the heads of a layer find, `[batch, rows, heads, d]`. `memory` is one of MEMORIES."""
    parts = Layer(model, schedule, *qkv)
    if schedule.stages == 0:
        return parts.prefix
    if memory == "moments":
        mixed = parts.local_with_moments()
    else:
        mixed = parts.local()
        if memory != "none":
            found = parts.read() if memory == "gated" else torch.zeros_like(mixed)
            gated = gates.mix(layer, found, mixed)
            # No memory before the first segment was absorbed.
            mixed = torch.cat([mixed[:, :1], gated[:, 1:].to(mixed.dtype)], 1)
    return torch.cat([parts.prefix, mixed.flatten(1, 2).to(parts.prefix.dtype)], 1)


MEMORIES = ("none", "gated", "empty", "moments")


def hidden_states(model, schedule, tokens, memory="none", gates=None):
    """Hidden states of all rows of the schedule for `tokens[batch, schedule.tokens]`."""
    x = model.embed(tokens[:, schedule.row_tokens])
    for layer in range(model.layers):
        x = model.finish(layer, x, attend(model, schedule, layer, model.qkv(layer, x), memory, gates))
    return x


def full_hidden_states(model, tokens, record=None):
    """Hidden states of the plain model; `record(layer, q, k, v, mixed)` hears what every layer computes."""
    x, positions = model.embed(tokens), torch.arange(tokens.shape[1], device=tokens.device)
    for layer in range(model.layers):
        q, k, v = model.qkv(layer, x)
        mixed = causal(model.rotate(q, positions), model.rotate(k, positions), v)
        if record:
            record(layer, q, k, v, mixed)
        x = model.finish(layer, x, mixed)
    return x
