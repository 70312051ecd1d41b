// Recurrences of spans of some rows, as when drafts are verified or a prompt ends: the entries of the ring are put into the
// state in the registers, all rows meet it at once, and a triangular system gives what each of them writes. A warp has 16
// rows of the state of a value head.
#pragma once
#include "common/recurrence_tile.cuh"

// `MOST`: rows that are solved together, 8 or `CHUNK`. Longer spans go through them one after the other. `LOOSE`: keys may have
// fewer columns than there is room for, and rows begin anywhere.
template <u32 KIND, typename State, u32 QUADS, u32 MOST> struct Rows {
    static constexpr bool LOOSE = QUADS > 4;
    static constexpr u32 COLUMNS = 32 * QUADS, STRIDE = row_stride(COLUMNS), TILES = COLUMNS / 8;
    using Whole = Tile<State, COLUMNS, STRIDE>;
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    static constexpr u32 PARTS = MOST / 8;                 // of the rows, a tile of 8 each
    static constexpr u32 PIECES = (COLUMNS + 127) / 128;   // of a row: four neighbouring columns of a lane each
    static constexpr u32 AT_ONCE = 2;                      // rows that a warp asks for before it looks at one
    static constexpr u32 OWN = PER_CHANNEL ? COLUMNS : 4;  // columns of what only decays per channel need

    struct Shared {
        u16 rows[2][2 * MOST][STRIDE];   // keys and queries, as they meet the state, and what those lack
        u16 entries[2][CHUNK][STRIDE];   // keys that are put into the state
        u16 inverse[2][MOST][MOST], qk[2][MOST][MOST];
        float products[2 * MOST][MOST + 1]; // of keys and queries with keys
        float taken[MOST][MOST];            // what a row takes from those before it
        float g[CHUNK], sizes[CHUNK], strengths[CHUNK], decays[CHUNK], advancing[CHUNK];
        float plain[PER_CHANNEL ? 2 * MOST : 1][OWN]; // keys and queries
        float channel_g[PER_CHANNEL ? MOST : 1][OWN], fade[OWN];
    };

    const Recurrence& op;
    const Span& span;
    Shared& shared;
    const u32 head, key_head, first_row, rows_left; // rows of the warp
    Whole tile;

    DEVICE Rows(const Recurrence& op, const Span& span, Shared& shared)
        : op(op), span(span), shared(shared), head(blockIdx.y), key_head(op.key_head(head)),
          first_row(blockIdx.x * (blockDim.x / 2) + 16 * warp_id()),
          rows_left(op.value_dim > first_row ? op.value_dim - first_row : 0) {}

    DEVICE u32 warps() const { return blockDim.x >> 5; }
    DEVICE u32 decay_count() const { return PER_CHANNEL ? op.key_dim : 1; }
    DEVICE u32 ring_row(u32 row) const { return row & (op.ring - 1); }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) + ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * op.key_dim;
    }
    DEVICE State* ring_u(u32 row) const {
        return static_cast<State*>(op.ring_u) + ((u64(span.slot) * op.value_heads + head) * op.ring + ring_row(row)) * op.value_dim + first_row;
    }
    DEVICE State* ring_k(u32 row) const {
        return static_cast<State*>(op.ring_k) + ((u64(span.slot) * op.key_heads + key_head) * op.ring + ring_row(row)) * op.key_dim;
    }
    DEVICE float* ring_g(u32 row) const {
        return op.ring_g + ((u64(span.slot) * op.value_heads + head) * op.ring + ring_row(row)) * decay_count();
    }
    DEVICE bool appends_gates() const { return blockIdx.x == 0; }
    DEVICE bool appends_keys() const { return blockIdx.x == 0 && op.is_first_of_key_head(head); }

    // What of a row of keys a lane has: four neighbouring columns, and those 128 further on.
    template <typename T> struct Piece {
        u32 words[PIECES][sizeof(T)];
    };

    template <typename T> DEVICE void request_row(Piece<T>& x, const T* from, bool is_there) {
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n) {
            const u32 column = 128 * n + 4 * lane_id();
            if constexpr (!LOOSE) {
                read_four(from + column, is_there && column < COLUMNS, x.words[n]);
            } else {
#pragma unroll
                for (u32 e = 0; e < sizeof(T); ++e) x.words[n][e] = 0;
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    if (is_there && column + e < op.key_dim) Tile<T, COLUMNS, STRIDE>::set(x.words[n], e, from[column + e]);
            }
        }
    }

    // Such a part goes to a row of `[2][rows][STRIDE]`.
    static DEVICE void store_row(u16* to, u32 lacking, const float (&x)[PIECES][4]) {
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n) {
            const u32 column = 128 * n + 4 * lane_id();
            if (column >= COLUMNS) continue;
#pragma unroll
            for (u32 e = 0; e < 4; e += 2) {
                u32 high, low;
                split(x[n][e], x[n][e + 1], high, low);
                *reinterpret_cast<u32*>(to + place_of(column + e)) = high;
                *reinterpret_cast<u32*>(to + lacking + place_of(column + e)) = low;
            }
        }
    }

    // Row `row` of keys, then queries.
    DEVICE void request_row(Piece<float>& x, u32 first, u32 rows, u32 row) {
        const u32 t = row % MOST;
        const float* inputs = op.inputs + u64(span.first + first + t) * op.columns;
        request_row(x, inputs + (row < MOST ? op.keys_at : op.queries_at) + key_head * op.key_dim, t < rows);
    }

    DEVICE void open_row(const Piece<float>& piece, u32 first, u32 rows, u32 row) {
        float x[PIECES][4];
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n) open_four(piece.words[n], x[n]);
        const bool is_key = row < MOST;
        const u32 t = row % MOST;
        if constexpr (IS_DELTA) {
            float sum = 0.0f;
#pragma unroll
            for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) sum = fmaf(x[n][e], x[n][e], sum);
            float scale = rsqrtf(warp_sum(sum) + op.norm_eps);
            if (!is_key) scale *= op.query_scale;
