// The Mamba-1 selective scan. A channel has one short row of state, which a few lanes lead through its inputs one by
// one; for spans that can be taken back a copy of it, from the checkpoint through the ring.
#include "common/order.cuh"
#include "common/step.cuh"
#include "common/warp.cuh"

static constexpr u32 THREADS = 128;
// Rows after which the state of a prompt is rounded: `CHUNK` of backend/src/step.rs.
static constexpr u32 CHUNK = 16;

struct Scan {
    const float* x;     // [rows][channels]
    const float* dt;    // [rows][channels]
    const float* b;     // [rows][key_dim]
    const float* c;     // [rows][key_dim]
    const float* d;     // [channels]
    const float* rates; // [channels][key_dim]
    float* out;         // [rows][channels]
    void* state;        // [slots][channels][key_dim]
    f16* ring_u;        // [slots][channels][ring]
    f16* ring_k;        // [slots][ring][key_dim]
    float* ring_g;      // [slots][channels][ring]
    u32 ring;
    u32 channels, key_dim;
    u32 padding;
};

static_assert(sizeof(Scan) == 104, "as in src/ops/recurrence.rs");

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
DEVICE float rounded(float x, const float*) { return x; }
DEVICE float rounded(float x, const f16*) { return to_float(to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f))); }
DEVICE void store(float* at, float x) { *at = x; }
DEVICE void store(f16* at, float x) { *at = to_f16(x); }
// What later rows find of what a row writes that stays in the ring.
DEVICE float as_entry(float x) { return rounded(x, static_cast<const f16*>(nullptr)); }

// `LANES` neighbouring lanes have a channel, each `EACH` of its columns, one from every `LANES`.
template <typename State, u32 LANES, u32 EACH> DEVICE void scan(const Scan& op, const Span& span) {
    const u32 lane = threadIdx.x % LANES;
    const u32 wanted = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const bool is_there = wanted < op.channels;
    const u32 channel = min(wanted, op.channels - 1);
    float state[EACH], rates[EACH];
    State* stored = static_cast<State*>(op.state) + (u64(span.slot) * op.channels + channel) * op.key_dim;
    auto inside = [&](u32 e) { return e * LANES + lane < op.key_dim; };
#pragma unroll
    for (u32 e = 0; e < EACH; ++e) {
        const u32 column = e * LANES + lane;
        rates[e] = inside(e) ? op.rates[u64(channel) * op.key_dim + column] : 0.0f;
        state[e] = inside(e) && !span.is_fresh() ? to_float(stored[column]) : 0.0f;
    }
    float key[EACH], read[EACH];
    // The state behind a row that writes with `key`: with that as it is, which the row itself reads, and as the ring has it.
    auto advance = [&](float size, float written, bool is_entry) {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) {
            const float fade = expf(rates[e] * size);
            read[e] = fmaf(fade, state[e], written * key[e]);
            state[e] = is_entry ? fmaf(fade, state[e], as_entry(written) * as_entry(key[e])) : read[e];
        }
    };
    auto round_state = [&] {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) state[e] = rounded(state[e], static_cast<State*>(nullptr));
    };
    auto keep_state = [&] {
        round_state();
#pragma unroll
        for (u32 e = 0; e < EACH; ++e)
            if (is_there && inside(e)) store(stored + e * LANES + lane, state[e]);
    };
    const u64 of_slot = (u64(span.slot) * op.channels + channel) * op.ring;
    f16* ring_u = op.ring_u + of_slot;
    float* ring_g = op.ring_g + of_slot;
    f16* ring_k = op.ring_k + u64(span.slot) * op.ring * op.key_dim;
    const u32 base = span.flush() ? span.before_base : span.after_base;
    const u32 held = span.flush() ? span.before_held : span.after_held;
    for (u32 j = 0; j < held; ++j) {
        const u32 row = (base + j) & (op.ring - 1);
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) key[e] = inside(e) ? to_float(ring_k[u64(row) * op.key_dim + e * LANES + lane]) : 0.0f;
        advance(ring_g[row], to_float(ring_u[row]), false);
    }
    if (span.flush()) keep_state();
    const float skip = op.d != nullptr ? op.d[channel] : 0.0f;
    for (u32 t = 0; t < span.rows; ++t) {
        const u64 row = span.first + t, at = row * op.channels + channel;
        const float x = op.x[at], size = softplus(op.dt[at]), written = size * x;
        const float *keys = op.b + row * op.key_dim, *query = op.c + row * op.key_dim;
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) key[e] = inside(e) ? keys[e * LANES + lane] : 0.0f;
        advance(size, written, !span.is_final());
        float sum = 0.0f;
#pragma unroll
        for (u32 e = 0; e < EACH; ++e)
            if (inside(e)) sum = fmaf(read[e], query[e * LANES + lane], sum);
        sum = warp_sum<LANES>(sum);
        if (lane == 0 && is_there) op.out[at] = fmaf(skip, x, sum);
        if (span.is_final()) {
            if (t % CHUNK == CHUNK - 1) round_state();
            continue;
        }
        const u32 entry = (span.after_base + span.after_held + t) & (op.ring - 1);
        if (lane == 0 && is_there) {
            ring_u[entry] = to_f16(as_entry(written));
            ring_g[entry] = size;
        }
        if (blockIdx.x == 0)
            for (u32 i = threadIdx.x; i < op.key_dim; i += THREADS) ring_k[u64(entry) * op.key_dim + i] = to_f16(as_entry(keys[i]));
    }
    if (span.is_final() && span.rows > 0) keep_state();
}

#define SCAN(name, State, LANES, EACH)                                                                                \
    KERNEL __launch_bounds__(THREADS) name(StepView step, Scan op) {                                                  \
        let_next_begin();                                                                                             \
        wait_for_inputs();                                                                                            \
        scan<State, LANES, EACH>(op, step.spans[blockIdx.z]);                                                         \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS) name##_fold(Scan op, u32 slot, u32 base, u32 held) {                            \
        Span span = {};                                                                                               \
        span.slot = slot;                                                                                             \
        span.before_base = base;                                                                                      \
        span.before_held = held;                                                                                      \
        span.flags = 1;                                                                                               \
        scan<State, LANES, EACH>(op, span);                                                                           \
    }

SCAN(mamba1_f32_16, float, 4, 4)
SCAN(mamba1_f32_64, float, 8, 8)
SCAN(mamba1_f32_256, float, 32, 8)
SCAN(mamba1_f16_16, f16, 4, 4)
SCAN(mamba1_f16_64, f16, 8, 8)
SCAN(mamba1_f16_256, f16, 32, 8)
