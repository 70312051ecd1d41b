// Activations in 16 bits for products of many rows (quant/wide.cuh): unit after unit of 64 columns, in it row after row.
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/job.cuh"

// Rows that are wanted: those of `x` as they are, or, if there are pieces, as they name them: block (row, piece).
struct StagedPieces {
    const Piece* pieces;
    const u32* piece_count;
    const u32* order;
    u32 per_input;
    u32 padding;
};

// Where a row comes from and goes to; `in_order`: its place among those that are multiplied together.
struct Place {
    u32 from, to, in_order;
    bool is_there;

    DEVICE Place(const StagedPieces& wanted) : from(blockIdx.x), to(blockIdx.x), in_order(blockIdx.x), is_there(true) {
        if (wanted.pieces == nullptr) return;
        is_there = blockIdx.y < *wanted.piece_count && blockIdx.x < wanted.pieces[blockIdx.y].count;
        if (!is_there) return;
        to = wanted.pieces[blockIdx.y].first + blockIdx.x;
        from = wanted.order[to] / wanted.per_input;
    }
};

// What a thread has of a row: eight neighbouring numbers, of each of `EACH` parts of the row.
static constexpr u32 EACH = 4;

struct Row {
    const float* x;
    uint4* out;
    u32 columns, padded, rows;
    bool is_aligned;
    Place place;
    float values[EACH][8];

    DEVICE Row(const float* all, u32 stride, u32 columns, uint4* out, u32 padded, u32 rows, const StagedPieces& wanted)
        : out(out), columns(columns), padded(padded), rows(rows), is_aligned(stride % 4 == 0), place(wanted) {
        x = all + u64(place.from) * stride;
    }

    DEVICE u32 piece(u32 first, u32 i) const { return first + i * blockDim.x + threadIdx.x; }

    // From piece `first` on.
    DEVICE void load(u32 first) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 column = 8 * piece(first, i);
            if (is_aligned && column + 8 <= columns) {
                const float4 a = reinterpret_cast<const float4*>(x + column)[0], b = reinterpret_cast<const float4*>(x + column)[1];
                values[i][0] = a.x, values[i][1] = a.y, values[i][2] = a.z, values[i][3] = a.w;
                values[i][4] = b.x, values[i][5] = b.y, values[i][6] = b.z, values[i][7] = b.w;
            } else {
#pragma unroll
                for (u32 n = 0; n < 8; ++n) values[i][n] = column + n < columns ? x[column + n] : 0.0f;
            }
        }
    }

    DEVICE float most() const {
        float most = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 n = 0; n < 8; ++n) most = fmaxf(most, fabsf(values[i][n]));
        }
        return most;
    }

    // Four lanes have 32 columns, which are two steps of the matrix instruction (quant/formats.cuh): a lane has four words, and
    // gets what becomes neighbouring 16 bytes, that is one of these words of every lane. Padding is of whole units.
    template <bool IS_BF16> DEVICE void store(u32 first, float by) const {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 lane = lane_id() % 4, at = piece(first, i);
            u32 w[4];
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                const float low = values[i][2 * n], high = values[i][2 * n + 1];
                w[n] = IS_BF16 ? pack_bf16(low, high) : pack_f16(low * by, high * by);
            }
#pragma unroll
            for (u32 n = 0; n < 4; n += 2) {
                const u32 other = __shfl_xor_sync(ALL_LANES, lane & 1 ? w[n] : w[n + 1], 1);
                (lane & 1 ? w[n] : w[n + 1]) = other;
            }
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const u32 other = __shfl_xor_sync(ALL_LANES, lane & 2 ? w[n] : w[n + 2], 2);
                (lane & 2 ? w[n] : w[n + 2]) = other;
            }
            if (at >= padded / 8) continue;
            out[(u64(at / 8) * rows + place.to) * 8 + (at % 8 ^ (place.in_order & 7))] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
};

// Rows of f32 values as bfloat16, with zeros up to `padded` columns; `out` has `rows`.
KERNEL stage_wide_bf16(const float* x, u32 stride, u32 columns, uint4* out, u32 padded, u32 rows, StagedPieces wanted) {
    let_next_begin();
    wait_for_inputs();
    Row row(x, stride, columns, out, padded, rows, wanted);
    if (!row.place.is_there) return;
    for (u32 first = 0; first < padded / 8; first += EACH * blockDim.x) {
        row.load(first);
        row.store<true>(first, 1.0f);
    }
}

// The same as f16, divided as `stage_f16` of stage.cu does it. `factors` gets by what.
KERNEL stage_wide_f16(const float* x, u32 stride, u32 columns, uint4* out, u32 padded, u32 rows, StagedPieces wanted,
                     float* factors) {
    let_next_begin();
    wait_for_inputs();
    Row row(x, stride, columns, out, padded, rows, wanted);
    if (!row.place.is_there) return;
    const u32 step = EACH * blockDim.x;
    float most = 0.0f;
    for (u32 first = 0; first < padded / 8; first += step) {
        row.load(first);
        most = fmaxf(most, row.most());
    }
    most = block_max(most);
    const u32 exponent = __float_as_uint(most) >> 23;
    const u32 lift = min(max(exponent, 15u), 253u) - 14;
    const float factor = __uint_as_float(lift << 23), by = __uint_as_float((254 - lift) << 23);
    if (threadIdx.x == 0) factors[row.place.to] = factor;
    for (u32 first = 0; first < padded / 8; first += step) {
        if (step < padded / 8) row.load(first);
        row.store<false>(first, by);
    }
}
