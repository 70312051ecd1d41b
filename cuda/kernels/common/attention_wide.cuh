// Attention of prompts over pages of f16 and of 8 bits on GPUs of compute capability 9.0: the rows of a span in whole chunks, as
// in attention_prefill.cuh. A block has a KV head and 128 queries of the heads that share it, row after row. Some warps bring
// keys and values into shared memory, twice four multiply, and work out the weights of the next tokens while the values of the
// last ones are mixed, in turns: four warps work out weights while the other four have the matrix unit. Queries and weights are
// f16, 11 bits: what products of their results would keep anyway. Elements of 8 bits are given their scale and rounded to f16 on
// the way: to the same 11 bits, and with the range that pages of f16 have.
#pragma once
#include "common/hopper.cuh"
#include "common/tiles.cuh"

#ifdef HAS_WARPGROUPS

template <u32 KV, u32 DIM> struct WidePrefill {
    static constexpr u32 GROUPS = 2, QUERIES = 64 * GROUPS;
    static constexpr u32 TOKENS = DIM <= 128 ? 128 : 64, HALVES = DIM / 64;
    // Of keys, and of values, which are read for as long as it takes to work out the next weights.
    static constexpr u32 STAGES = 2, VALUE_STAGES = has_scales<KV>() && DIM > 128 ? 2 : 3;
    // Warps that bring keys, and as many that bring values: more where they work out what is multiplied, unless those that
    // multiply need the registers.
    static constexpr u32 BRINGING = has_scales<KV>() && DIM <= 128 ? 4 : 2;
    static constexpr u32 THREADS = 128 * GROUPS + 64 * BRINGING;
    // Of a thread that brings rows, and of one that multiplies: together no more than a block begins with.
    static constexpr u32 FEW_REGISTERS = BRINGING == 4 || (DIM > 128 && !has_scales<KV>()) ? 40 : 72;
    static constexpr u32 MANY_REGISTERS = DIM > 128 && !has_scales<KV>() ? 232 : 216;
    static constexpr u32 REGISTERS = 65536 / THREADS / 8 * 8 * THREADS;
    // Of 8-bit pieces, that are waited for together, and that a thread has in its registers.
    static constexpr u32 IN_PART = DIM == 64 ? 4 : 8, AT_HAND = DIM == 64 ? 4 : DIM == 128 ? 2 : 8;
    static_assert(64 * BRINGING * FEW_REGISTERS + 128 * GROUPS * MANY_REGISTERS <= REGISTERS, "those of a block");

    typedef uint4 Tile[HALVES][TOKENS][8];

    // Rows of 64 columns in eight pieces of 16 bytes, piece `i` of row `r` at `i ^ (r % 8)`.
    struct Room {
        uint4 queries[HALVES][QUERIES][8];
        Tile keys[STAGES];
        Tile values[VALUE_STAGES];
        u64 has_keys[STAGES], has_values[VALUE_STAGES], keys_read[STAGES], values_read[VALUE_STAGES];
    };

    // Behind it, rows of 8 bits on the way, keys and values: each piece where the thread wants it that asked for it.
    typedef uint4 Arriving[2][TOKENS * DIM / 16];

    const StepView& step;
    const Pages& pages;
    const Attention& op;
    const Span& span;
    Room& shared;
    u32 kv_head, group, first, queries, end; // `end`: tokens that any query sees

    DEVICE u32 rounds() const { return ceil_div(end, TOKENS); }

    // A warp has `OF_WARP` of every `AT_ONCE` rows, `EACH` times, a thread a piece of 16 bytes of one of them. Where rows are is
    // looked up once for each: a lane does so for `LOOKUPS` of its warp, and tells the others.
    static constexpr u32 PIECES = DIM * element_bytes<KV>() / 16, OF_WARP = 32 / PIECES, AT_ONCE = BRINGING * OF_WARP;
    static constexpr u32 EACH = TOKENS / AT_ONCE, LOOKUPS = (EACH * OF_WARP + 31) / 32, PER_LOOKUP = EACH / LOOKUPS;
    static constexpr u32 PARTS = EACH / IN_PART;

    struct Places {
        u32 pages[LOOKUPS];      // looked up for a round that is to come
        const u8* rows[LOOKUPS]; // in them
        bf16 scales[LOOKUPS];    // of these rows, if they have any
    };

    // A token of a round, of which this lane knows where it is; those behind the last one are the last one.
    DEVICE u32 token_of(u32 round, u32 i) const {
        const u32 n = i * PER_LOOKUP + lane_id() / OF_WARP;
        return min(round * TOKENS + n * AT_ONCE + warp_id() % BRINGING * OF_WARP + lane_id() % OF_WARP, end - 1);
    }

    // Asks for the pages of a round.
    DEVICE void look_up(Places& places, u32 round) const {
        const u32* table = step.table(span.slot, op.ordinal);
#pragma unroll
        for (u32 i = 0; i < LOOKUPS; ++i) places.pages[i] = table[token_of(round, i) >> pages.shift];
    }

    // Where the rows of that round are; asks for their scales.
    DEVICE void find(Places& places, u32 round, bool of_values) const {
#pragma unroll
        for (u32 i = 0; i < LOOKUPS; ++i) {
            const HeadPage page = head_page<KV>(pages, places.pages[i], kv_head);
            const u32 row = token_of(round, i) & (pages.page_size() - 1);
            places.rows[i] = (of_values ? page.values : page.keys) + row * (DIM * element_bytes<KV>());
            if constexpr (has_scales<KV>()) places.scales[i] = (of_values ? page.value_scales : page.key_scales)[row];
        }
    }

    // What the lane that looked up row `n` of this thread knows of it. Written so that nothing is worked out ahead of where it is
    // used: there are no registers for it.
    DEVICE static u32 of_row(u32 of_lane, u32 n) {
        u32 x;
        asm volatile("{.reg .u32 lane; add.u32 lane, %2, %3; shfl.sync.idx.b32 %0, %1, lane, 0x1f, 0xffffffff;}"
                     : "=r"(x)
                     : "r"(of_lane), "r"(lane_id() / PIECES), "r"(n % PER_LOOKUP * OF_WARP));
        return x;
    }
    DEVICE static const u8* piece_of_row(const u8* of_lane, u32 n) {
        const u64 at = reinterpret_cast<u64>(of_lane);
        const u32 low = of_row(u32(at), n), high = of_row(u32(at >> 32), n), piece = lane_id() % PIECES * 16;
        // Memory begins at a multiple of 256 bytes, and so do rows of as many: none of them goes across a multiple of 4 GiB.
        if constexpr (!has_scales<KV>() && DIM <= 128) return reinterpret_cast<const u8*>(u64(high) << 32 | (low + piece));
        return reinterpret_cast<const u8*>(u64(high) << 32 | low) + piece;
    }

    // Where a piece of the first row of this thread goes, and from there where that of row `n` does.
    DEVICE static Shared first_place(const Tile& to, u32 piece) {
        const u32 row = threadIdx.x % (32 * BRINGING) / PIECES;
        return {shared_address(&to[piece / 8][row][piece % 8 ^ (row & 7)])};
    }
    DEVICE static Shared place_of_row(Shared first, u32 n) {
        u32 at;
        asm volatile("{xor.b32 %0, %1, %2; add.u32 %0, %0, %3;}"
                     : "=r"(at)
                     : "r"(first.at), "r"(n * AT_ONCE % 8 * 16), "r"(n * AT_ONCE * 128));
        return {at};
    }

    // Where rows of a round go, once what was there is read no more.
    DEVICE Tile& free_tile(u32 round, bool of_values) const {
        if (of_values) {
            barrier_wait(&shared.values_read[round % VALUE_STAGES], (round / VALUE_STAGES & 1) ^ 1);
            return shared.values[round % VALUE_STAGES];
        }
        barrier_wait(&shared.keys_read[round % STAGES], (round / STAGES & 1) ^ 1);
        return shared.keys[round % STAGES];
    }
    DEVICE void hand_over(u32 round, bool of_values) const {
        written_for_engines();
        barrier_arrive(of_values ? &shared.has_values[round % VALUE_STAGES] : &shared.has_keys[round % STAGES]);
    }

    // 16-bit rows go where they are multiplied from.
    DEVICE void bring(bool of_values) const {
        Places places;
        look_up(places, 0);
        for (u32 round = 0; round < rounds(); ++round) {
            find(places, round, of_values);
            if (round + 1 < rounds()) look_up(places, round + 1);
            const Shared to = first_place(free_tile(round, of_values), threadIdx.x % PIECES);
#pragma unroll
            for (u32 i = 0; i < LOOKUPS; ++i) {
#pragma unroll
                for (u32 n = i * PER_LOOKUP; n < (i + 1) * PER_LOOKUP; ++n) {
                    copy_16_async(place_of_row(to, n), piece_of_row(places.rows[i], n));
                }
            }
            copies_commit();
            copies_wait<0>();
            hand_over(round, of_values);
        }
    }

    // 8-bit rows come to a place of their own first. As soon as a thread has made f16 of a piece, it asks for that of the next
    // round, and waits for a few at a time: the last ones would not be there yet when the first are needed.
    DEVICE void bring_bytes(bool of_values) const {
        static_assert(LOOKUPS == 1, "a lane looks up one row of a round");
        Arriving& rooms = *reinterpret_cast<Arriving*>(&shared + 1);
        const Shared arriving = {shared_address(&rooms[of_values][threadIdx.x % (32 * BRINGING)])};
        const u32 piece = threadIdx.x % PIECES, second = piece / 4 % 2;
        Places places;
        look_up(places, 0);
        find(places, 0, of_values);
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part) {
#pragma unroll 1
            for (u32 n = part * IN_PART; n < (part + 1) * IN_PART; ++n) {
                copy_16_async(arriving + n * (512 * BRINGING), piece_of_row(places.rows[0], n));
            }
            copies_commit();
        }
        if (1 < rounds()) look_up(places, 1);
        for (u32 round = 0; round < rounds(); ++round) {
            const float scale = to_float(places.scales[0]) * Fractions<KV>::UNIT;
            const u32 factor = pack_f16(scale, scale);
            const bool has_next = round + 1 < rounds();
            if (has_next) find(places, round + 1, of_values);
            if (round + 2 < rounds()) look_up(places, round + 2);
            const Shared to = first_place(free_tile(round, of_values), 2 * piece + second);
#pragma unroll 1
            for (u32 part = 0; part < PARTS; ++part) {
                copies_wait<PARTS - 1>();
#pragma unroll
                for (u32 i = 0; i < IN_PART; i += AT_HAND) {
                    const u32 n = part * IN_PART + i;
                    convert(to, arriving, n, factor, second);
                    if (!has_next) continue;
#pragma unroll
                    for (u32 m = n; m < n + AT_HAND; ++m)
                        copy_16_async(arriving + m * (512 * BRINGING), piece_of_row(places.rows[0], m));
                }
                copies_commit();
            }
            hand_over(round, of_values);
        }
    }

    // Of `AT_HAND` pieces from the `n`th on. Lanes of neighbouring columns write to different banks.
    DEVICE static void convert(Shared to, Shared arriving, u32 n, u32 factor, u32 second) {
        uint4 x[AT_HAND];
        u32 by[AT_HAND];
#pragma unroll
        for (u32 i = 0; i < AT_HAND; ++i) x[i] = load_16(arriving + (n + i) * (512 * BRINGING));
#pragma unroll
        for (u32 i = 0; i < AT_HAND; ++i) by[i] = of_row(factor, n + i);
#pragma unroll
        for (u32 i = 0; i < AT_HAND; ++i) {
            const Shared place = place_of_row(to, n + i);
            const uint2 ahead = second ? make_uint2(x[i].z, x[i].w) : make_uint2(x[i].x, x[i].y);
            const uint2 behind = second ? make_uint2(x[i].x, x[i].y) : make_uint2(x[i].z, x[i].w);
            store_16(place, scaled(ahead, by[i]));
            store_16({place.at ^ 16}, scaled(behind, by[i]));
        }
    }

    DEVICE static uint4 scaled(uint2 x, u32 by) {
        u32 y[4];
        Fractions<KV>::of(x, y);
        return make_uint4(mul_f16x2(y[0], by), mul_f16x2(y[1], by), mul_f16x2(y[2], by), mul_f16x2(y[3], by));
    }

    // A warpgroup. Of the queries of this lane, in its warp: `lane / 4` and the one 8 further on.
    struct Softmax {
        float top[2], sum[2], factor[2], fade[2];
    };
    typedef float Scores[TOKENS / 2];
    typedef float Mixed[DIM / 2];
    typedef u32 Weights[TOKENS / 16][4];

    DEVICE u32 query(u32 i) const { return first + warp_id() * 16 + lane_id() / 4 + 8 * i; }

    // A warp loads its 16 queries, many at a time.
    DEVICE void load_queries(float (&factor)[2]) const {
        constexpr u32 AT_ONCE = DIM <= 128 ? 16 : 8;
#pragma unroll
        for (u32 begin = 0; begin < 16; begin += AT_ONCE) {
            float2 x[AT_ONCE][HALVES];
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 at = first + warp_id() * 16 + begin + n, query = at < queries ? at : 0;
                const u64 row = u64(span.first + query / group) * op.heads + kv_head * group + query % group;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    x[n][half] = reinterpret_cast<const float2*>(op.q + row * DIM)[half * 32 + lane_id()];
                }
            }
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 i = warp_id() * 16 + begin + n;
                float most = 0.0f;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    most = fmaxf(most, fmaxf(fabsf(x[n][half].x), fabsf(x[n][half].y)));
                }
                const u32 bits = __float_as_uint(warp_max(most)) & 0x7f800000u;
                const float power = bits < 0x02000000u || bits > 0x7d000000u ? 1.0f : __uint_as_float(bits);
                const float inverse = copysignf(1.0f / power, op.scale);
                if (lane_id() / 4 == (begin + n) % 8) factor[(begin + n) / 8] = power * fabsf(op.scale) * LOG2E;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    reinterpret_cast<u32*>(&shared.queries[half][i][lane_id() / 4 ^ (i & 7)])[lane_id() % 4] =
                        pack_f16(x[n][half].x * inverse, x[n][half].y * inverse);
                }
            }
        }
        written_for_engines();
    }

    DEVICE void multiply_keys(Scores& scores, u32 stage) const {
        products_begin();
#pragma unroll
        for (u32 k = 0; k < DIM / 16; ++k) {
            const u64 q = rows_of_128(&shared.queries[k / 4][warp_id() / 4 * 64]) + 2 * (k % 4);
            product_f16(scores, q, rows_of_128(&shared.keys[stage][k / 4]) + 2 * (k % 4), k > 0);
        }
        products_commit();
    }

    DEVICE void mix_values(Mixed& mixed, const Weights& weights, u32 stage) const {
        products_begin();
        const u64 v = rows_of_128(&shared.values[stage], sizeof(shared.values[stage][0]));
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) product_f16_transposed(mixed, weights[k], v + 128 * k, 1);
        products_commit();
    }

    // Scores become weights relative to the largest score so far; `fade`: what earlier ones become relative to it.
    DEVICE void weigh(Scores& scores, Softmax& of, u32 from) const {
        if (from + TOKENS > span.context + (first + warp_id() * 16) / group + 1) {
#pragma unroll
            for (u32 i = 0; i < TOKENS / 2; ++i) {
                const u32 token = from + i / 4 * 8 + 2 * (lane_id() & 3) + i % 2;
                if (token > span.context + query(i / 2 % 2) / group) scores[i] = MINUS_INFINITY;
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float most = MINUS_INFINITY, added = 0.0f;
#pragma unroll
            for (u32 n = 0; n < TOKENS / 2; n += 4) most = fmaxf(most, fmaxf(scores[n + 2 * i], scores[n + 2 * i + 1]));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            most = fmaxf(most * of.factor[i], of.top[i]);
            const float by = most == MINUS_INFINITY ? 0.0f : most;
            of.fade[i] = power_of_two(of.top[i] - by);
            of.top[i] = most;
#pragma unroll
            for (u32 n = 0; n < TOKENS / 2; n += 4) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    float& score = scores[n + 2 * i + e];
                    score = power_of_two(fmaf(score, of.factor[i], -by));
                    added += score;
                }
            }
            of.sum[i] = fmaf(of.sum[i], of.fade[i], added);
        }
    }

    // Weights as the left side of the next products.
    DEVICE static void pack_weights(const Scores& scores, Weights& weights) {
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) weights[k][i] = pack_f16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        }
    }

    DEVICE void release(u64* barrier) const {
        if (lane_id() == 0) barrier_arrive(barrier);
    }

    DEVICE void attend() const {
        Softmax of = {{MINUS_INFINITY, MINUS_INFINITY}, {0.0f, 0.0f}};
        Scores scores;
        Mixed mixed;
        Weights weights;
#pragma unroll
        for (u32 i = 0; i < DIM / 2; ++i) mixed[i] = 0.0f;
        load_queries(of.factor);
        if (warp_id() < 4) sync_some<1, 128>();
        else sync_some<2, 128>();
        barrier_wait(&shared.has_keys[0], 0);
        multiply_keys(scores, 0);
        products_wait<0>();
        hold(scores);
        release(&shared.keys_read[0]);
        weigh(scores, of, 0);
        pack_weights(scores, weights);
        // Four warps ask for products when the other four have asked for theirs.
        const u32 last = rounds() - 1, mine = 3 + warp_id() / 4, theirs = 7 - mine;
        if (warp_id() >= 4 && last > 0) arrive_threads(theirs, 256);
        if (last > 0) barrier_wait(&shared.has_keys[1], 0);
        for (u32 round = 0; round < last; ++round) {
            const u32 next = round + 1, value_stage = round % VALUE_STAGES;
            sync_threads(mine, 256);
            multiply_keys(scores, next % STAGES);
            barrier_wait(&shared.has_values[value_stage], round / VALUE_STAGES & 1);
            mix_values(mixed, weights, value_stage);
            if (warp_id() < 4 || next < last) arrive_threads(theirs, 256);
            products_wait<1>();
            hold(scores);
            release(&shared.keys_read[next % STAGES]);
            weigh(scores, of, next * TOKENS);
            // A branch between the weights and the end of the products: the compiler would let the former wait for the latter.
            hold(scores);
            if (next < last) barrier_wait(&shared.has_keys[(next + 1) % STAGES], (next + 1) / STAGES & 1);
            products_wait<0>();
            hold(mixed);
            release(&shared.values_read[value_stage]);
#pragma unroll
            for (u32 i = 0; i < DIM / 2; ++i) mixed[i] *= of.fade[i / 2 % 2];
            pack_weights(scores, weights);
        }
        barrier_wait(&shared.has_values[last % VALUE_STAGES], last / VALUE_STAGES & 1);
        mix_values(mixed, weights, last % VALUE_STAGES);
        products_wait<0>();
        hold(mixed);
        finish(mixed, of.sum);
    }

    DEVICE void finish(const Mixed& mixed, const float (&sum)[2]) const {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float total = sum[i];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            const u32 at = query(i);
            if (at >= queries) continue;
            const float inverse = 1.0f / total;
            const u64 row = (u64(span.first + at / group) * op.heads + kv_head * group + at % group) * DIM;
#pragma unroll
            for (u32 m = 0; m < DIM / 8; ++m) {
                const u64 column = row + m * 8 + 2 * (lane_id() & 3);
                float2 y = make_float2(mixed[4 * m + 2 * i] * inverse, mixed[4 * m + 2 * i + 1] * inverse);
                if (op.gate != nullptr) {
                    const float2 gate = *reinterpret_cast<const float2*>(op.gate + column);
                    y.x *= sigmoid(gate.x), y.y *= sigmoid(gate.y);
                }
                *reinterpret_cast<float2*>(op.out + column) = y;
            }
        }
    }

    DEVICE void run() {
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; ++stage) {
                barrier_init(&shared.has_keys[stage], 32 * BRINGING);
                barrier_init(&shared.keys_read[stage], 4 * GROUPS);
            }
            for (u32 stage = 0; stage < VALUE_STAGES; ++stage) {
                barrier_init(&shared.has_values[stage], 32 * BRINGING);
                barrier_init(&shared.values_read[stage], 4 * GROUPS);
            }
            barriers_made();
        }
        __syncthreads();
        if (threadIdx.x >= 128 * GROUPS) {
            give_registers<FEW_REGISTERS>();
            const bool of_values = threadIdx.x >= 128 * GROUPS + 32 * BRINGING;
            if constexpr (has_scales<KV>()) bring_bytes(of_values);
            else bring(of_values);
        } else {
            take_registers<MANY_REGISTERS>();
            attend();
        }
    }
};

