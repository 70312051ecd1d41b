// One value of a row as it is stored, whatever its format: for tables that are read a row at a time.
#pragma once
#include "common/types.cuh"

// Numbers of `Quant` in gguf/src/quant/mod.rs.
enum Quant : u32 { QUANT_F32 = 0, QUANT_F16 = 1, QUANT_Q4_0 = 2, QUANT_Q8_0 = 8, QUANT_BF16 = 30 };

DEVICE u16 load_u16(const u8* at) { return u16(at[0]) | u16(at[1]) << 8; }

// `QUANT` is known when the kernel is compiled.
template <u32 QUANT> DEVICE float value_at(const u8* row, u32 column) {
    if constexpr (QUANT == QUANT_F32) return reinterpret_cast<const float*>(row)[column];
    if constexpr (QUANT == QUANT_F16) return to_float(reinterpret_cast<const f16*>(row)[column]);
    if constexpr (QUANT == QUANT_BF16) return to_float(reinterpret_cast<const bf16*>(row)[column]);
    if constexpr (QUANT == QUANT_Q8_0) {
        const u8* block = row + column / 32 * 34;
        return to_float(f16{load_u16(block)}) * float(i8(block[2 + column % 32]));
    }
    if constexpr (QUANT == QUANT_Q4_0) {
        const u8* block = row + column / 32 * 18;
        const u8 pair = block[2 + column % 16];
        return to_float(f16{load_u16(block)}) * float(i32(column % 32 < 16 ? pair & 15 : pair >> 4) - 8);
    }
}
