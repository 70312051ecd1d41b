// Pages of keys and values, as backend/src/store/pages.rs lays them out: per KV head the keys, the values behind them
// unless they are columns of the keys, then, for 8-bit pages, a scale per key and a scale per value.
#pragma once
#include "common/warp.cuh"

struct Pages {
    u8* base;
    u64 stride; // bytes from one page to the next
    u32 shift;  // a page has `1 << shift` tokens
    u32 kv_heads;
    u32 key_dim;
    u32 value_dim;
    u32 latent; // 1: a value is the first columns of its key
    u32 padding;

    DEVICE u32 page_size() const { return 1u << shift; }
    DEVICE u32 head_elements() const { return latent ? key_dim : key_dim + value_dim; }
};

static_assert(sizeof(Pages) == 40, "as in src/pages.rs");

// `KvType` of backend/src/store/pages.rs.
enum KvType : u32 { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_F8 };

// Whether elements have 8 bits, and rows scales.
template <u32 KV> DEVICE constexpr bool has_scales() { return KV == KV_Q8_0 || KV == KV_F8; }

template <u32 KV> DEVICE constexpr u32 element_bytes() { return KV == KV_F32 ? 4 : has_scales<KV>() ? 1 : 2; }
template <u32 KV> DEVICE constexpr u32 scale_bytes() { return has_scales<KV>() ? 2 : 0; }

// One KV head of a page.
struct HeadPage {
    u8* keys;
    u8* values;
    bf16* key_scales;
    bf16* value_scales;
    u32 key_stride, value_stride; // bytes from token to token
};

template <u32 KV> DEVICE HeadPage head_page(const Pages& pages, u32 page, u32 head) {
    constexpr u32 E = element_bytes<KV>(), S = scale_bytes<KV>();
    const u32 tokens = pages.page_size(), elements = pages.head_elements();
    const u64 bytes = u64(tokens) * (elements * E + (pages.latent ? 1 : 2) * S);
    HeadPage found;
    found.keys = pages.base + page * pages.stride + head * bytes;
    found.values = pages.latent ? found.keys : found.keys + u64(tokens) * pages.key_dim * E;
    found.key_scales = reinterpret_cast<bf16*>(found.keys + u64(tokens) * elements * E);
    found.value_scales = pages.latent ? found.key_scales : found.key_scales + tokens;
    found.key_stride = pages.key_dim * E;
    found.value_stride = (pages.latent ? pages.key_dim : pages.value_dim) * E;
    return found;
}

// An element without its scale.
template <u32 KV> DEVICE float element(const u8* row, u32 i) {
    if constexpr (KV == KV_F32) return reinterpret_cast<const float*>(row)[i];
    if constexpr (KV == KV_F16) return to_float(reinterpret_cast<const f16*>(row)[i]);
    if constexpr (KV == KV_BF16) return to_float(reinterpret_cast<const bf16*>(row)[i]);
    if constexpr (KV == KV_Q8_0) return float(reinterpret_cast<const i8*>(row)[i]);
    if constexpr (KV == KV_F8) return f8_to_float(row[i]);
}

// Writes a row of a head in two parts, rounded to the type of the pages. A warp does so together.
template <u32 KV>
DEVICE void write_row(u8* row, bf16* scale_at, const float* first, u32 first_len, const float* second, u32 second_len) {
    const u32 len = first_len + second_len;
    auto value = [&](u32 i) { return i < first_len ? first[i] : second[i - first_len]; };
    float inverse = 0.0f;
    if constexpr (has_scales<KV>()) {
        // Magnitudes are ordered as their bits are, and what is not finite comes last.
        u32 most = 0;
        for (u32 i = lane_id(); i < len; i += 32) most = max(most, __float_as_uint(value(i)) & 0x7fffffffu);
#pragma unroll
        for (u32 offset = 16; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
        const float largest = __uint_as_float(most);
        bf16 scale = {0};
        if (most >= 0x7f800000u) {
            scale.bits = 0x7fc0;
        } else if (largest >= 1e-30f) {
            scale = to_bf16(__fdiv_rn(largest, KV == KV_F8 ? 448.0f : 127.0f));
            inverse = __fdiv_rn(1.0f, to_float(scale));
        }
        if (lane_id() == 0) *scale_at = scale;
    }
    for (u32 i = lane_id(); i < len; i += 32) {
        const float x = value(i);
        if constexpr (KV == KV_F32) reinterpret_cast<float*>(row)[i] = x;
        if constexpr (KV == KV_F16) reinterpret_cast<f16*>(row)[i] = to_f16(x);
        if constexpr (KV == KV_BF16) reinterpret_cast<bf16*>(row)[i] = to_bf16(x);
        if constexpr (KV == KV_Q8_0) {
            // The low bits of the sum are those of the nearest integer.
            row[i] = u8(__float_as_uint(__fadd_rn(__fmul_rn(x, inverse), 12582912.0f)));
        }
        if constexpr (KV == KV_F8) row[i] = to_f8(__fmul_rn(x, inverse));
    }
}
