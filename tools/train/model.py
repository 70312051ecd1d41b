"""A small Qwen 3.5: gated delta layers with gated attention every fourth, and a head that predicts one token further.

Parameters have the names of the Hugging Face checkpoint, so that exporting is writing them down.
"""

import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(
    architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", dtype="bfloat16", vocab_size=6144, hidden_size=256,
    intermediate_size=704, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
    linear_conv_kernel_dim=4, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False,
    max_position_embeddings=8192, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2, partial_rotary_factor=0.25,
    rope_parameters=dict(rope_type="default", rope_theta=100000.0, partial_rotary_factor=0.25),
    mtp_num_hidden_layers=1, bos_token_id=None, pad_token_id=None)


def linear(x, *weights):
    """One product with several matrices side by side, in the precision of x."""
    return F.linear(x, torch.cat([w.to(x.dtype) for w in weights]) if len(weights) > 1 else weights[0].to(x.dtype))


class Matrix(nn.Module):
    def __init__(self, out_size, in_size, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_size, in_size) * (scale * in_size**-0.5))


class Norm(nn.Module):
    """Root mean square norm; the weight is kept as the difference from 1 unless `gated`."""

    def __init__(self, size, eps, gated=False):
        super().__init__()
        self.eps, self.gated = eps, gated
        self.weight = nn.Parameter(torch.ones(size) if gated else torch.zeros(size))

    def forward(self, x, gate=None):
        y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return y * self.weight * F.silu(gate.float()) if self.gated else y * (1 + self.weight)


class Delta(nn.Module):
    def __init__(self, c, rule):
        super().__init__()
        self.rule, self.heads, self.key_heads, self.width = rule, c["linear_num_value_heads"], c["linear_num_key_heads"], c["linear_key_head_dim"]
        d, keys, inner = c["hidden_size"], self.key_heads * self.width, self.heads * self.width
        self.keys, self.inner = keys, inner
        self.in_proj_qkv, self.in_proj_z = Matrix(2 * keys + inner, d), Matrix(inner, d)
        self.in_proj_b, self.in_proj_a = Matrix(self.heads, d, 0.5), Matrix(self.heads, d, 0.5)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.randn(2 * keys + inner, 1, c["linear_conv_kernel_dim"]) * 0.3)
        # Heads that forget within tens of tokens, and heads that keep for thousands.
        time = torch.logspace(math.log10(5e-4), -1, self.heads)
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(time)))
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 4, self.heads)))
        self.norm, self.out_proj = Norm(self.width, c["rms_norm_eps"], gated=True), Matrix(d, inner, 0.3)

    def forward(self, x):
        batch, tokens = x.shape[:2]
        sizes = [2 * self.keys + self.inner, self.inner, self.heads, self.heads]
        mixed, z, b, a = linear(x, *[m.weight for m in (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)]).split(sizes, -1)
        taps = self.conv1d.weight[:, 0].to(x.dtype)
        last = taps.shape[1] - 1
        padded = F.pad(mixed, (0, 0, last, 0))
        mixed = F.silu(sum(padded[:, i : i + tokens] * taps[:, i] for i in range(last + 1)).float())
        q, k, v = mixed.split([self.keys, self.keys, self.inner], -1)
        unit = lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
        q, k = (unit(y.reshape(batch, tokens, self.key_heads, self.width)).to(x.dtype).contiguous() for y in (q, k))
        v = v.reshape(batch, tokens, self.heads, self.width).to(x.dtype).contiguous()
        g = -self.A_log.exp() * F.softplus(a.float() + self.dt_bias)
        o = self.rule(q, k, v, g.contiguous(), b.float().sigmoid().contiguous())
        o = self.norm(o, z.reshape(batch, tokens, self.heads, self.width)).to(x.dtype)
        return linear(o.reshape(batch, tokens, self.inner), self.out_proj.weight)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.width, self.heads, self.kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj, self.k_proj, self.v_proj = Matrix(2 * self.heads * self.width, d), Matrix(self.kv * self.width, d), Matrix(self.kv * self.width, d)
        self.o_proj = Matrix(d, self.heads * self.width, 0.3)
        self.q_norm, self.k_norm = Norm(self.width, c["rms_norm_eps"]), Norm(self.width, c["rms_norm_eps"])

    def forward(self, x, angles):
        batch, tokens = x.shape[:2]
        q, k, v = linear(x, self.q_proj.weight, self.k_proj.weight, self.v_proj.weight).split(
            [2 * self.heads * self.width, self.kv * self.width, self.kv * self.width], -1)
        q, gate = q.reshape(batch, tokens, self.heads, 2 * self.width).chunk(2, -1)
        k, v = k.reshape(batch, tokens, self.kv, self.width), v.reshape(batch, tokens, self.kv, self.width)
        q, k = (rotated(norm(y), angles).to(x.dtype) for y, norm in ((q, self.q_norm), (k, self.k_norm)))
        k, v = (y.repeat_interleave(self.heads // self.kv, 2).transpose(1, 2) for y in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
        o = o * gate.float().sigmoid().to(x.dtype)
        return linear(o.reshape(batch, tokens, -1), self.o_proj.weight)


def rotated(x, angles):
    """Rotary position on the first channels, in halves."""
    cos, sin = angles
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = Matrix(f, d), Matrix(f, d), Matrix(d, f, 0.3)

    def forward(self, x):
        gate, up = linear(x, self.gate_proj.weight, self.up_proj.weight).chunk(2, -1)
        return linear((F.silu(gate.float()) * up).to(x.dtype), self.down_proj.weight)


class Layer(nn.Module):
    def __init__(self, c, kind, rule):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        if kind == "linear_attention":
            self.linear_attn = Delta(c, rule)
        else:
            self.self_attn = Attention(c)
        self.mlp = Mlp(c)

    def forward(self, x, angles, dtype):
        y = self.input_layernorm(x).to(dtype)
        x = x + (self.linear_attn(y) if hasattr(self, "linear_attn") else self.self_attn(y, angles))
        return x + self.mlp(self.post_attention_layernorm(x).to(dtype))


class Trunk(nn.Module):
    def __init__(self, c, rule):
        super().__init__()
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]) * 0.02)
        self.layers = nn.ModuleList(Layer(c, kind, rule) for kind in c["layer_types"])
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Further(nn.Module):
    """The head for one token further: from the trunk's hidden state and the next token."""

    def __init__(self, c):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.fc = Norm(d, eps), Norm(d, eps), Matrix(d, 2 * d)
        self.layers, self.norm = nn.ModuleList([Layer(c, "full_attention", None)]), Norm(d, eps)


