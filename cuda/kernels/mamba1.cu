// The Mamba-1 selective scan. A channel has one short row of state, which a few lanes lead through its inputs one by
// one; for spans that can be taken back a copy of it, from the checkpoint through the ring. Rows of a prompt come to shared memory
// a tile at once, ahead of those before them: nothing of a row but the state it goes on with is waited for.
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

// A row of state of a channel, of which `LANES` neighbouring lanes have `EACH` columns, one from every `LANES`.
template <typename State, u32 LANES, u32 EACH> struct Row {
    float state[EACH], rates[EACH], key[EACH], read[EACH];
    State* stored;
    u32 lane, columns;

    DEVICE bool inside(u32 e) const { return e * LANES + lane < columns; }

    DEVICE Row(const Scan& op, const Span& span, u32 channel) : lane(threadIdx.x % LANES), columns(op.key_dim) {
        stored = static_cast<State*>(op.state) + (u64(span.slot) * op.channels + channel) * columns;
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) {
            const u32 column = e * LANES + lane;
            rates[e] = inside(e) ? op.rates[u64(channel) * columns + column] : 0.0f;
            state[e] = inside(e) && !span.is_fresh() ? to_float(stored[column]) : 0.0f;
        }
    }

    // The state behind a row that writes with `key`: with that as it is, which the row itself reads, and as the ring has it.
    DEVICE void advance(float size, float written, bool is_entry) {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) {
            const float fade = expf(rates[e] * size);
            read[e] = fmaf(fade, state[e], written * key[e]);
            state[e] = is_entry ? fmaf(fade, state[e], as_entry(written) * as_entry(key[e])) : read[e];
        }
    }

    // What a row writes with, or reads with: `value` of every column.
    template <typename Value> DEVICE void take(Value value, float (&to)[EACH]) const {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) to[e] = inside(e) ? value(e * LANES + lane) : 0.0f;
    }

    // What a row reads.
    DEVICE float sum(const float (&query)[EACH]) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 e = 0; e < EACH; ++e)
            if (inside(e)) sum = fmaf(read[e], query[e], sum);
        return warp_sum<LANES>(sum);
    }

    DEVICE void round() {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) state[e] = rounded(state[e], static_cast<State*>(nullptr));
    }

    DEVICE void keep(bool is_there) {
        round();
#pragma unroll
        for (u32 e = 0; e < EACH; ++e)
            if (is_there && inside(e)) store(stored + e * LANES + lane, state[e]);
    }
};

