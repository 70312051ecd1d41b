// One value of a matrix on the device, whatever its format: for tables that are read a row at a time.
#pragma once
#include "quant/formats.cuh"

// Rows of `columns` f32.
struct ValuesF32 {
    DEVICE static float value(const u8* table, u32, u32 columns, u32 row, u32 column) {
        return reinterpret_cast<const float*>(table)[u64(row) * columns + column];
    }
};

template <class FORMAT> struct ValuesPacked {
    DEVICE static float value(const u8* table, u32 units, u32, u32 row, u32 column) {
        return FORMAT::value(table, units, row, column);
    }
};
