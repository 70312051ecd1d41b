"""Compares the kernels of delta.py with the naive recurrence, outputs and gradients: run on a GPU, or with
TRITON_INTERPRET=1 on a CPU."""

import sys

import torch
import torch.nn.functional as F

from delta import delta_backward, delta_forward, naive


def check(device, batch=2, tokens=256, key_heads=2, value_heads=4, alike=0.0, dtype=torch.bfloat16):
    """Largest relative error of outputs and gradients; `alike` mixes one direction into all keys."""
    torch.manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float64)
    common = draw(1, 1, key_heads, 128) * alike
    q, k = F.normalize(draw(batch, tokens, key_heads, 128), dim=-1), F.normalize(draw(batch, tokens, key_heads, 128) + common, dim=-1)
    v, do = draw(batch, tokens, value_heads, 128), draw(batch, tokens, value_heads, 128)
    g, beta = -draw(batch, tokens, value_heads).exp() * 0.05, draw(batch, tokens, value_heads).sigmoid()
    inputs = [x.to(dtype) for x in (q, k, v)] + [x.float() for x in (g, beta)]
    exact = [x.double().requires_grad_() for x in inputs]
    out = naive(*exact)
    wanted = torch.autograd.grad(out, exact, do.to(dtype).double())
    q, k, v, g, beta = inputs
    o, sums, t, u, s = delta_forward(*inputs)
    got = delta_backward(do.to(dtype), q, k, v, beta, sums, t, u, s)
    error = lambda a, b: ((a.double() - b).norm() / b.norm()).item()
    errors = dict(zip(["o", "dq", "dk", "dv", "dg", "dbeta"], [error(o, out)] + [error(a, b) for a, b in zip(got, wanted)]))
    print(f"alike {alike}:", " ".join(f"{name} {value:.1e}" for name, value in errors.items()), flush=True)
    return max(errors.values())


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    dtype, bound = (torch.float32, 2e-3) if device == "cpu" else (torch.bfloat16, 2e-2)
    size = dict(batch=1, tokens=128) if device == "cpu" else {}
    worst = max(check(device, alike=alike, dtype=dtype, **size) for alike in (0.0, 10.0))
    assert worst < bound, worst
