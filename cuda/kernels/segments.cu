// Segments of a sequence that are evicted (ALGORITHMS 4.2, 4.4): their keys and values are added to the memory, and what
// is behind them moves up in the table.
#include "common/memory.cuh"
#include "common/pages.cuh"
#include "common/rotation.cuh"

static constexpr u32 THREADS = 256, WARPS = THREADS / 32, TILE = 32, AT_ONCE = 32;
// Columns of a key at most: `MOST_COLUMNS` of src/ops/attention.rs.
static constexpr u32 MOST_COLUMNS = 640;

struct Segment {
    Pages pages;
    const u32* table;
    float* matrix; // of the slot: [kv_heads][key_dim][value_dim]
    float* norm;   // of the slot: [kv_heads][key_dim]
    u32 first, count;
    u32 is_fresh; // 1: there is nothing in the memory yet
    u32 not_held; // tokens of the sequence that were evicted before
    Back back;    // what is done to keys before
};

static_assert(sizeof(Segment) == 104, "as in src/ops/segments.rs");

// A column of the key and one of the value of a token; `is_there`: whether the token has both, 0 where it has not. The key is
// as it was before rotation if the memory is of such keys.
template <u32 KV>
DEVICE void read_token(const Segment& op, u32 head, u32 token, const u32 (&columns)[2], const bool (&is_there)[2], float (&out)[2]) {
    const Pages& pages = op.pages;
    const HeadPage page = head_page<KV>(pages, op.table[token >> pages.shift], head);
    const u32 at = token & (pages.page_size() - 1);
    out[0] = is_there[0] ? element<KV>(page.keys + at * page.key_stride, columns[0]) : 0.0f;
    out[1] = is_there[1] ? element<KV>(page.values + at * page.value_stride, columns[1]) : 0.0f;
    if constexpr (has_scales<KV>()) {
        out[0] *= to_float(page.key_scales[at]);
        out[1] *= to_float(page.value_scales[at]);
    }
    const Back& back = op.back;
    if (!is_there[0] || !back.turns(columns[0])) return;
    const u32 pair = back.pair_of(columns[0]);
    const bool is_first = back.is_first(columns[0]);
    float other = element<KV>(page.keys + at * page.key_stride, is_first ? back.second(pair) : back.first(pair));
    if constexpr (has_scales<KV>()) other *= to_float(page.key_scales[at]);
    const float2 angle = back.angle(pair, back.position(token, op.not_held));
    out[0] = out[0] * angle.x + (is_first ? other : -other) * angle.y;
}

// Adds the tokens to the memory, one after the other. A block per tile of a matrix and KV head: a thread has four rows of a
// column, and those of the first column of tiles have the vector.
template <u32 KV> DEVICE void absorb(const Segment& op) {
    __shared__ float keys[AT_ONCE][TILE], values[AT_ONCE][TILE];
    const u32 key_dim = op.pages.key_dim, value_dim = op.pages.value_dim, across = ceil_div(value_dim, TILE);
    const u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE, head = blockIdx.y;
    const u32 x = lane_id(), y = warp_id();
    float* matrix = op.matrix + u64(head) * key_dim * value_dim;
    float* norm = op.norm + u64(head) * key_dim + row + x;
    const u32 columns[2] = {row + x, column + x};
    const bool is_there[2] = {columns[0] < key_dim, columns[1] < value_dim}, has_norm = column == 0 && y == 0 && is_there[0];
    float sums[4], total = has_norm && !op.is_fresh ? *norm : 0.0f;
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        const u32 r = row + y + WARPS * n;
        sums[n] = !op.is_fresh && r < key_dim && is_there[1] ? matrix[u64(r) * value_dim + columns[1]] : 0.0f;
    }
    for (u32 first = 0; first < op.count; first += AT_ONCE) {
        const u32 count = min(AT_ONCE, op.count - first);
        __syncthreads();
        for (u32 i = y; i < count; i += WARPS) {
            float found[2];
            read_token<KV>(op, head, op.first + first + i, columns, is_there, found);
            keys[i][x] = is_there[0] ? positive(found[0]) : 0.0f;
            values[i][x] = found[1];
        }
        __syncthreads();
        for (u32 i = 0; i < count; ++i) {
            const float value = values[i][x];
#pragma unroll
            for (u32 n = 0; n < 4; ++n) sums[n] = fmaf(keys[i][y + WARPS * n], value, sums[n]);
            if (has_norm) total += keys[i][x];
        }
    }
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        const u32 r = row + y + WARPS * n;
        if (r < key_dim && is_there[1]) matrix[u64(r) * value_dim + columns[1]] = sums[n];
    }
    if (has_norm) *norm = total;
}

// Moves `count` tokens from `from` on `by` places up, which is no fewer, and their keys back by as many positions, unless
// there are no `pairs` that rotate. A warp per token and KV head.
template <u32 KV>
DEVICE void move_up(const Pages& pages, const u32* table, u32 from, u32 count, u32 by, const float* frequencies, u32 pairs, u32 adjacent) {
    __shared__ Angles angles;
    __shared__ float rows[WARPS][MOST_COLUMNS];
    angles.set(-double(by), frequencies, pairs, 1.0f);
    __syncthreads();
    const u32 number = blockIdx.x * WARPS + warp_id(), mask = pages.page_size() - 1;
    if (number >= count * pages.kv_heads) return;
    const u32 head = number % pages.kv_heads, token = from + number / pages.kv_heads, to = token - by;
    const HeadPage a = head_page<KV>(pages, table[token >> pages.shift], head);
    const HeadPage b = head_page<KV>(pages, table[to >> pages.shift], head);
    const u8 *key = a.keys + (token & mask) * a.key_stride, *value = a.values + (token & mask) * a.value_stride;
    u8 *key_to = b.keys + (to & mask) * b.key_stride, *value_to = b.values + (to & mask) * b.value_stride;
    for (u32 i = lane_id(); i < a.value_stride; i += 32) value_to[i] = value[i];
    if (has_scales<KV>() && lane_id() == 0) b.value_scales[to & mask] = a.value_scales[token & mask];
    if (pairs == 0) {
        for (u32 i = lane_id(); i < a.key_stride; i += 32) key_to[i] = key[i];
        if (has_scales<KV>() && lane_id() == 0) b.key_scales[to & mask] = a.key_scales[token & mask];
        return;
    }
    float* row = rows[warp_id()];
    const float scale = has_scales<KV>() ? to_float(a.key_scales[token & mask]) : 1.0f;
    for (u32 i = lane_id(); i < pages.key_dim; i += 32) row[i] = element<KV>(key, i) * scale;
    __syncwarp();
    angles.turn(row, pairs, adjacent);
    __syncwarp();
    write_row<KV>(key_to, b.key_scales + (to & mask), row, pages.key_dim, row, 0);
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(THREADS) segments_absorb_##name(Segment op) { absorb<KV>(op); }                          \
    KERNEL __launch_bounds__(THREADS)                                                                                 \
        segments_move_up_##name(Pages pages, const u32* table, u32 from, u32 count, u32 by, const float* frequencies, \
                                u32 pairs, u32 adjacent) {                                                            \
        move_up<KV>(pages, table, from, count, by, frequencies, pairs, adjacent);                                     \
    }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
