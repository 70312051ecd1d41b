// What is evicted is summed up: means and centred products of the tokens that go, merged with what was there before
// (Chan); and the rows that stay move into the places that became free (ALGORITHMS 5.3, 5.4).
#include "common/slake.cuh"

static constexpr u32 THREADS = 256, TILE = 64, AT_ONCE = 16;
// Tokens whose rows are added up one after the other for a mean.
static constexpr u32 MEAN_PART = 512;

struct Absorb {
    Pages pages;
    const u32* table;
    const u32* gone; // [kv_heads][count]
    float* sums;     // [parts of MEAN_PART tokens][kv_heads][key_dim + value_dim]
    float* means;    // [kv_heads][key_dim + value_dim]
    float* products; // [parts][kv_heads][key_dim][value_dim]
    float* squares;  // [parts][kv_heads][key_dim]
    float* vectors;  // of the slot
    void* covariances;
    u32 count, parts, each; // tokens, and how they are shared out for the products
    float before;           // tokens in the moments until now

    DEVICE u32 columns() const { return pages.key_dim + pages.value_dim; }

    // Column `c` of the key and the value of token number `i`.
    template <u32 KV> DEVICE float value(u32 head, u32 i, u32 c) const {
        const u32 token = gone[u64(head) * count + i], at = token & (pages.page_size() - 1);
        const HeadPage page = head_page<KV>(pages, table[token >> pages.shift], head);
        const bool is_key = c < pages.key_dim;
        const float x = is_key ? element<KV>(page.keys + at * page.key_stride, c)
                               : element<KV>(page.values + at * page.value_stride, c - pages.key_dim);
        return has_scales<KV>() ? x * to_float((is_key ? page.key_scales : page.value_scales)[at]) : x;
    }
};

static_assert(sizeof(Absorb) == 120, "as in src/ops/evict.rs");

// Everything here is done for several layers at once, one of `ops` for each z of a grid. Those with fewer heads, columns or
// tokens than others leave blocks to do nothing.

// Block (part of the tokens, KV head).
template <u32 KV> DEVICE void sum(const Absorb op) {
    const u32 begin = blockIdx.x * MEAN_PART, end = min(begin + MEAN_PART, op.count), head = blockIdx.y;
    if (begin >= end || head >= op.pages.kv_heads) return;
    for (u32 c = threadIdx.x; c < op.columns(); c += THREADS) {
        float total = 0.0f;
#pragma unroll 8
        for (u32 i = begin; i < end; ++i) total += op.value<KV>(head, i, c);
        op.sums[(u64(blockIdx.x) * op.pages.kv_heads + head) * op.columns() + c] = total;
    }
}

// A block per KV head.
KERNEL slake_mean(const Absorb* ops) {
    const Absorb op = ops[blockIdx.z];
    const u32 head = blockIdx.y, parts = ceil_div(op.count, MEAN_PART);
    if (op.count == 0 || head >= op.pages.kv_heads) return;
    for (u32 c = threadIdx.x; c < op.columns(); c += blockDim.x) {
        double total = 0.0;
        for (u32 part = 0; part < parts; ++part) total += op.sums[(u64(part) * op.pages.kv_heads + head) * op.columns() + c];
        op.means[u64(head) * op.columns() + c] = float(total / op.count);
    }
}

// Products of keys and values around their means. Block (tile of the products of a part of the tokens, KV head): a thread
// has four rows and four columns of the tile.
template <u32 KV> DEVICE void multiply(const Absorb op) {
    __shared__ float keys[AT_ONCE][TILE], values[AT_ONCE][TILE];
    const u32 key_dim = op.pages.key_dim, value_dim = op.pages.value_dim, across = ceil_div(value_dim, TILE);
    const u32 tiles = ceil_div(key_dim, TILE) * across, tile = blockIdx.x % tiles, part = blockIdx.x / tiles;
    const u32 row = tile / across * TILE, column = tile % across * TILE, head = blockIdx.y;
    if (part >= op.parts || head >= op.pages.kv_heads) return;
    const u32 begin = part * op.each, end = min(begin + op.each, op.count);
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    const float* means = op.means + u64(head) * op.columns();
    float sums[4][4] = {}, square = 0.0f;
    for (u32 first = begin; first < end; first += AT_ONCE) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < 2 * AT_ONCE * TILE; i += THREADS) {
            const bool is_key = i < AT_ONCE * TILE;
            const u32 at = i % (AT_ONCE * TILE), token = first + at / TILE, of_tile = at % TILE;
            const u32 c = (is_key ? row : column) + of_tile, in_row = is_key ? c : key_dim + c;
            const bool is_there = token < end && c < (is_key ? key_dim : value_dim);
            const float off = is_there ? op.value<KV>(head, token, in_row) - means[in_row] : 0.0f;
            (is_key ? keys : values)[at / TILE][of_tile] = off;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
#pragma unroll
            for (u32 n = 0; n < 4; ++n)
#pragma unroll
                for (u32 m = 0; m < 4; ++m) sums[n][m] = fmaf(keys[i][y + 16 * n], values[i][x + 16 * m], sums[n][m]);
            if (threadIdx.x < TILE) square = fmaf(keys[i][threadIdx.x], keys[i][threadIdx.x], square);
        }
    }
    const u64 of_head = u64(part) * op.pages.kv_heads + head;
#pragma unroll
    for (u32 n = 0; n < 4; ++n)
