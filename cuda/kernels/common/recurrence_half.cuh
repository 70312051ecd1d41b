// Recurrences of spans of one row with a decay per head, whose states are f16: these are the left side of a matrix
// instruction as they are stored. On the right are the key and the query, each as the sum of two f16. A warp has 16 rows of
// the state of a value head, and brings them to shared memory; one more warp has the inputs and the entries of the ring.
#pragma once
#include "common/mma.cuh"
#include "common/recurrence.cuh"

template <u32 KIND, u32 QUADS> struct Half {
    static constexpr u32 COLUMNS = 32 * QUADS, STRIDE = COLUMNS + 8;
    static constexpr bool IS_DELTA = KIND == DELTA;
    static constexpr u32 PIECES = (COLUMNS + 127) / 128; // of a row: four neighbouring columns of a lane each

    // Followed by what 16 entries wrote, `[CHUNK][rows + 8]`, and the state, `[rows][STRIDE]`, as f16.
    struct Shared {
        u16 inputs[4][STRIDE];         // the key, what that lacks, the query, what that lacks
        u16 entries[2][CHUNK][STRIDE]; // keys of entries; when they are put into the state faded, and what they lack then
        float key[COLUMNS];
        u16 products[4][CHUNK]; // of entries with the inputs
        float unit, fade;       // what products are divided by; how much entries fade the state
        float decay, strength, own, query_unit;
        u32 padding[2];
    };

    const Recurrence& op;
    const Span& span;
    Shared& shared;
    const u32 head, key_head, warps, first_row, rows_left; // warps that have rows of the state; of the warp
    u16 *const written, *const state;                      // of the warp

    DEVICE Half(const Recurrence& op, const Span& span, Shared& shared)
        : op(op), span(span), shared(shared), head(blockIdx.y), key_head(op.key_head(head)), warps(blockDim.x / 32 - 1),
          first_row(16 * (blockIdx.x * warps + warp_id())),
          rows_left(op.value_dim > first_row ? op.value_dim - first_row : 0),
          written(reinterpret_cast<u16*>(&shared + 1) + 16 * warp_id()),
          state(reinterpret_cast<u16*>(&shared + 1) + CHUNK * written_stride() + 16 * warp_id() * STRIDE) {}

    DEVICE u32 written_stride() const { return 16 * warps + 8; }
    DEVICE bool has_inputs() const { return warp_id() == warps; }
    DEVICE u32 group() const { return lane_id() >> 2; }
    DEVICE u32 quarter() const { return lane_id() & 3; }
    DEVICE u32 ring_row(u32 row) const { return row & (op.ring - 1); }
    DEVICE f16* state_at() const {
        return static_cast<f16*>(op.state) + ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * op.key_dim;
    }
    DEVICE f16* ring_u() const {
        return static_cast<f16*>(op.ring_u) + (u64(span.slot) * op.value_heads + head) * op.ring * op.value_dim + first_row;
    }
    DEVICE f16* ring_k() const {
        return static_cast<f16*>(op.ring_k) + (u64(span.slot) * op.key_heads + key_head) * op.ring * op.key_dim;
    }
    DEVICE float* ring_g() const { return op.ring_g + (u64(span.slot) * op.value_heads + head) * op.ring; }

    // Eight elements to shared memory; those from `left` on are zeros.
    static DEVICE void copy_eight(u16* to, const f16* from, u32 left, bool is_whole) {
        if (is_whole) return copy_16_async(to, from, left > 0);
#pragma unroll 1
        for (u32 e = 0; e < 8; ++e) to[e] = e < left ? from[e].bits : 0;
    }

    // The warp asks for 16 rows: row `i` begins at `offset(i)` of `from` and has `len(i)` elements.
    template <typename Offset, typename Len>
    static DEVICE void request(u16* to, const f16* from, bool is_whole, Offset offset, Len len) {
        constexpr u32 EIGHTS = COLUMNS / 8;
#pragma unroll
        for (u32 n = 0; n < 16 * EIGHTS / 32; ++n) {
            const u32 at = 32 * n + lane_id(), row = at / EIGHTS, column = at % EIGHTS * 8, left = len(row);
            copy_eight(to + row * STRIDE + column, from + (column < left ? offset(row) + column : 0), left > column ? left - column : 0, is_whole);
        }
    }

    DEVICE void request_state() {
        const u32 key_dim = op.key_dim, rows = span.is_fresh() ? 0 : rows_left;
        request(state, state_at(), (key_dim & 7) == 0, [&](u32 row) { return row * key_dim; }, [&](u32 row) { return row < rows ? key_dim : 0; });
    }

    // Keys of `count` entries, the first of them in `entry`, or what they wrote.
    DEVICE void request_entries(u32 entry, u32 count) {
        const u32 key_dim = op.key_dim;
        if (has_inputs())
            return request(shared.entries[0][0], ring_k(), (key_dim & 7) == 0, [&](u32 j) { return ring_row(entry + j) * key_dim; },
                           [&](u32 j) { return j < count ? key_dim : 0; });
        const u32 j = lane_id() >> 1, row = 8 * (lane_id() & 1), left = j < count && row < rows_left ? rows_left - row : 0;
        copy_eight(written + j * written_stride() + row, ring_u() + (left > 0 ? ring_row(entry + j) * op.value_dim + row : 0), left, (op.value_dim & 7) == 0);
    }

    // Of entry `count - 1 - lane` of these.
    DEVICE float request_decay(u32 entry, u32 count) const {
        const u32 i = lane_id() & 15;
        return i < count ? ring_g()[ring_row(entry + count - 1 - i)] : 0.0f;
    }

    // Of lane `i`: how much entry `i` of 16 fades until the newest of all, `carry` being that of those that are newer than
    // these, which are added to it; `sum` is what `request_decay` gave.
    static DEVICE float factor_of(float sum, u32 count, float& carry) {
        const u32 i = lane_id() & 15;
#pragma unroll
        for (u32 offset = 1; offset < 16; offset *= 2) {
            const float newer = __shfl_up_sync(ALL_LANES, sum, offset, 16);
            sum += i >= offset ? newer : 0.0f;
        }
        const float before = __shfl_up_sync(ALL_LANES, sum, 1, 16), factor = expf(carry + (i > 0 ? before : 0.0f));
        carry += __shfl_sync(ALL_LANES, sum, 15, 16);
        return __shfl_sync(ALL_LANES, factor, (count - 1 - i) & 15, 16);
    }

    // Powers of two: 1 for a normalised key.
    static DEVICE float unit_of(float most) {
        const u32 bits = __float_as_uint(most) & 0x7f800000u;
        return IS_DELTA || bits < 0x10000000u || bits > 0x70000000u ? 1.0f : __uint_as_float(bits);
    }

    static DEVICE void split_half(float x, u16& high, u16& low) {
        const f16 rounded = to_f16(x);
        high = rounded.bits;
        low = to_f16(x - to_float(rounded)).bits;
    }

    // One warp makes what all of them need of the row, and appends to the ring.
    DEVICE void open_inputs() {
        const float* inputs = op.inputs + u64(span.first) * op.columns;
        const float *keys = inputs + op.keys_at + key_head * op.key_dim, *queries = inputs + op.queries_at + key_head * op.key_dim;
        const u32 entry = ring_row(span.after_base + span.after_held);
        const u64 gate = u64(span.first) * op.value_heads + head;
        const bool has_gates = !span.is_final() && blockIdx.x == 0;
        const float step = op.steps[gate], bias = op.bias != nullptr ? op.bias[head] : 0.0f, rate = op.a[head];
        const float beta = IS_DELTA ? op.beta[gate] : 0.0f;
        float k[PIECES][4], q[PIECES][4], kk = 0.0f, qq = 0.0f, own = 0.0f;
        const bool is_whole = ((op.columns | op.keys_at | op.queries_at | op.key_dim) & 3) == 0;
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n) {
            const u32 column = 128 * n + 4 * lane_id();
            if (is_whole && column < op.key_dim) {
                const float4 x = *reinterpret_cast<const float4*>(keys + column), y = *reinterpret_cast<const float4*>(queries + column);
                k[n][0] = x.x, k[n][1] = x.y, k[n][2] = x.z, k[n][3] = x.w;
                q[n][0] = y.x, q[n][1] = y.y, q[n][2] = y.z, q[n][3] = y.w;
            } else {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    k[n][e] = column + e < op.key_dim ? keys[column + e] : 0.0f;
                    q[n][e] = column + e < op.key_dim ? queries[column + e] : 0.0f;
                }
            }
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                own = fmaf(k[n][e], q[n][e], own);
                kk = IS_DELTA ? fmaf(k[n][e], k[n][e], kk) : fmaxf(kk, fabsf(k[n][e]));
                qq = IS_DELTA ? fmaf(q[n][e], q[n][e], qq) : fmaxf(qq, fabsf(q[n][e]));
            }
        }
        own = warp_sum(own);
        float to_key = 1.0f, to_query, query_unit = op.query_scale;
        if constexpr (IS_DELTA) {
            to_key = rsqrtf(warp_sum(kk) + op.norm_eps);
            to_query = rsqrtf(warp_sum(qq) + op.norm_eps);
            own *= to_key * to_query * op.query_scale;
        } else {
            query_unit = unit_of(warp_max(qq));
            to_query = 1.0f / query_unit;
        }
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 column = 128 * n + 4 * lane_id() + e;
                if (column >= COLUMNS) continue;
                const float x = k[n][e] * to_key;
                split_half(x, shared.inputs[0][column], shared.inputs[1][column]);
                split_half(q[n][e] * to_query, shared.inputs[2][column], shared.inputs[3][column]);
                shared.key[column] = x;
                if (has_gates && column < op.key_dim && op.is_first_of_key_head(head)) store_rounded(ring_k() + entry * op.key_dim + column, x);
            }
        if (lane_id() == 0) {
            const float size = softplus(step + bias), g = rate * size;
            shared.decay = expf(g);
            shared.strength = IS_DELTA ? sigmoid(beta) : size;
            shared.own = own;
            shared.query_unit = query_unit;
            if (has_gates) ring_g()[entry] = g;
        }
    }

    // Products of 16 rows in shared memory with the inputs.
    DEVICE void times_inputs(const u16* rows, float (&sums)[4]) const {
        const u16* left = rows + ((lane_id() >> 3 & 1) * 8 + (lane_id() & 7)) * STRIDE + (lane_id() >> 4) * 8;
        const u16* right = shared.inputs[lane_id() & 3] + (lane_id() >> 3) * 8;
        float more[4] = {};
#pragma unroll
        for (u32 at = 0; at < COLUMNS; at += 32) {
            u32 a[4], b[4], c[4];
            load_matrices(b, right + at);
            load_matrices(a, left + at);
            load_matrices(c, left + at + 16);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            mma_f16(sums, a, first);
            mma_f16(more, c, second);
        }
#pragma unroll
        for (u32 e = 0; e < 4; ++e) sums[e] += more[e];
    }

    // What 16 entries wrote, on the left of a matrix instruction.
    DEVICE void load_written(u32 (&a)[4]) const {
        load_matrices_transposed(a, written + ((lane_id() >> 4) * 8 + (lane_id() & 7)) * written_stride() + (lane_id() >> 3 & 1) * 8);
    }

    // Products of 16 entries with the inputs, faded.
    DEVICE void relate(float factor) {
        float sums[4] = {};
        times_inputs(shared.entries[0][0], sums);
        const float first = __shfl_sync(ALL_LANES, factor, group()), second = __shfl_sync(ALL_LANES, factor, group() + 8);
        float x[2] = {(sums[0] + sums[1]) * first, (sums[2] + sums[3]) * second};
        float unit = 1.0f;
        if constexpr (!IS_DELTA) {
            unit = unit_of(warp_max(quarter() == 1 ? fmaxf(fabsf(x[0]), fabsf(x[1])) : 0.0f));
            x[0] /= unit, x[1] /= unit;
        }
        if (quarter() < 2) {
            const u32 to = 2 * quarter();
            split_half(x[0], shared.products[to][group()], shared.products[to + 1][group()]);
            split_half(x[1], shared.products[to][group() + 8], shared.products[to + 1][group() + 8]);
        }
        if (lane_id() == 0) shared.unit = unit;
    }

    // state = by state + sums, of tiles `column..column + 8` of the warp.
    DEVICE void update(u32 column, float by, const float (&sums)[4]) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            u32* at = reinterpret_cast<u32*>(state + (group() + 8 * half) * STRIDE + column + 2 * quarter());
            const f16* type = nullptr;
            const float low = fmaf(by, low_f16(*at), sums[2 * half]), high = fmaf(by, high_f16(*at), sums[2 * half + 1]);
            *at = pack_f16(limited(low, type), limited(high, type));
        }
    }

    DEVICE void store_state() {
        __syncwarp();
        constexpr u32 EIGHTS = COLUMNS / 8;
#pragma unroll 4
        for (u32 at = lane_id(); at < 16 * EIGHTS; at += 32) {
            const u32 row = at / EIGHTS, column = at % EIGHTS * 8;
            const u16* from = state + row * STRIDE + column;
            f16* to = state_at() + row * op.key_dim + column;
            if (row >= rows_left) continue;
            if ((op.key_dim & 7) == 0) {
                if (column < op.key_dim) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
                continue;
            }
#pragma unroll 1
            for (u32 e = 0; e < 8 && column + e < op.key_dim; ++e) to[e] = f16{from[e]};
        }
        __syncwarp();
    }

    // Puts all entries into the state, the oldest first, and stores it. The first ones are there.
    DEVICE void fold(u32 base, u32 held, float decay) {
#pragma unroll 1
        for (u32 from = 0; from < held; from += CHUNK) {
            const u32 count = min(held - from, CHUNK);
            if (from > 0) {
                __syncthreads();
                request_entries(base + from, count);
                copies_commit();
                decay = request_decay(base + from, count);
                copies_wait<0>();
            }
            float carry = 0.0f;
            const float factor = factor_of(decay, count, carry), by = expf(carry);
            __syncthreads();
#pragma unroll 1
            for (u32 j = warp_id(); j < CHUNK; j += warps + 1) {
                const float mine = __shfl_sync(ALL_LANES, factor, j);
#pragma unroll
                for (u32 column = 2 * lane_id(); column < COLUMNS; column += 64) {
                    u32* at = reinterpret_cast<u32*>(&shared.entries[0][j][column]);
                    const float low = low_f16(*at) * mine, high = high_f16(*at) * mine;
                    *at = pack_f16(low, high);
                    at[CHUNK * STRIDE / 2] = pack_f16(low - low_f16(*at), high - high_f16(*at));
                }
            }
            __syncthreads();
            if (has_inputs()) continue;
            u32 a[4];
            load_written(a);
            const u16* at = &shared.entries[0][(lane_id() >> 3 & 1) * 8 + (lane_id() & 7)][(lane_id() >> 4) * 8];
#pragma unroll 2
            for (u32 column = 0; column < COLUMNS; column += 16) {
                u32 x[4], y[4];
                load_matrices_transposed(x, at + column);
                load_matrices_transposed(y, at + CHUNK * STRIDE + column);
                float sums[2][4] = {};
#pragma unroll
                for (u32 n = 0; n < 2; ++n) {
                    const u32 b[2] = {x[2 * n], x[2 * n + 1]}, lacking[2] = {y[2 * n], y[2 * n + 1]};
                    mma_f16(sums[n], a, lacking);
                    mma_f16(sums[n], a, b);
                    update(column + 8 * n, by, sums[n]);
                }
            }
        }
        if (!has_inputs()) store_state();
    }

    // state = decay state + u key^T
    DEVICE void advance(float u, float decay) {
        const float rows[2] = {__shfl_sync(ALL_LANES, u, lane_id() & 28), __shfl_sync(ALL_LANES, u, (lane_id() & 28) | 2)};
#pragma unroll 2
        for (u32 column = 0; column < COLUMNS; column += 8) {
            const float2 key = *reinterpret_cast<const float2*>(&shared.key[column + 2 * quarter()]);
            const float sums[4] = {rows[0] * key.x, rows[0] * key.y, rows[1] * key.x, rows[1] * key.y};
            update(column, decay, sums);
        }
        store_state();
    }

    DEVICE void run() {
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        const u32 row = group() + 8 * (lane_id() >> 1 & 1);
        const bool has_row = !has_inputs() && row < rows_left, answers = !span.flush() && held > 0;
        // The oldest entries are folded first, the newest answer first.
        u32 count = min(held, CHUNK), entry = span.flush() ? base : base + held - count;
        if (!has_inputs()) request_state();
        if (held > 0) request_entries(entry, count);
        copies_commit();
        float step = held > 0 ? request_decay(entry, count) : 0.0f;
        const float value = span.rows > 0 && has_row ? op.inputs[u64(span.first) * op.columns + op.values_at + head * op.value_dim + first_row + row] : 0.0f;
        const float skip = op.skip != nullptr ? op.skip[head] : 0.0f;
        if (span.rows > 0 && has_inputs()) open_inputs();
        copies_wait<0>();
        if (span.flush()) fold(base, held, step);
        if (span.rows == 0) return;
        __syncthreads();
        float carry = 0.0f, sums[4] = {}, answered[4] = {};
        if (!has_inputs()) {
            times_inputs(state, sums);
        } else if (answers) {
            relate(factor_of(step, count, carry));
        }
#pragma unroll 1
        for (u32 left = answers ? held : 0; left > 0;) {
            left -= count;
            if (left == 0 && has_inputs() && lane_id() == 0) shared.fade = expf(carry);
            __syncthreads();
            u32 a[4];
            load_written(a);
            const u32* by = reinterpret_cast<const u32*>(shared.products[group() & 3]) + quarter();
            const u32 b[2] = {by[0], by[4]};
            float terms[4] = {};
            mma_f16(terms, a, b);
#pragma unroll
            for (u32 e = 0; e < 4; ++e) answered[e] = fmaf(shared.unit, terms[e], answered[e]);
            if (left == 0) break;
            count = min(left, CHUNK), entry = base + left - count;
            __syncthreads();
            request_entries(entry, count);
            copies_commit();
            step = request_decay(entry, count);
            copies_wait<0>();
            __syncwarp();
            if (has_inputs()) relate(factor_of(step, count, carry));
        }
        if (has_inputs()) return;
        const float fade = answers ? shared.fade : 1.0f, decay = shared.decay;
        const bool is_second = lane_id() & 2, is_query = lane_id() & 1;
        float mine = is_second ? fmaf(fade, sums[2] + sums[3], answered[2] + answered[3]) : fmaf(fade, sums[0] + sums[1], answered[0] + answered[1]);
        if (is_query) mine *= shared.query_unit;
        const float other = __shfl_xor_sync(ALL_LANES, mine, 1);
        const float to_key = is_query ? other : mine, to_query = is_query ? mine : other;
        const float u = shared.strength * (IS_DELTA ? value - decay * to_key : value);
        if (is_query && has_row)
            op.out[(u64(span.first) * op.value_heads + head) * op.value_dim + first_row + row] = fmaf(shared.own, u, fmaf(decay, to_query, skip * value));
        if (span.is_final()) {
            advance(u, decay);
        } else if (!is_query && has_row) {
            store_rounded(ring_u() + ring_row(span.after_base + span.after_held) * op.value_dim + row, u);
        }
    }
};

template <u32 KIND, u32 QUADS> DEVICE void recur_half(const StepView& step, const Recurrence& op, const Fold& fold) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    Span span = fold.held > 0 ? fold.span() : step.spans[blockIdx.z];
    if (fold.held == 0) {
        if (span.is_final()) skip_chunks(span);
        if (span.rows != 1) return;
    }
    using Whole = Half<KIND, QUADS>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// Blocks have a warp for every 16 rows of a state, up to 8, and another.
#define RECURRENCE_HALF(name, KIND, QUADS)                                                                            \
    KERNEL __launch_bounds__(288, QUADS > 4 ? 2 : 4) name##_one(StepView step, Recurrence op, Fold fold) {            \
        recur_half<KIND, QUADS>(step, op, fold);                                                                      \
    }