#pragma unroll
            for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) x[n][e] = t < rows ? x[n][e] * scale : 0.0f;
        }
        if (is_key && t < rows && !span.is_final() && appends_keys()) {
            State* to = ring_k(span.after_base + span.after_held + first + t);
#pragma unroll
            for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const u32 column = 128 * n + 4 * lane_id() + e;
                    if (column < op.key_dim) store_rounded(to + column, x[n][e]);
                }
        }
        if constexpr (PER_CHANNEL) {
#pragma unroll
            for (u32 n = 0; n < PIECES; ++n)
                if (128 * n + 4 * lane_id() < COLUMNS)
                    *reinterpret_cast<float4*>(&shared.plain[row][128 * n + 4 * lane_id()]) = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
        } else {
            store_row(shared.rows[0][row], 2 * MOST * STRIDE, x);
        }
    }

    // Keys and queries of `rows` rows from `first` on, and keys of `count` entries from `entry` on, the rest zeros. Loads
    // of several are under way at the same time.
    DEVICE void open_rows(u32 first, u32 rows, u32 entry, u32 count) {
        Piece<float> x[AT_ONCE];
        Piece<State> y[AT_ONCE];
        const bool has_entries = count > 0 && !PER_CHANNEL;
#pragma unroll 1
        for (u32 begin = warp_id(); begin < 2 * MOST; begin += AT_ONCE * warps()) {
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 row = begin + n * warps();
                if (rows > 0 && row < 2 * MOST) request_row(x[n], first, rows, row);
                if (has_entries && row < CHUNK) request_row(y[n], ring_k(entry + row), row < count);
            }
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 row = begin + n * warps();
                if (rows > 0 && row < 2 * MOST) open_row(x[n], first, rows, row);
                if (!has_entries || row >= CHUNK) continue;
                float key[PIECES][4];
#pragma unroll
                for (u32 m = 0; m < PIECES; ++m) open_four(y[n].words[m], key[m]);
                store_row(shared.entries[0][row], CHUNK * STRIDE, key);
            }
        }
        if (rows > 0) open_gates(first, rows);
        if constexpr (PER_CHANNEL) {
            if (rows > 0) {
                __syncthreads();
                fade_rows(first, rows);
            }
            if (count > 0) fade_entries(entry, count);
        }
    }

    // Step sizes, strengths and decays of rows, in the first lanes.
    DEVICE void open_gates(u32 first, u32 rows) {
        const u32 t = threadIdx.x;
        if (t >= CHUNK) return;
        const u64 row = u64(span.first + first + t) * op.value_heads + head;
        if constexpr (IS_DELTA) shared.strengths[t] = t < rows ? sigmoid(op.beta[row]) : 0.0f;
        if constexpr (!PER_CHANNEL) {
            const float size = t < rows ? softplus(op.steps[row] + (op.bias != nullptr ? op.bias[head] : 0.0f)) : 0.0f;
            const float g = t < rows ? op.a[head] * size : 0.0f;
            shared.sizes[t] = size;
            shared.g[t] = g;
            if (t < rows && !span.is_final() && appends_gates()) *ring_g(span.after_base + span.after_held + first + t) = g;
        }
    }

    template <typename Each> static DEVICE void for_columns(Each each) {
#pragma unroll 1
        for (u32 column = threadIdx.x; column < COLUMNS; column += blockDim.x) each(column);
    }

    static DEVICE void store_split(u16* to, u32 lacking, float x) {
        const bf16 high = to_bf16(x);
        to[0] = high.bits;
        to[lacking] = to_bf16(x - to_float(high)).bits;
    }
    static DEVICE u32 place_of_one(u32 column) { return place_of(column) + (column & 1); }

    // Decays per channel, a column to a thread: keys and queries as they meet the state.
    DEVICE void fade_rows(u32 first, u32 rows) {
        const u32 ring_at = span.after_base + span.after_held + first;
        for_columns([&](u32 column) {
            const bool is_there = column < op.key_dim;
            const u64 decay = u64(head) * op.key_dim + column, stride = u64(op.value_heads) * op.key_dim;
            const float bias = is_there && op.bias != nullptr ? op.bias[decay] : 0.0f, rate = op.a[head];
            float passed = 0.0f;
#pragma unroll 8
            for (u32 t = 0; t < MOST; ++t) {
                const bool is_row = is_there && t < rows;
                const float g = is_row ? rate * softplus(op.steps[(span.first + first + t) * stride + decay] + bias) : 0.0f;
                if (is_row && !span.is_final() && appends_gates()) ring_g(ring_at + t)[column] = g;
                shared.channel_g[t][column] = g;
                passed += g;
                const float by = expf(passed);
                store_split(&shared.rows[0][t][place_of_one(column)], 2 * MOST * STRIDE, shared.plain[t][column] * by);
                store_split(&shared.rows[0][MOST + t][place_of_one(column)], 2 * MOST * STRIDE, shared.plain[MOST + t][column] * by);
            }
        });
    }

    // The same: keys of entries, as they are after the last of them, and how much the state fades until then.
    DEVICE void fade_entries(u32 entry, u32 count) {
        for_columns([&](u32 column) {
            const bool is_there = column < op.key_dim;
            float newer = 0.0f;
#pragma unroll
            for (u32 i = 0; i < CHUNK; ++i) {
                const u32 j = CHUNK - 1 - i;
                const bool is_entry = is_there && j < count;
                const float key = is_entry ? to_float(ring_k(entry + j)[column]) : 0.0f, g = is_entry ? ring_g(entry + j)[column] : 0.0f;
                store_split(&shared.entries[0][j][place_of_one(column)], CHUNK * STRIDE, key * expf(newer));
                newer += g;
            }
            shared.fade[column] = expf(newer);
        });
    }

    // What is written by `count` entries from `entry` on, and the decay of the entry that is as far from the newest one as
    // the lane is from the first: asked for long before they are needed.
    DEVICE void request_entries(u32 entry, u32 count, State (&u)[2][4], float& g) {
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 j = 8 * n + 2 * (lane_id() & 3) + (e & 1), row = (lane_id() >> 2) + 8 * (e >> 1);
                u[n][e] = j < count && row < rows_left ? ring_u(entry + j)[row] : State{};
            }
        const u32 i = lane_id() & 15;
        if constexpr (!PER_CHANNEL) g = i < count ? *ring_g(entry + count - 1 - i) : 0.0f;
    }

    // Puts them into the state. Their keys are there.
    DEVICE void fold(u32 count, const State (&written)[2][4], float g) {
        float by = 1.0f, u[2][4];
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) u[n][e] = to_float(written[n][e]);
        if constexpr (PER_CHANNEL) {
            tile.scale_columns(shared.fade);
        } else {
            const u32 i = lane_id() & 15, pair = 2 * (lane_id() & 3);
#pragma unroll
            for (u32 offset = 1; offset < 16; offset *= 2) {
                const float newer = __shfl_up_sync(ALL_LANES, g, offset, 16);
                g += i >= offset ? newer : 0.0f;
            }
            by = expf(__shfl_sync(ALL_LANES, g, 15, 16));
            const float newer = __shfl_up_sync(ALL_LANES, g, 1, 16), factor = expf(i > 0 ? newer : 0.0f);
#pragma unroll
            for (u32 n = 0; n < 2; ++n)
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const float mine = __shfl_sync(ALL_LANES, factor, (count - 1 - (8 * n + pair + e)) & 15, 16);
                    u[n][e] *= mine, u[n][2 + e] *= mine;
                }
        }
        u32 high[4], low[4];
        split_left(u[0], u[1], high, low);
        tile.add(high, low, &shared.entries[0][0][0] + Whole::adding_place(), CHUNK * STRIDE, by);
    }

    // Products of keys and queries with keys.
    DEVICE void multiply_rows(u32 rows) {
        const u32 lane = lane_id();
        if constexpr (PER_CHANNEL) {
            // A warp has a key and lets it fade from row to row.
#pragma unroll 1
            for (u32 j = warp_id(); j < rows; j += warps()) {
                float key[PIECES][4], faded[PIECES][4];
                load_row(key, shared.plain[j]);
#pragma unroll
                for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) faded[n][e] = 0.0f;
#pragma unroll 4
                for (u32 t = j; t < rows; ++t) {
                    float k[PIECES][4], q[PIECES][4], g[PIECES][4], kk = 0.0f, qk = 0.0f;
                    load_row(k, shared.plain[t]);
                    load_row(q, shared.plain[MOST + t]);
                    load_row(g, shared.channel_g[t]);
#pragma unroll
                    for (u32 n = 0; n < PIECES; ++n)
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) {
                            faded[n][e] += t > j ? g[n][e] : 0.0f;
                            const float x = key[n][e] * expf(faded[n][e]);
                            kk = fmaf(x, k[n][e], kk), qk = fmaf(x, q[n][e], qk);
                        }
                    kk = warp_sum(kk), qk = warp_sum(qk);
                    if (lane == 0) shared.products[t][j] = kk, shared.products[MOST + t][j] = qk;
                }
            }
        } else {
            // 16 rows with 8 keys each.
#pragma unroll 1
            for (u32 number = warp_id(); number < PARTS * PARTS; number += warps()) {
                const u32 top = 16 * (number / PARTS), n = number % PARTS;
                float sums[3][4] = {};
                const u16* left = &shared.rows[0][top + (lane >> 3 & 1) * 8 + (lane & 7)][(lane >> 4) * 8];
                const u16* right = &shared.rows[lane >> 4][8 * n + (lane & 7)][(lane >> 3 & 1) * 8];
#pragma unroll
                for (u32 at = 0; at < COLUMNS; at += 16) {
                    u32 high[4], low[4], keys[4];
                    load_matrices(high, left + at);
                    load_matrices(low, left + 2 * MOST * STRIDE + at);
                    load_matrices(keys, right + at); // high, then low
                    const u32 b[2] = {keys[0], keys[1]}, lacking[2] = {keys[2], keys[3]};
                    mma_bf16(sums[0], high, b);
                    mma_bf16(sums[1], low, b);
                    mma_bf16(sums[2], high, lacking);
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    shared.products[top + (lane >> 2) + 8 * (e >> 1)][8 * n + 2 * (lane & 3) + (e & 1)] =
                        sums[0][e] + (sums[1][e] + sums[2][e]);
            }
        }
    }

    static DEVICE void load_row(float (&x)[PIECES][4], const float* from) {
#pragma unroll
        for (u32 n = 0; n < PIECES; ++n) {
            const u32 column = 128 * n + 4 * lane_id();
            const float4 four = column < COLUMNS ? *reinterpret_cast<const float4*>(from + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            x[n][0] = four.x, x[n][1] = four.y, x[n][2] = four.z, x[n][3] = four.w;
        }
    }

    // Of one warp: what rows give to queries and take from those before them, and the inverse of that, a column to a lane.
    DEVICE void relate(u32 rows) {
        if (warp_id() != 0) return;
        const u32 lane = lane_id();
        if constexpr (!PER_CHANNEL) {
            if (lane < MOST) {
                float before = 0.0f, after = 0.0f;
#pragma unroll
                for (u32 t = 0; t < MOST; ++t) {
                    before += t <= lane ? shared.g[t] : 0.0f;
                    after += t > lane ? shared.g[t] : 0.0f;
                }
                shared.decays[lane] = expf(before), shared.advancing[lane] = expf(after);
            }
        } else if (lane < MOST) {
            shared.decays[lane] = 1.0f, shared.advancing[lane] = 1.0f;
        }
#pragma unroll 2
        for (u32 at = lane; at < MOST * MOST; at += 32) {
            const u32 t = at / MOST, j = at % MOST;
            const bool is_there = t >= j && t < rows;
            float sum = 0.0f;
            if constexpr (!PER_CHANNEL) {
#pragma unroll
                for (u32 i = 1; i < MOST; ++i) sum += i > j && i <= t ? shared.g[i] : 0.0f;
            }
            const float factor = PER_CHANNEL ? 1.0f : expf(sum);
            store_split(&shared.qk[0][t][j], MOST * MOST, is_there ? shared.products[MOST + t][j] * factor : 0.0f);
            if constexpr (IS_DELTA)
                shared.taken[t][j] = is_there && t > j ? shared.strengths[t] * (shared.products[t][j] * factor) : 0.0f;
        }
        __syncwarp();
        if constexpr (IS_DELTA) {
            if (lane >= MOST) return;
            float x[MOST];
            const float strength = shared.strengths[lane];
#pragma unroll
            for (u32 t = 0; t < MOST; ++t) {
                float mine = t == lane ? 1.0f : 0.0f;
#pragma unroll
                for (u32 i = 0; i < t; ++i) mine = fmaf(-shared.taken[t][i], x[i], mine);
                x[t] = mine;
                store_split(&shared.inverse[0][t][lane], MOST * MOST, mine * strength);
            }
        }
    }

    // The right side of a matrix instruction that multiplies with the transpose of a square: its rows `8 n..`.
    static DEVICE void load_square(const u16 (&from)[MOST][MOST], u32 n, u32 (&b)[2]) {
        const u16* row = from[8 * n + (lane_id() >> 2)] + 2 * (lane_id() & 3);
        b[0] = *reinterpret_cast<const u32*>(row);
        b[1] = MOST > 8 ? *reinterpret_cast<const u32*>(row + MOST / 2) : 0;
    }

    static DEVICE void multiply_square(float (&sums)[4], const u32 (&high)[4], const u32 (&low)[4], const u16 (&by)[2][MOST][MOST], u32 n) {
        u32 b[2], lacking[2];
        load_square(by[0], n, b);
        load_square(by[1], n, lacking);
        multiply_split(sums, high, low, b, lacking);
    }

    // What the state gives the rows: keys then queries in `sums`.
    DEVICE void read_state(float (&sums)[PARTS][3][2][4]) {
        const u16* at = &shared.rows[0][0][0] + Whole::meeting_place();
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2) {
            u32 high[4], low[4];
            split_left(tile.state[n], tile.state[n + 1], high, low);
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part)
                Whole::meet(sums[part], high, low, at + 16 * part * STRIDE + 8 * n, 2 * MOST * STRIDE);
        }
    }

    DEVICE void request_values(u32 first, u32 rows, float (&values)[PARTS][4]) {
        const float* from = op.inputs + u64(span.first + first) * op.columns + op.values_at + head * op.value_dim + first_row;
#pragma unroll
        for (u32 n = 0; n < PARTS; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 t = 8 * n + 2 * (lane_id() & 3) + (e & 1), row = (lane_id() >> 2) + 8 * (e >> 1);
                values[n][e] = t < rows && row < rows_left ? from[t * op.columns + row] : 0.0f;
            }
    }

    // What each row writes, and its output.
    DEVICE void solve(u32 first, u32 rows, const float (&values)[PARTS][4], const float (&sums)[PARTS][3][2][4], float (&u)[2][4]) {
        const u32 group = lane_id() >> 2, pair = 2 * (lane_id() & 3), ring_at = span.after_base + span.after_held + first;
        const float skip = op.skip != nullptr ? op.skip[head] : 0.0f;
        const u64 stride = u64(op.value_heads) * op.value_dim;
        float y[PARTS][4];
        float* out = op.out + u64(span.first + first) * stride + head * op.value_dim + first_row;
#pragma unroll
        for (u32 e = 0; e < 4; ++e) u[1][e] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < PARTS; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 t = 8 * n + pair + (e & 1);
                const float value = values[n][e], decay = shared.decays[t];
                // Keys are the first tiles of `sums`, queries the others.
                const float(&by_key)[3][2][4] = sums[0];
                const float(&by_query)[3][2][4] = sums[PARTS - 1];
                const u32 m = PARTS > 1 ? n : 1;
                u[n][e] = t < rows ? IS_DELTA ? value - decay * (by_key[0][n][e] + (by_key[1][n][e] + by_key[2][n][e])) : shared.sizes[t] * value : 0.0f;
                y[n][e] = fmaf(decay, by_query[0][m][e] + (by_query[1][m][e] + by_query[2][m][e]), skip * value);
            }
        u32 high[4], low[4];
        if constexpr (IS_DELTA) {
            split_left(u[0], u[1], high, low);
#pragma unroll
            for (u32 n = 0; n < PARTS; ++n) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) u[n][e] = 0.0f;
                multiply_square(u[n], high, low, shared.inverse, n);
            }
        }
        split_left(u[0], u[1], high, low);
