// Stored blocks into the order that products read them in (quant/formats.cuh), once, when weights are loaded.
#include "quant/formats.cuh"
#include "quant/stored.cuh"

// Writes the codes of a lane, where `CODES` keeps them.
template <class CODES> DEVICE void store_codes(u8* unit, const u32 (&codes)[2][2][8]) {
    constexpr u32 BYTES = CODES::BYTES;
    const u32 lane = threadIdx.x & 31;
    u32 low[4] = {}, two[2] = {}, one = 0, six[2][3] = {}, whole[2][2][4] = {};
#pragma unroll
    for (u32 chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const u32 code = codes[chunk][half][i], p = i / 2, high = 16 * (i % 2);
                low[2 * chunk + half] |= (code & 15) << (4 * p + high);
                two[chunk] |= (code & 3) << (two_at(half, p) + high);
                for (u32 word = 0; BYTES == 768 && word < 3; ++word) {
                    six[chunk][word] |= Sixes<0>::bits(half, p, word, code) << high;
                }
                one |= (BYTES == 640 ? code >> 4 : code >> 2 & 1) << (one_at(chunk, half, p) + high);
                whole[chunk][p / 2][p % 2 * 2 + half] |= code << high;
                if constexpr (BYTES == 1024) unit[512 * chunk + 16 * lane + 8 * half + i] = u8(code);
            }
        }
    }
    u32* words = reinterpret_cast<u32*>(unit);
    if constexpr (BYTES == 512 || BYTES == 640) {
        for (u32 i = 0; i < 4; ++i) words[4 * lane + i] = __funnelshift_l(low[i], low[i], CODES::TURN);
    }
    if constexpr (BYTES == 2048) {
        for (u32 i = 0; i < 16; ++i) words[(i / 4) * 128 + 4 * lane + i % 4] = whole[i / 8][i / 4 % 2][i % 4];
    }
    if constexpr (BYTES == 640) words[128 + lane] = one;
    if constexpr (BYTES == 768) {
        for (u32 i = 0; i < 4; ++i) words[4 * lane + i] = six[i / 2][i % 2];
        words[128 + 2 * lane] = six[0][2], words[129 + 2 * lane] = six[1][2];
    }
    if constexpr (BYTES == 256 || BYTES == 384) words[2 * lane] = two[0], words[2 * lane + 1] = two[1];
    if constexpr (BYTES == 384) words[64 + lane] = one;
}

// Where what four units share is kept, of the first of them.
template <class FORMAT> DEVICE u8* super_of(u8* tile, u32 units, u32 unit) {
    return unit % 4 == 0 ? tile + u64(units) * FORMAT::UNIT + unit / 4 * FORMAT::SUPER : nullptr;
}

// The scales of a row of a unit, which lane `row` writes; those of a row that is not there are those of zeros.
template <class STORED> DEVICE void pack_scales(const u8* stored, bool is_there, u32 columns, u8* scales, u8* super) {
    const u32 lane = threadIdx.x & 31;
    for (u32 chunk = 0; chunk < 2; ++chunk) {
        const u32 column = blockIdx.y * 64 + chunk * 32;
        const u8* from = stored + column / STORED::COLUMNS * STORED::BYTES;
        // Zeros make zeros in every format.
        u8 nothing[STORED::BYTES];
        if (!is_there || column >= columns) {
            for (u32 i = 0; i < STORED::BYTES; ++i) nothing[i] = 0;
            from = nothing;
        }
        if constexpr (STORED::COLUMNS == 32) STORED::scales(from, scales, lane, chunk);
        if constexpr (STORED::COLUMNS == 256) {
            STORED::scales(from, scales, lane, chunk, column / 32 % 8);
            if (column % 256 == 0) STORED::super(from, super, lane);
        }
    }
}

