"""A transformer of the Llama layout, read from a Hugging Face folder, with attention left to the caller.

Every function takes activations `[batch, rows, width]`. Queries and keys come out unrotated, since what position a
key has depends on when it is read (memory.py).
"""

import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Llama:
    """The frozen weights of a model and the parts of its layers."""

    def __init__(self, folder, device="cpu", dtype=torch.float32):
        folder = pathlib.Path(folder)
        config = json.loads((folder / "config.json").read_text())
        if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
            raise SystemExit(f"{folder}/config.json: expected model_type llama without biases")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise SystemExit(f"{folder}/config.json: rope_type {rope['rope_type']}, expected default")
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config["rms_norm_eps"]
        self.base = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
        self.vocab = config["vocab_size"]
        self.device, self.dtype = device, dtype
        weights = load_file(folder / "model.safetensors")
        self.w = {name: tensor.to(device=device, dtype=dtype) for name, tensor in weights.items()}
        self.table = self.w["model.embed_tokens.weight"]
        self.head = self.w.get("lm_head.weight", self.table)

    def norm(self, x, name):
        return F.rms_norm(x, (x.shape[-1],), self.w[name], self.eps)

    def embed(self, tokens):
        return F.embedding(tokens, self.table)

    def qkv(self, layer, x):
        """`[batch, rows, heads, head_dim]` of queries, keys and values, unrotated."""
        at = f"model.layers.{layer}."
        normed = self.norm(x, at + "input_layernorm.weight")
        parts = [F.linear(normed, self.w[f"{at}self_attn.{part}_proj.weight"]) for part in "qkv"]
        return [part.unflatten(-1, (-1, self.head_dim)) for part in parts]

    def finish(self, layer, x, mixed):
        """What the layer makes of its input and of what its heads found, `[batch, rows, heads, head_dim]`."""
        at = f"model.layers.{layer}."
        x = x + F.linear(mixed.flatten(-2).to(x.dtype), self.w[at + "self_attn.o_proj.weight"])
        normed = self.norm(x, at + "post_attention_layernorm.weight")
        gate, up = (F.linear(normed, self.w[f"{at}mlp.{part}_proj.weight"]) for part in ("gate", "up"))
        return x + F.linear(F.silu(gate) * up, self.w[at + "mlp.down_proj.weight"])

    def logits(self, x):
        return F.linear(self.norm(x, "model.norm.weight"), self.head)

    def rotate(self, x, positions):
        """Rotates `[..., rows, heads, head_dim]` to `positions[..., rows]`; halves are pairs."""
        half = self.head_dim // 2
        frequencies = self.base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
        angles = positions.to(x.device, torch.float64)[..., None, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
