// Activations in 16 bits, as products with matrices of 16 bits and less want them.
#pragma once
#include "common/copy.cuh"
#include "common/norm.cuh"
#include "common/warp.cuh"

// A row of activations in f16 is divided by a power of two that keeps its largest value, of size `most`, well within them:
// `by` is what to multiply with, the result what undoes it.
DEVICE float factor_of_row(float most, float& by) {
    // The largest value comes between 2^14 and 2^15: sums are f32, only the values themselves must not overflow.
    const u32 exponent = __float_as_uint(most) >> 23; // and 127
    const u32 lift = min(max(exponent, 15u), 253u) - 14;
    by = __uint_as_float((254 - lift) << 23);
    return __uint_as_float(lift << 23);
}

// What there is to do while something comes.
struct Nothing {
    DEVICE void operator()() const {}
};

// Where columns `at..at + 4` of a row go: a row on its own.
DEVICE void put_four(u32* to, u32 at, uint2 words) { *reinterpret_cast<uint2*>(to + at / 2) = words; }

// A row among `rows` as quant/wide.cuh wants them: unit after unit of 64 columns, in it row after row; of 32 columns, 8 of which
// a lane multiplies, word `p` of all lanes comes before word `p + 1` (stage_wide.cu).
struct RowOfUnits {
    u32* to;
    u32 rows, row;
};
DEVICE void put_four(const RowOfUnits& of, u32 at, uint2 words) {
    u32* const unit = of.to + (u64(at / 64) * of.rows + of.row) * 32;
    const u32 piece = at / 32 % 2 * 4 + at % 8 / 2, lane = at / 8 % 4, swapped = of.row & 7;
    unit[(piece ^ swapped) * 4 + lane] = words.x, unit[((piece + 1) ^ swapped) * 4 + lane] = words.y;
}

// Brings a row of activations into 16 bits, with zeros up to `padded` columns, and returns what they are to be multiplied
// with to be themselves again. All threads of a block come here.
// `meanwhile` is called when the row, or its beginning, has been asked for.
template <bool IS_BF16, typename Meanwhile = Nothing>
DEVICE float stage_row(const float* x, u32 columns, u32 padded, u32* to, Meanwhile meanwhile = {}) {
    // Fours that a thread keeps; those of very long rows, and of rows at odd places, are read again.
    constexpr u32 KEPT = 7;
    const bool is_whole = columns % 4 == 0 && (u64(x) & 15) == 0;
    const auto whole = [&](u32 at) { return at < columns ? load_four_floats(x + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f); };
    const auto four = [&](u32 at) {
        if (is_whole) return whole(at);
        float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at < columns) y.x = load_float(x + at);
        if (at + 1 < columns) y.y = load_float(x + at + 1);
        if (at + 2 < columns) y.z = load_float(x + at + 2);
        if (at + 3 < columns) y.w = load_float(x + at + 3);
        return y;
    };
    // All threads leave these loops at once: what a short row does not have costs nothing.
    const u32 turns = is_whole ? min(KEPT, ceil_div(padded, 4 * blockDim.x)) : 0, rest = 4 * (turns * blockDim.x + threadIdx.x);
    float4 kept[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        if (i == turns) break;
        kept[i] = whole(4 * (i * blockDim.x + threadIdx.x));
    }
    meanwhile();
    float factor = 1.0f, by = 1.0f;
    if constexpr (!IS_BF16) {
        float most = 0.0f;
        const auto look = [&](const float4& y) {
            most = fmaxf(fmaxf(most, fmaxf(fabsf(y.x), fabsf(y.y))), fmaxf(fabsf(y.z), fabsf(y.w)));
        };
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i) {
            if (i == turns) break;
            look(kept[i]);
        }
#pragma unroll 1
        for (u32 at = rest; at < columns; at += 4 * blockDim.x) look(four(at));
        factor = factor_of_row(largest_of_block(most), by);
    }
    const auto keep = [&](u32 at, const float4& y) {
        if (at >= padded) return;
        uint2 words;
        if constexpr (IS_BF16) words = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
        if constexpr (!IS_BF16) words = make_uint2(pack_f16(y.x * by, y.y * by), pack_f16(y.z * by, y.w * by));
        put_four(to, at, words);
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        if (i == turns) break;
        keep(4 * (i * blockDim.x + threadIdx.x), kept[i]);
    }
#pragma unroll 1
    for (u32 at = rest; at < padded; at += 4 * blockDim.x) keep(at, four(at));
    return factor;
}

// Fours of columns that a thread has of a row that is normed: `FOURS` of src/ops/normed.rs.
static constexpr u32 NORMED = 4;

// A row that is normed while it is brought into 16 bits, as norm.cu does it with so many threads: this one's columns begin with
// `at(i)`. A block has at least as many threads, a row at most NORMED fours for each of them.
struct RowNorm {
    const float* weight; // null: there is no norm
    u32 threads, columns;
    float eps;
    float4 by[NORMED];

    DEVICE u32 at(u32 i) const { return 4 * (i * threads + threadIdx.x); }
    DEVICE bool has(u32 i) const { return threadIdx.x < threads && at(i) < columns; }

    // Weights are asked for before anything is waited for.
    DEVICE RowNorm(const float* weight, u32 threads, u32 columns, float eps)
        : weight(weight), threads(threads), columns(columns), eps(eps) {
        if (weight == nullptr) return;
#pragma unroll
        for (u32 i = 0; i < NORMED; ++i) by[i] = has(i) ? load_four_floats(weight + at(i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    // `stage_row` of the normed row, which goes to `out` as well if that is not null.
    template <bool IS_BF16, typename To, typename Meanwhile = Nothing>
    DEVICE float stage(const float* x, u32 padded, To to, float* out, Meanwhile meanwhile = {}) const {
        float4 kept[NORMED];
#pragma unroll
        for (u32 i = 0; i < NORMED; ++i) kept[i] = has(i) ? load_four_floats(x + at(i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        meanwhile();
        float sum = 0.0f, most = 0.0f, factor = 1.0f, scale = 1.0f;
#pragma unroll
        for (u32 i = 0; i < NORMED; ++i) sum += square_sum(kept[i]);
        const float inverse = inverse_root(sum_of_first(sum, threads / 32), columns, eps);
#pragma unroll
        for (u32 i = 0; i < NORMED; ++i) {
            kept[i].x = normed(kept[i].x, inverse, by[i].x), kept[i].y = normed(kept[i].y, inverse, by[i].y);
            kept[i].z = normed(kept[i].z, inverse, by[i].z), kept[i].w = normed(kept[i].w, inverse, by[i].w);
            most = fmaxf(fmaxf(most, fmaxf(fabsf(kept[i].x), fabsf(kept[i].y))), fmaxf(fabsf(kept[i].z), fabsf(kept[i].w)));
        }
        if constexpr (!IS_BF16) factor = factor_of_row(largest_of_block(most), scale);
#pragma unroll
        for (u32 i = 0; i < NORMED; ++i) {
            if (threadIdx.x >= threads || at(i) >= padded) continue;
            uint2 words;
            if constexpr (IS_BF16) words = make_uint2(pack_bf16(kept[i].x, kept[i].y), pack_bf16(kept[i].z, kept[i].w));
            if constexpr (!IS_BF16) {
                words.x = pack_f16(kept[i].x * scale, kept[i].y * scale);
                words.y = pack_f16(kept[i].z * scale, kept[i].w * scale);
            }
            put_four(to, at(i), words);
            if (out != nullptr && has(i)) *reinterpret_cast<float4*>(out + at(i)) = kept[i];
        }
        return factor;
    }
};