class Model(nn.Module):
    """`rule` is the gated delta rule to use; `dtype` the precision of products."""

    def __init__(self, config=CONFIG, rule=None, dtype=torch.bfloat16):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model, self.mtp = Trunk(config, rule), Further(config)

    def angles(self, tokens, device):
        rope = self.config["rope_parameters"]
        half = int(self.config["head_dim"] * rope["partial_rotary_factor"]) // 2
        speed = rope["rope_theta"] ** (-torch.arange(half, device=device).float() / half)
        turn = torch.arange(tokens, device=device).float()[:, None] * speed
        return turn.cos(), turn.sin()

    def hidden(self, ids):
        """Hidden states after the last norm, [batch, tokens, width] in f32."""
        x, angles = F.embedding(ids, self.model.embed_tokens.weight), self.angles(ids.shape[1], ids.device)
        for layer in self.model.layers:
            x = layer(x, angles, self.dtype)
        return self.model.norm(x)

    def further(self, hidden, next_ids):
        """Hidden states for the tokens after `next_ids`, from those that predicted `next_ids`."""
        both = [self.mtp.pre_fc_norm_embedding(F.embedding(next_ids, self.model.embed_tokens.weight)), self.mtp.pre_fc_norm_hidden(hidden)]
        x = linear(torch.cat(both, -1).to(self.dtype), self.mtp.fc.weight).float()
        return self.mtp.norm(self.mtp.layers[0](x, self.angles(x.shape[1], x.device), self.dtype))

    def logits(self, hidden):
        return linear(hidden.to(self.dtype), self.model.embed_tokens.weight)

    def loss(self, ids, weights):
        """Weighted cross entropies of the next token and of the one after it; ids and weights [batch, tokens + 1]."""
        hidden = self.hidden(ids[:, :-1])
        targets, masks = ids[:, 1:], weights[:, 1:]
        first = self.entropy(hidden, targets, masks)
        # The last position has no token after the next one.
        after = torch.cat([targets[:, 1:], targets[:, -1:]], 1)
        masks = torch.cat([masks[:, 1:], torch.zeros_like(masks[:, :1])], 1)
        return first, self.entropy(self.further(hidden, targets), after, masks)

    def entropy(self, hidden, targets, masks):
        """Weighted mean of the cross entropies of targets after hidden states."""
        logits = self.logits(hidden).flatten(0, 1).float()
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return (losses * masks.flatten()).sum() / masks.sum()


def export(model, folder, tokenizer_file, template):
    """Writes a checkpoint in Hugging Face layout, bf16."""
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    tokens = {t["content"]: t["id"] for t in json.load(open(tokenizer_file))["added_tokens"]}
    end = tokens["<|im_end|>"]
    save_file({name: p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in model.named_parameters()},
              f"{folder}/model.safetensors", metadata={"format": "pt"})
    write = lambda name, value: open(f"{folder}/{name}", "w").write(json.dumps(value, indent=1) + "\n")
    write("config.json", {**model.config, "eos_token_id": end})
    write("generation_config.json", dict(eos_token_id=end, do_sample=True, temperature=0.3, top_k=20, top_p=0.9))
    write("tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=8192, eos_token="<|im_end|>",
                                        pad_token="<|endoftext|>", bos_token=None))
    open(f"{folder}/tokenizer.json", "w").write(open(tokenizer_file).read())
    open(f"{folder}/chat_template.jinja", "w").write(template)


TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