#pragma unroll
        for (u32 n = 0; n < PARTS; ++n) {
            multiply_square(y[n], high, low, shared.qk, n);
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 t = 8 * n + pair + (e & 1), row = group + 8 * (e >> 1);
                if (t >= rows || row >= rows_left) continue;
                out[t * stride + row] = y[n][e];
                if (!span.is_final()) store_rounded(ring_u(ring_at + t) + row, u[n][e]);
            }
        }
    }

    // Puts the rows of a chunk into the state.
    DEVICE void advance(u32 rows, float (&u)[2][4]) {
        const u32 pair = 2 * (lane_id() & 3);
        if constexpr (PER_CHANNEL) {
            for_columns([&](u32 column) {
                float newer = 0.0f;
#pragma unroll 1
                for (u32 t = CHUNK; t-- > 0;) {
                    const bool is_row = t < rows;
                    store_split(&shared.entries[0][t][place_of_one(column)], CHUNK * STRIDE, is_row ? shared.plain[t % MOST][column] * expf(newer) : 0.0f);
                    newer += is_row ? shared.channel_g[t % MOST][column] : 0.0f;
                }
                shared.fade[column] = expf(newer);
            });
            __syncthreads();
            tile.scale_columns(shared.fade);
        } else {
#pragma unroll
            for (u32 n = 0; n < PARTS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) u[n][e] *= shared.advancing[8 * n + pair + (e & 1)];
        }
        u32 high[4], low[4];
        split_left(u[0], u[1], high, low);
        if constexpr (PER_CHANNEL) {
            tile.add(high, low, &shared.entries[0][0][0] + Whole::adding_place(), CHUNK * STRIDE, 1.0f);
        } else {
            // With 8 rows the queries follow them, taken times nothing.
            tile.add(high, low, &shared.rows[0][0][0] + Whole::adding_place(), 2 * MOST * STRIDE, shared.decays[rows - 1]);
        }
    }

    DEVICE void run() {
        const bool is_final = span.is_final();
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        typename Whole::Raw raw;
        Whole::template request<LOOSE>(raw, state_at(), span.is_fresh() ? 0 : rows_left, op.key_dim, op.key_dim);
        State written[2][4];
        float values[PARTS][4], g;
        request_entries(base, min(held, CHUNK), written, g);
        request_values(0, min(span.rows, MOST), values);
        open_rows(0, min(span.rows, MOST), base, min(held, CHUNK));
        __syncthreads();
        tile.open(raw);
#pragma unroll 1
        for (u32 entry = 0; entry < held; entry += CHUNK) {
            const u32 count = min(held - entry, CHUNK);
            if (entry > 0) {
                __syncthreads();
                request_entries(base + entry, count, written, g);
                open_rows(0, 0, base + entry, count);
                __syncthreads();
            }
            fold(count, written, g);
        }
        if (span.flush()) tile.store(state_at(), rows_left, op.key_dim, op.key_dim);
#pragma unroll 1
        for (u32 first = 0; first < span.rows; first += MOST) {
            const u32 rows = min(MOST, span.rows - first);
            if (first > 0) {
                __syncthreads();
                request_values(first, rows, values);
                open_rows(first, rows, 0, 0);
                __syncthreads();
            }
            multiply_rows(rows);
            if (MOST > 8 || PER_CHANNEL) {
                __syncthreads();
            } else {
                __syncwarp();
            }
            relate(rows);
            float sums[PARTS][3][2][4] = {}, u[2][4];
            read_state(sums);
            __syncthreads();
            solve(first, rows, values, sums, u);
            const bool is_last = first + MOST >= span.rows;
            if (!is_final && is_last) return;
            advance(rows, u);
            if (is_final) tile.round();
        }
        if (is_final && span.rows > 0) tile.store(state_at(), rows_left, op.key_dim, op.key_dim);
    }
};

template <u32 KIND, typename State, u32 QUADS, u32 MOST>
DEVICE void recur_rows(const StepView& step, const Recurrence& op, u32 least, u32 most) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    Span span = step.spans[blockIdx.z];
    if (KIND != DELTA_PER_CHANNEL && span.is_final()) skip_chunks(span);
    if (span.rows < least || span.rows > most) return;
    using Whole = Rows<KIND, State, QUADS, MOST>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// Blocks have up to 8 warps; two of them have room on a multiprocessor, or one with 256 columns.
#define RECURRENCE_ROWS(name, KIND, State, QUADS, MOST)                                                               \
    KERNEL __launch_bounds__(256, QUADS > 4 ? 1 : 2)                                                                  \
        name##_rows_##MOST(StepView step, Recurrence op, u32 least, u32 most) {                                       \
        recur_rows<KIND, State, QUADS, MOST>(step, op, least, most);                                                  \
    }