// Block (KV head, queries, span).
template <u32 KV, u32 DIM> DEVICE void wide_prefill(const StepView& step, const Pages& pages, const Attention& op) {
    extern __shared__ __align__(1024) u8 bytes[];
    using Whole = WidePrefill<KV, DIM>;
    let_next_begin();
    wait_for_inputs();
    const Span span = step.span_in(blockIdx.z, op.ordinal);
    const u32 group = op.heads / pages.kv_heads, queries = prompt_rows(span) * group;
    // The last rows see most: they begin first.
    const u32 first = (gridDim.y - 1 - blockIdx.y) * Whole::QUERIES;
    if (first >= queries) return;
    const u32 end = span.context + (min(first + Whole::QUERIES, queries) - 1) / group + 1;
    Whole whole = {step, pages, op, span, *reinterpret_cast<typename Whole::Room*>(bytes), blockIdx.x, group, first,
                   queries, end};
    whole.run();
}

#define WIDE_PREFILL(name, KV, DIM)                                                                                   \
    KERNEL __launch_bounds__((WidePrefill<KV, DIM>::THREADS), 1)                                                      \
        attention_wide_##name##_##DIM(const StepView step, const Pages pages, const Attention op) {                   \
        wide_prefill<KV, DIM>(step, pages, op);                                                                       \
    }

#else
#define WIDE_PREFILL(name, KV, DIM)
#endif

#define WIDE_PREFILLS(name, KV)                                                                                       \
    WIDE_PREFILL(name, KV, 64)                                                                                        \
    WIDE_PREFILL(name, KV, 128)                                                                                       \
    WIDE_PREFILL(name, KV, 256)