#pragma unroll
        for (u32 m = 0; m < 4; ++m) {
            const u32 r = row + y + 16 * n, c = column + x + 16 * m;
            if (r < key_dim && c < value_dim) op.products[(of_head * key_dim + r) * value_dim + c] = sums[n][m];
        }
    if (column == 0 && threadIdx.x < TILE && row + threadIdx.x < key_dim) op.squares[of_head * key_dim + row + threadIdx.x] = square;
}

DEVICE void keep(float* at, float x) { *at = x; }
DEVICE void keep(f16* at, float x) { *at = to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f)); }

// Merges the products with the covariance before: a thread per element, a row of blocks per KV head.
template <typename Stored> DEVICE void merge(const Absorb op) {
    const u32 key_dim = op.pages.key_dim, value_dim = op.pages.value_dim, head = blockIdx.y;
    const u32 i = blockIdx.x * THREADS + threadIdx.x, r = i / value_dim, c = i % value_dim;
    if (r >= key_dim || op.count == 0 || head >= op.pages.kv_heads) return;
    float sum = 0.0f;
    for (u32 part = 0; part < op.parts; ++part)
        sum += op.products[(u64(part) * op.pages.kv_heads + head) * key_dim * value_dim + i];
    Stored* stored = static_cast<Stored*>(op.covariances) + u64(head) * key_dim * value_dim + i;
    const float all = op.before + float(op.count);
    if (op.before > 0.0f) {
        const float* vectors = op.vectors + u64(head) * (2 * key_dim + value_dim);
        const float* means = op.means + u64(head) * op.columns();
        const float key = means[r] - vectors[r], value = means[key_dim + c] - vectors[2 * key_dim + c];
        sum = fmaf(op.before * float(op.count) / all, key * value, fmaf(op.before, to_float(*stored), sum));
    }
    keep(stored, sum / all);
}

KERNEL __launch_bounds__(THREADS) slake_merge_f32(const Absorb* ops) { merge<float>(ops[blockIdx.z]); }
KERNEL __launch_bounds__(THREADS) slake_merge_f16(const Absorb* ops) { merge<f16>(ops[blockIdx.z]); }

// The means and the variances, after the covariances. A block per KV head.
KERNEL slake_vectors(const Absorb* ops) {
    const Absorb op = ops[blockIdx.z];
    const u32 key_dim = op.pages.key_dim, value_dim = op.pages.value_dim, head = blockIdx.y;
    if (op.count == 0 || head >= op.pages.kv_heads) return;
    float *mean_key = op.vectors + u64(head) * (2 * key_dim + value_dim), *variance = mean_key + key_dim;
    const float* means = op.means + u64(head) * op.columns();
    const float all = op.before + float(op.count), share = float(op.count) / all;
    for (u32 c = threadIdx.x; c < op.columns(); c += blockDim.x) {
        const bool is_key = c < key_dim;
        float* mean = is_key ? mean_key + c : variance + key_dim + (c - key_dim);
        const float off = op.before > 0.0f ? means[c] - *mean : 0.0f;
        if (is_key) {
            float sum = 0.0f;
            for (u32 part = 0; part < op.parts; ++part)
                sum += op.squares[(u64(part) * op.pages.kv_heads + head) * key_dim + c];
            if (op.before > 0.0f) sum = fmaf(op.before * share, off * off, fmaf(op.before, variance[c], sum));
            variance[c] = sum / all;
        }
        *mean = op.before > 0.0f ? fmaf(share, off, *mean) : means[c];
    }
}

// Moves rows. Block (some of them, KV head, layer): a warp per row.
template <u32 KV> DEVICE void compact(const Moving& op) {
    const Leaving leaving = op.leaving[blockIdx.z];
    const Pages pages = op.layers[leaving.layer].pages;
    const u32 number = blockIdx.x * (THREADS / 32) + warp_id(), head = blockIdx.y;
    if (head >= pages.kv_heads || number >= op.counts[op.number(blockIdx.z, head)]) return;
    const u32* move = op.moves + 2 * (op.number(blockIdx.z, head) * op.most + number);
    const u32 *table = op.tables + leaving.table, from = move[0], to = move[1], mask = pages.page_size() - 1;
    const HeadPage a = head_page<KV>(pages, table[from >> pages.shift], head);
    const HeadPage b = head_page<KV>(pages, table[to >> pages.shift], head);
    const u8 *key = a.keys + (from & mask) * a.key_stride, *value = a.values + (from & mask) * a.value_stride;
    u8 *key_to = b.keys + (to & mask) * b.key_stride, *value_to = b.values + (to & mask) * b.value_stride;
    for (u32 i = lane_id(); i < a.key_stride; i += 32) key_to[i] = key[i];
    for (u32 i = lane_id(); i < a.value_stride; i += 32) value_to[i] = value[i];
    if (has_scales<KV>() && lane_id() == 0) {
        b.key_scales[to & mask] = a.key_scales[from & mask];
        b.value_scales[to & mask] = a.value_scales[from & mask];
    }
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(THREADS) slake_sum_rows_##name(const Absorb* ops) { sum<KV>(ops[blockIdx.z]); }          \
    KERNEL __launch_bounds__(THREADS) slake_multiply_##name(const Absorb* ops) { multiply<KV>(ops[blockIdx.z]); }     \
    KERNEL __launch_bounds__(THREADS) slake_compact_##name(Moving op) { compact<KV>(op); }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