// Tiles of rows of a prompt, for the channels of a block.
template <typename State, u32 LANES, u32 EACH> struct Tiles {
    static constexpr u32 ROWS = LANES < 32 ? CHUNK : CHUNK / 4, CHANNELS = THREADS / LANES, COLUMNS = LANES * EACH;
    static constexpr u32 VALUES = ROWS * CHANNELS, KEYS = ROWS * COLUMNS, MINE = (VALUES + THREADS - 1) / THREADS;
    static_assert(KEYS % THREADS == 0 && (EACH == 1 || EACH % 4 == 0));

    // Columns are in the order in which lanes have them.
    struct Shared {
        float x[VALUES], size[VALUES], written[VALUES], sum[VALUES];
        alignas(16) float key[KEYS], query[KEYS];
    };

    // What a thread has of the tile that comes next.
    float x[MINE], dt[MINE], key[KEYS / THREADS], query[KEYS / THREADS];

    // Whether value `i` of the tile is one of `count` rows, and where it is.
    DEVICE static bool place(const Scan& op, u32 i, u32 count, u32& row, u32& channel) {
        row = i / CHANNELS, channel = blockIdx.x * CHANNELS + i % CHANNELS;
        return i < VALUES && row < count && channel < op.channels;
    }

    DEVICE void load(const Scan& op, u32 first, u32 count) {
#pragma unroll
        for (u32 n = 0; n < MINE; ++n) {
            u32 row, channel;
            const bool is_there = place(op, threadIdx.x + n * THREADS, count, row, channel);
            const u64 at = u64(first + row) * op.channels + channel;
            x[n] = is_there ? op.x[at] : 0.0f;
            dt[n] = is_there ? op.dt[at] : 0.0f;
        }
#pragma unroll
        for (u32 n = 0; n < KEYS / THREADS; ++n) {
            const u32 i = threadIdx.x + n * THREADS, row = i / COLUMNS, column = i % COLUMNS;
            const bool is_there = row < count && column < op.key_dim;
            const u64 at = u64(first + row) * op.key_dim + column;
            key[n] = is_there ? op.b[at] : 0.0f;
            query[n] = is_there ? op.c[at] : 0.0f;
        }
    }

    DEVICE void put(Shared& shared) const {
#pragma unroll
        for (u32 n = 0; n < MINE; ++n) {
            const u32 i = threadIdx.x + n * THREADS;
            if (i >= VALUES) break;
            const float size = softplus(dt[n]);
            shared.x[i] = x[n], shared.size[i] = size, shared.written[i] = size * x[n];
        }
#pragma unroll
        for (u32 n = 0; n < KEYS / THREADS; ++n) {
            const u32 i = threadIdx.x + n * THREADS, row = i / COLUMNS, column = i % COLUMNS;
            const u32 at = row * COLUMNS + column % LANES * EACH + column / LANES;
            shared.key[at] = key[n], shared.query[at] = query[n];
        }
    }

    DEVICE static void get(const float* from, float (&to)[EACH]) {
        if constexpr (EACH == 1) to[0] = from[0];
#pragma unroll
        for (u32 e = 0; e + 4 <= EACH; e += 4) set_four(to + e, *reinterpret_cast<const float4*>(from + e));
    }

    static constexpr u32 AT_ONCE = EACH == 1 ? 16 : 4; // rows

    // Rows one by one: those of the last tile.
    DEVICE static void step(Shared& shared, Row<State, LANES, EACH>& of, u32 row) {
        const u32 i = row * CHANNELS + threadIdx.x / LANES, columns = (row * LANES + of.lane) * EACH;
        float query[EACH];
        get(shared.key + columns, of.key), get(shared.query + columns, query);
        of.advance(shared.size[i], shared.written[i], false);
        const float sum = of.sum(query);
        if (of.lane == 0) shared.sum[i] = sum;
    }

    // The same of some rows at once: a warp has hardly another one beside it, and would wait for every step of a row. Every few
    // lanes end what one of them reads.
    DEVICE static void steps(Shared& shared, Row<State, LANES, EACH>& of, u32 first) {
        float fade[AT_ONCE][EACH], sums[AT_ONCE] = {};
#pragma unroll
        for (u32 r = 0; r < AT_ONCE; ++r) {
            const float size = shared.size[(first + r) * CHANNELS + threadIdx.x / LANES];
#pragma unroll
            for (u32 e = 0; e < EACH; ++e) fade[r][e] = expf(of.rates[e] * size);
        }
#pragma unroll
        for (u32 r = 0; r < AT_ONCE; ++r) {
            const float written = shared.written[(first + r) * CHANNELS + threadIdx.x / LANES];
            const u32 columns = ((first + r) * LANES + of.lane) * EACH;
            float key[EACH], query[EACH];
            get(shared.key + columns, key), get(shared.query + columns, query);
#pragma unroll
            for (u32 e = 0; e < EACH; ++e) {
                of.state[e] = fmaf(fade[r][e], of.state[e], written * key[e]);
                if (of.inside(e)) sums[r] = fmaf(of.state[e], query[e], sums[r]);
            }
        }
        static_assert(LANES % AT_ONCE == 0 && ROWS % AT_ONCE == 0);
        sums_of_lanes<AT_ONCE, LANES / 2>(sums);
        constexpr u32 OF_ROW = LANES / AT_ONCE;
        const float sum = warp_sum<OF_ROW>(sums[0]);
        if (of.lane % OF_ROW == 0) shared.sum[(first + of.lane / OF_ROW) * CHANNELS + threadIdx.x / LANES] = sum;
    }

    DEVICE static void run(const Scan& op, const Span& span, Row<State, LANES, EACH>& of) {
        __shared__ Shared shared;
        Tiles next;
        next.load(op, span.first, min(ROWS, span.rows));
        for (u32 begin = 0; begin < span.rows; begin += ROWS) {
            const u32 count = min(ROWS, span.rows - begin), after = begin + ROWS;
            next.put(shared);
            __syncthreads();
            if (after < span.rows) next.load(op, span.first + after, min(ROWS, span.rows - after));
            if (count == ROWS) {
#pragma unroll
                for (u32 row = 0; row < ROWS; row += AT_ONCE) steps(shared, of, row);
            } else {
                for (u32 row = 0; row < count; ++row) step(shared, of, row);
            }
            if ((begin + count) % CHUNK == 0) of.round();
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < MINE; ++n) {
                const u32 i = threadIdx.x + n * THREADS;
                u32 row, channel;
                if (!place(op, i, count, row, channel)) continue;
                const float skip = op.d != nullptr ? op.d[channel] : 0.0f;
                op.out[u64(span.first + begin + row) * op.channels + channel] = fmaf(skip, shared.x[i], shared.sum[i]);
            }
        }
    }
};

