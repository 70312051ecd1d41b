"""The gated delta rule over whole sequences: a naive recurrence, and chunks of 64 tokens in four Triton kernels.

Shapes: queries and keys [batch, tokens, key heads, 128], normalised; values [batch, tokens, value heads, 128];
log decays and write strengths [batch, tokens, value heads], f32. Value head h reads key head h // (value heads / key
heads). Within a chunk, with D[i, j] = exp(G_i - G_j) of the cumulated log decays G:

    A = strictly lower part of beta_i (k_i . k_j) D[i, j]        T = (1 + A)^-1
    u = T beta (v - exp(G) k S)                                  what the chunk writes
    o = exp(G) q S + lower(q k' D) u                             what it reads
    S <- exp(G_last) S + (exp(G_last - G) k)' u
"""

import torch
import triton
import triton.language as tl

CHUNK = 64
WIDTH = 128


def naive(q, k, v, g, beta):
    """One token after the other, in the precision of the inputs."""
    ratio = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(ratio, 2) for x in (q, k))
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        write = beta[:, t][..., None] * (v[:, t] - read)
        state = state + k[:, t][..., None] * write[..., None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * k.shape[-1] ** -0.5)
    return torch.stack(out, 1)


@triton.jit
def _triangle(k_ptr, g_ptr, beta_ptr, sums_ptr, t_ptr, tokens, HV: tl.constexpr, HK: tl.constexpr, C: tl.constexpr, W: tl.constexpr):
    """Cumulated log decays and T of one chunk of one head. T by blocks of doubling size, from the inverse of their halves:
    the inverse of [[P, 0], [L, Q]] is X - X [[0, 0], [L, 0]] X with X the inverses of P and Q on the diagonal."""
    n, b, h = tl.program_id(0), tl.program_id(1) // HV, tl.program_id(1) % HV
    i, d = tl.arange(0, C), tl.arange(0, W)
    rows = b * tokens + n * C + i
    k = tl.load(k_ptr + (rows * HK + h // (HV // HK))[:, None] * W + d[None, :])
    sums = tl.cumsum(tl.load(g_ptr + rows * HV + h), 0)
    beta = tl.load(beta_ptr + rows * HV + h)
    tl.store(sums_ptr + rows * HV + h, sums)
    below = i[:, None] > i[None, :]
    decay = tl.exp(tl.where(below, sums[:, None] - sums[None, :], 0.0))
    a = tl.where(below, tl.dot(k, tl.trans(k)) * beta[:, None] * decay, 0.0)
    x = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for level in tl.static_range(6):
        block = i // (1 << level)
        half = ((block % 2) == 1)[:, None] & (block[None, :] == block[:, None] - 1)
        low = tl.where(half, a, 0.0)
        x -= tl.dot(tl.dot(x, low, input_precision="tf32x3"), x, input_precision="tf32x3")
    tl.store(t_ptr + (tl.program_id(1) * tokens + n * C + i)[:, None] * C + i[None, :], x.to(t_ptr.dtype.element_ty))


@triton.jit
def _forward(q_ptr, k_ptr, v_ptr, sums_ptr, beta_ptr, t_ptr, o_ptr, u_ptr, s_ptr, tokens, scale,
             HV: tl.constexpr, HK: tl.constexpr, C: tl.constexpr, W: tl.constexpr, V: tl.constexpr):
    """Chunk after chunk of V value channels of one head."""
    b, h = tl.program_id(1) // HV, tl.program_id(1) % HV
    i, d, e = tl.arange(0, C), tl.arange(0, W), tl.program_id(0) * V + tl.arange(0, V)
    chunks = tokens // C
    state = tl.zeros([W, V], tl.float32)
    for n in range(chunks):
        rows = b * tokens + n * C + i
        keys = (rows * HK + h // (HV // HK))[:, None] * W + d[None, :]
        values = (rows * HV + h)[:, None] * W + e[None, :]
        k, q, v = tl.load(k_ptr + keys), tl.load(q_ptr + keys), tl.load(v_ptr + values)
        sums, beta = tl.load(sums_ptr + rows * HV + h), tl.load(beta_ptr + rows * HV + h)
        last = tl.sum(tl.where(i == C - 1, sums, 0.0), 0)
        t = tl.load(t_ptr + (tl.program_id(1) * tokens + n * C + i)[:, None] * C + i[None, :])
        low = state.to(k.dtype)
        tl.store(s_ptr + ((tl.program_id(1) * chunks + n) * W + d)[:, None] * W + e[None, :], low)
        grown = tl.exp(sums)[:, None]
        missing = beta[:, None] * (v - grown * tl.dot(k, low))
        u = tl.dot(t, missing.to(k.dtype)).to(k.dtype)
        tl.store(u_ptr + values, u)
        at = i[:, None] >= i[None, :]
        decay = tl.exp(tl.where(at, sums[:, None] - sums[None, :], 0.0))
        p = tl.where(at, tl.dot(q, tl.trans(k)) * decay * scale, 0.0).to(k.dtype)
        o = tl.dot(q, low) * (grown * scale) + tl.dot(p, u)
        tl.store(o_ptr + values, o.to(o_ptr.dtype.element_ty))
        kept = (k * tl.exp(last - sums)[:, None]).to(k.dtype)
        state = state * tl.exp(last) + tl.dot(tl.trans(kept), u)


@triton.jit
def _backward_states(q_ptr, k_ptr, sums_ptr, beta_ptr, t_ptr, do_ptr, db_ptr, ds_ptr, tokens, scale,
                     HV: tl.constexpr, HK: tl.constexpr, C: tl.constexpr, W: tl.constexpr, V: tl.constexpr):
    """From the last chunk to the first: gradients of states at the ends of chunks, and of what T is applied to."""
    b, h = tl.program_id(1) // HV, tl.program_id(1) % HV
    i, d, e = tl.arange(0, C), tl.arange(0, W), tl.program_id(0) * V + tl.arange(0, V)
    chunks = tokens // C
    ds = tl.zeros([W, V], tl.float32)
    for back in range(chunks):
        n = chunks - 1 - back
        rows = b * tokens + n * C + i
        keys = (rows * HK + h // (HV // HK))[:, None] * W + d[None, :]
        values = (rows * HV + h)[:, None] * W + e[None, :]
        k, q, do = tl.load(k_ptr + keys), tl.load(q_ptr + keys), tl.load(do_ptr + values)
        sums, beta = tl.load(sums_ptr + rows * HV + h), tl.load(beta_ptr + rows * HV + h)
        last = tl.sum(tl.where(i == C - 1, sums, 0.0), 0)
        t = tl.load(t_ptr + (tl.program_id(1) * tokens + n * C + i)[:, None] * C + i[None, :])
        low = ds.to(k.dtype)
        tl.store(ds_ptr + ((tl.program_id(1) * chunks + n) * W + d)[:, None] * W + e[None, :], low)
        at = i[:, None] >= i[None, :]
        decay = tl.exp(tl.where(at, sums[:, None] - sums[None, :], 0.0))
        p = tl.where(at, tl.dot(q, tl.trans(k)) * decay * scale, 0.0).to(k.dtype)
        kept = (k * tl.exp(last - sums)[:, None]).to(k.dtype)
        du = tl.dot(tl.trans(p), do) + tl.dot(kept, low)
        db = tl.dot(tl.trans(t), du.to(k.dtype))
        tl.store(db_ptr + values, db.to(db_ptr.dtype.element_ty))
        grown = tl.exp(sums)[:, None]
        read = (-(grown * beta[:, None]) * db).to(k.dtype)
        seen = (q * (grown * scale)).to(k.dtype)
        ds = ds * tl.exp(last) + tl.dot(tl.trans(seen), do) + tl.dot(tl.trans(k), read)


@triton.jit
def _backward_chunks(q_ptr, k_ptr, v_ptr, sums_ptr, beta_ptr, do_ptr, u_ptr, s_ptr, db_ptr, ds_ptr,
                     dq_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, tokens, scale,
                     HV: tl.constexpr, HK: tl.constexpr, C: tl.constexpr, W: tl.constexpr, V: tl.constexpr):
    """Gradients of the inputs of one chunk of one head; those of keys and queries by value head."""
    n, b, h = tl.program_id(0), tl.program_id(1) // HV, tl.program_id(1) % HV
    i, d = tl.arange(0, C), tl.arange(0, W)
    chunks = tokens // C
    rows = b * tokens + n * C + i
    keys = (rows * HK + h // (HV // HK))[:, None] * W + d[None, :]
    k, q = tl.load(k_ptr + keys), tl.load(q_ptr + keys)
    sums, beta = tl.load(sums_ptr + rows * HV + h), tl.load(beta_ptr + rows * HV + h)
    last = tl.sum(tl.where(i == C - 1, sums, 0.0), 0)
    grown, kept = tl.exp(sums), tl.exp(last - sums)
    dq, dk = tl.zeros([C, W], tl.float32), tl.zeros([C, W], tl.float32)
    dp, da = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    dsums, dbeta = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    dlast = 0.0
    for part in range(W // V):
        e = part * V + tl.arange(0, V)
        values = (rows * HV + h)[:, None] * W + e[None, :]
        cells = ((tl.program_id(1) * chunks + n) * W + d)[:, None] * W + e[None, :]
        v, u, do, db = tl.load(v_ptr + values), tl.load(u_ptr + values), tl.load(do_ptr + values), tl.load(db_ptr + values)
        s, ds = tl.load(s_ptr + cells), tl.load(ds_ptr + cells)
        ks = tl.dot(k, s)
        dbeta += tl.sum(db * (v - grown[:, None] * ks), 1)
        dr = beta[:, None] * db
        tl.store(dv_ptr + values, dr.to(dv_ptr.dtype.element_ty))
        dks = -grown[:, None] * dr
        dsums += tl.sum(dks * ks, 1)
        dq += tl.dot(do, tl.trans(s)) * (grown * scale)[:, None]
        dk += tl.dot(dks.to(k.dtype), tl.trans(s))
        wrote = tl.dot(u, tl.trans(ds)) * kept[:, None]
        dk += wrote
        moved = tl.sum(wrote * k, 1)
        dsums -= moved
        dlast += tl.sum(moved, 0) + tl.exp(last) * tl.sum(tl.sum(s.to(tl.float32) * ds.to(tl.float32), 1), 0)
        dp += tl.dot(do, tl.trans(u))
        da -= tl.dot(db, tl.trans(u))
    dsums += tl.sum(dq * q, 1)
    at = i[:, None] >= i[None, :]
    decay = tl.exp(tl.where(at, sums[:, None] - sums[None, :], 0.0))
    dp = tl.where(at, dp * decay * scale, 0.0)
    moved = dp * tl.dot(q, tl.trans(k))
    dsums += tl.sum(moved, 1) - tl.sum(moved, 0)
    dp_low = dp.to(k.dtype)
    dq += tl.dot(dp_low, k)
    dk += tl.dot(tl.trans(dp_low), q)
    da = tl.where(i[:, None] > i[None, :], da * decay, 0.0)
    moved = da * tl.dot(k, tl.trans(k))
    dbeta += tl.sum(moved, 1)
    moved = moved * beta[:, None]
    dsums += tl.sum(moved, 1) - tl.sum(moved, 0)
    da_low = (da * beta[:, None]).to(k.dtype)
    dk += tl.dot(da_low, k) + tl.dot(tl.trans(da_low), k)
    dsums += tl.where(i == C - 1, dlast, 0.0)
    dg = tl.sum(dsums, 0) - tl.cumsum(dsums, 0) + dsums
    outs = (rows * HV + h)[:, None] * W + d[None, :]
    tl.store(dq_ptr + outs, dq.to(dq_ptr.dtype.element_ty))
    tl.store(dk_ptr + outs, dk.to(dk_ptr.dtype.element_ty))
    tl.store(dg_ptr + rows * HV + h, dg)
    tl.store(dbeta_ptr + rows * HV + h, dbeta)


def _sizes(k, v):
    batch, tokens, heads = v.shape[:3]
    assert tokens % CHUNK == 0 and k.shape[-1] == v.shape[-1] == WIDTH
    return batch, tokens, heads, dict(HV=heads, HK=k.shape[2], C=CHUNK, W=WIDTH)


@torch.library.custom_op("kvas::delta_forward", mutates_args=())
def delta_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, tokens, heads, names = _sizes(k, v)
    chunks = tokens // CHUNK
    sums, t = torch.empty_like(g), k.new_empty(batch * heads, tokens, CHUNK)
    o, u, s = torch.empty_like(v), torch.empty_like(v), k.new_empty(batch * heads, chunks, WIDTH, WIDTH)
    _triangle[(chunks, batch * heads)](k, g, beta, sums, t, tokens, **names, num_warps=4)
    _forward[(2, batch * heads)](q, k, v, sums, beta, t, o, u, s, tokens, WIDTH**-0.5, **names, V=64, num_warps=4, num_stages=2)
    return o, sums, t, u, s


@delta_forward.register_fake
def _(q, k, v, g, beta):
    batch, tokens, heads, _ = _sizes(k, v)
    t, s = k.new_empty(batch * heads, tokens, CHUNK), k.new_empty(batch * heads, tokens // CHUNK, WIDTH, WIDTH)
    return torch.empty_like(v), torch.empty_like(g), t, torch.empty_like(v), s


@torch.library.custom_op("kvas::delta_backward", mutates_args=())
def delta_backward(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, sums: torch.Tensor, t: torch.Tensor, u: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, tokens, heads, names = _sizes(k, v)
    chunks, ratio = tokens // CHUNK, heads // k.shape[2]
    db, ds = torch.empty_like(v), torch.empty_like(s)
    _backward_states[(2, batch * heads)](q, k, sums, beta, t, do, db, ds, tokens, WIDTH**-0.5, **names, V=64, num_warps=4, num_stages=2)
    dq, dk, dv = torch.empty_like(v), torch.empty_like(v), torch.empty_like(v)
    dg, dbeta = torch.empty_like(sums), torch.empty_like(beta)
    _backward_chunks[(chunks, batch * heads)](q, k, v, sums, beta, do, u, s, db, ds, dq, dk, dv, dg, dbeta, tokens, WIDTH**-0.5, **names, V=64, num_warps=8, num_stages=1)
    dq, dk = (x.view(batch, tokens, k.shape[2], ratio, WIDTH).sum(3) for x in (dq, dk))
    return dq, dk, dv, dg, dbeta


@delta_backward.register_fake
def _(do, q, k, v, beta, sums, t, u, s):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(sums), torch.empty_like(beta)


def _keep(ctx, inputs, output):
    q, k, v, _, beta = inputs
    _, sums, t, u, s = output
    ctx.save_for_backward(q, k, v, beta, sums, t, u, s)


def _gradients(ctx, do, *_unused):
    return delta_backward(do.contiguous(), *ctx.saved_tensors)


delta_forward.register_autograd(_gradients, setup_context=_keep)


def delta(q, k, v, g, beta):
    """The same as `naive` in chunks; inputs contiguous, on a GPU, tokens a multiple of 64."""
    return delta_forward(q, k, v, g, beta)[0]