// A warp for a tile and a unit: block (tile, unit). `stored` has `rows` rows of `row_bytes`; those beyond are zeros. Halves among
// the scales stay as they are at first; `largest` becomes, as bits, the largest of what `FORMAT::most_of` says of them.
template <class FORMAT, class CODES, class SCALES, class STORED>
DEVICE void pack(const u8* stored, u8* packed, u32 rows, u32 row_bytes, u32 columns, u32 units, u32* largest) {
    const u32 lane = threadIdx.x & 31, group = lane / 4, first = 8 * (lane % 4);
    const u32 unit = blockIdx.y;
    u8* tile = packed + u64(blockIdx.x) * FORMAT::tile_bytes(units);
    u8* to = tile + u64(unit) * FORMAT::UNIT;
    u32 codes[2][2][8];
    for (u32 chunk = 0; chunk < 2; ++chunk) {
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = blockIdx.x * 16 + group + 8 * half;
            for (u32 i = 0; i < 8; ++i) {
                const u32 column = unit * 64 + chunk * 32 + first + i;
                const bool is_there = row < rows && column < columns;
                const u8* block = stored + u64(row) * row_bytes + column / STORED::COLUMNS * STORED::BYTES;
                codes[chunk][half][i] = is_there ? STORED::code(block, column % STORED::COLUMNS) : 0;
            }
        }
    }
    store_codes<CODES>(to, codes);
    if constexpr (SCALES::BYTES > 0) {
        u8 *const scales = to + CODES::BYTES, *const super = super_of<FORMAT>(tile, units, unit);
        u32 most = 0;
        if (lane < 16) {
            const u32 row = blockIdx.x * 16 + lane;
            pack_scales<STORED>(stored + u64(row) * row_bytes, row < rows, columns, scales, super);
            if constexpr (SCALES::HAS_HALVES) {
                SCALES::each_half(scales, super, lane, [&](const u8* half, bool adds) {
                    const u32 size = __float_as_uint(FORMAT::most_of(half_at(half), adds));
                    // What is no number, or beyond all of them, stays so.
                    if (size < 0x7f800000u) most = max(most, size);
                });
            }
        }
        if constexpr (SCALES::HAS_HALVES) {
            asm("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(most));
            // Hardly ever is it larger.
            if (lane == 0 && most > *reinterpret_cast<const volatile u32*>(largest)) atomicMax(largest, most);
        }
    }
}

// Brings the halves of a packed matrix into the form in which they are kept (quant/formats.cuh): a warp for a tile and a unit.
template <class FORMAT, class SCALES, class CODES> DEVICE void divide(u8* packed, u32 units, const u32* largest) {
    if constexpr (SCALES::HAS_HALVES) {
        const u32 unit = blockIdx.y;
        u8* tile = packed + u64(blockIdx.x) * FORMAT::tile_bytes(units);
        // As `factor` of src/weights.rs has it.
        const i32 exponent = *largest == 0 ? 0 : i32(*largest >> 23) - 127 - 14;
        if (threadIdx.x >= 16) return;
        u8* const scales = tile + u64(unit) * FORMAT::UNIT + CODES::BYTES;
        SCALES::each_half(scales, super_of<FORMAT>(tile, units, unit), threadIdx.x, [&](u8* half, bool adds) {
            const float by = __uint_as_float(u32(127 + FORMAT::kept_as(adds) - exponent) << 23);
            *reinterpret_cast<f16*>(half) = to_f16(half_at(half) * by);
        });
    }
}

template <class FORMAT> struct Parts;
template <class CODES, class SCALES> struct Parts<Packed<CODES, SCALES>> {
    typedef CODES Codes;
    typedef SCALES Scales;
};

#define PACK(name, Name)                                                                                              \
    KERNEL pack_##name(const u8* stored, u8* packed, u32 rows, u32 row_bytes, u32 columns, u32 units, u32* largest) { \
        typedef Parts<Format##Name> Of;                                                                               \
        pack<Format##Name, Of::Codes, Of::Scales, Stored##Name>(stored, packed, rows, row_bytes, columns, units, largest); \
    }                                                                                                                 \
    KERNEL divide_##name(u8* packed, u32 units, const u32* largest) {                                                 \
        typedef Parts<Format##Name> Of;                                                                               \
        divide<Format##Name, Of::Scales, Of::Codes>(packed, units, largest);                                          \
    }

PACK(f16, F16)
PACK(bf16, Bf16)
PACK(q4_0, Q4_0)
PACK(q4_1, Q4_1)
PACK(q5_0, Q5_0)
PACK(q5_1, Q5_1)
PACK(q8_0, Q8_0)
PACK(q2_k, Q2_K)
PACK(q3_k, Q3_K)
PACK(q4_k, Q4_K)
PACK(q5_k, Q5_K)
PACK(q6_k, Q6_K)
PACK(iq4_nl, Iq4_Nl)
PACK(iq4_xs, Iq4_Xs)
PACK(mxfp4, Mxfp4)