template <typename State, u32 LANES, u32 EACH> DEVICE void scan(const Scan& op, const Span& span) {
    const u32 lane = threadIdx.x % LANES;
    const u32 wanted = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const bool is_there = wanted < op.channels;
    const u32 channel = min(wanted, op.channels - 1);
    Row<State, LANES, EACH> of(op, span, channel);
    const u64 of_slot = (u64(span.slot) * op.channels + channel) * op.ring;
    f16* ring_u = op.ring_u + of_slot;
    float* ring_g = op.ring_g + of_slot;
    f16* ring_k = op.ring_k + u64(span.slot) * op.ring * op.key_dim;
    const u32 base = span.flush() ? span.before_base : span.after_base;
    const u32 held = span.flush() ? span.before_held : span.after_held;
    for (u32 j = 0; j < held; ++j) {
        const u32 row = (base + j) & (op.ring - 1);
        of.take([&](u32 column) { return to_float(ring_k[u64(row) * op.key_dim + column]); }, of.key);
        of.advance(ring_g[row], to_float(ring_u[row]), false);
    }
    if (span.flush()) of.keep(is_there);
    if (span.is_final()) {
        Tiles<State, LANES, EACH>::run(op, span, of);
        if (span.rows > 0) of.keep(is_there);
        return;
    }
    const float skip = op.d != nullptr ? op.d[channel] : 0.0f;
    for (u32 t = 0; t < span.rows; ++t) {
        const u64 row = span.first + t, at = row * op.channels + channel;
        const float x = op.x[at], size = softplus(op.dt[at]), written = size * x;
        const float *keys = op.b + row * op.key_dim, *queries = op.c + row * op.key_dim;
        float query[EACH];
        of.take([&](u32 column) { return keys[column]; }, of.key);
        of.take([&](u32 column) { return queries[column]; }, query);
        of.advance(size, written, true);
        const float sum = of.sum(query);
        const u32 entry = (span.after_base + span.after_held + t) & (op.ring - 1);
        if (lane == 0 && is_there) {
            op.out[at] = fmaf(skip, x, sum);
            ring_u[entry] = to_f16(as_entry(written));
            ring_g[entry] = size;
        }
        if (blockIdx.x == 0)
            for (u32 i = threadIdx.x; i < op.key_dim; i += THREADS) ring_k[u64(entry) * op.key_dim + i] = to_f16(as_entry(keys[i]));
    }
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

SCAN(mamba1_f32_16, float, 16, 1)
SCAN(mamba1_f32_64, float, 16, 4)
SCAN(mamba1_f32_256, float, 32, 8)
SCAN(mamba1_f16_16, f16, 16, 1)
SCAN(mamba1_f16_64, f16, 16, 4)
SCAN(mamba1_f16_256, f16, 32, 8)
