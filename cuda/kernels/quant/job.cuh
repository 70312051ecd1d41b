// What a product is given, and what becomes of its sums: `Job` of src/ops/product.rs.
#pragma once
#include "common/types.cuh"

// Parts of a row whose sums are added in their order.
static constexpr u32 SEGMENTS = 8;

// Some entries of one of the matrices that are stacked in a weight. An entry is a meeting of a row of activations with a
// matrix.
struct Piece {
    u32 matrix;
    u32 first; // in the order of entries
    u32 count;
    u32 padding;
};

// Products that read the same and write apart run beside each other (src/ops/beside.rs). LATE: the next launch is such a
// one, and may begin once what it reads is there. BESIDE: this launch is one; it does not wait before its end.
static constexpr u32 LATE = 1, BESIDE = 2;
// Most of them in a launch.
static constexpr u32 BESIDE_AT_ONCE = 4;

struct Job {
    const u8* weight;    // or the gate's
    const u8* up;        // of gated products
    // [inputs][units * 64] of 16 bits; or [inputs][x_stride] of f32; or, for wide.cuh, [units][x_stride][64] of 16 bits
    const u8* x;
    const float* factor; // [inputs], for wide.cuh [x_stride]: what 16-bit activations are multiplied by to be themselves again; or null
    const Piece* pieces; // null: every matrix has the same entries
    const float* chosen; // or every entry is a piece, and this names its matrix
    const u32* piece_count;
    const u32* order; // entries in the order of their matrices, if there are pieces
    float* out;       // entry `e` begins at `e * out_stride + column`
    const float* bias;
    const float* row_gate;
    float* parts; // of entries of which every segment is left alone: [segments][entries][rows]; or what is left (quant/wide.cuh)
    u32 rows;    // of a matrix
    u32 units;   // of 64 columns; for f32 columns
    u32 entries; // of every matrix, if there are no pieces
    u32 matrices;
    u32 per_input; // entries that share a row of activations
    u32 x_stride;
    u32 out_stride;
    u32 column;
    u32 activation;
    u32 accumulate;
    float scale;
    u32 columns;    // of a row of activations in f32 (quant/ring.cuh)
    u32 neighbours; // LATE, BESIDE
    // A norm of the activations that quant/ring.cuh makes, or null: `norm_threads` as src/ops/norm.rs says.
    u32 norm_threads;
    const float* norm;
    float* normed; // where it goes, or null
    float norm_eps;
    float weight_factor, up_factor; // of the matrices: what their packed values have been divided by (quant/formats.cuh)
    u32 padding;
    u32* left; // by block of quant/wide.cuh, or by warp for each that waits: whether it has left sums

    // Whether blocks know their pieces before anything has run.
    DEVICE bool is_regular() const { return pieces == nullptr && chosen == nullptr; }

    // The entries of a block, at most `MOST` of them. False if there are none.
    template <u32 MOST> DEVICE bool piece(Piece& piece, u32 z = blockIdx.z) const {
        if (pieces != nullptr) {
            if (blockIdx.y >= *piece_count) return false;
            piece = pieces[blockIdx.y];
            return true;
        }
        if (chosen != nullptr) {
            piece = Piece{u32(chosen[blockIdx.y]), blockIdx.y, 1, 0};
            return true;
        }
        piece.matrix = blockIdx.y;
        piece.first = z * MOST;
        piece.count = min(MOST, entries - piece.first);
        return true;
    }

    // Entry number `at` of a piece.
    DEVICE u32 entry(const Piece& piece, u32 at) const {
        if (chosen != nullptr) return piece.first;
        return order == nullptr ? (piece.first + at) * matrices + piece.matrix : order[piece.first + at];
    }

    DEVICE u32 input(u32 entry) const { return per_input == 1 ? entry : entry / per_input; }

    // Activations of entry number `at` of a piece, in 16 bits row after row.
    DEVICE const u8* staged_row(const Piece& piece, u32 at) const { return x + u64(input(entry(piece, at))) * units * 128; }

    DEVICE float factor_of(u32 entry) const { return factor == nullptr ? 1.0f : factor[input(entry)]; }

    DEVICE float* out_at(u32 entry, u32 row) const { return out + u64(entry) * out_stride + column + row; }

    // What products of an entry are multiplied with in the end.
    DEVICE float weight_of(u32 entry) const {
        return row_gate == nullptr ? scale : __fmul_rn(sigmoid(row_gate[entry]), scale);
    }

    // What a product ends with besides its sum: it can be asked for while that is still being made.
    struct Ending {
        float factor, bias, weight, before;
    };
    DEVICE Ending ending(u32 entry, u32 row, float factor) const {
        return {__fmul_rn(factor, weight_factor), bias == nullptr ? 0.0f : bias[row], weight_of(entry),
                accumulate ? *out_at(entry, row) : 0.0f};
    }
    DEVICE Ending ending(u32 entry, u32 row) const { return ending(entry, row, factor_of(entry)); }

    // Ends a product of entry `entry` with row `row` of its matrix. No sum is fused with a product: which of them are is up to the
    // compiler otherwise, in every kernel anew.
    DEVICE void finish(u32 entry, u32 row, float sum, const Ending& with) const {
        float y = __fmul_rn(sum, with.factor);
        if (bias != nullptr) y = __fadd_rn(y, with.bias);
        y = __fmul_rn(activate(activation, y), with.weight);
        *out_at(entry, row) = accumulate ? __fadd_rn(with.before, y) : y;
    }
    DEVICE void finish(u32 entry, u32 row, float sum) const { finish(entry, row, sum, ending(entry, row)); }

    // The same for a gate and what it gates.
    DEVICE void finish_gated(u32 entry, u32 row, float gate, float sum, float by) const {
        gate = __fmul_rn(gate, __fmul_rn(by, weight_factor)), sum = __fmul_rn(sum, __fmul_rn(by, up_factor));
        *out_at(entry, row) = activate(activation, gate) * sum;
    }
    DEVICE void finish_gated(u32 entry, u32 row, float gate, float sum) const {
        finish_gated(entry, row, gate, sum, factor_of(entry));
    }
};

// Products of one input that write apart, whose tiles are gone through as if they were those of one; unused ones have no
// rows.
template <u32 COUNT> struct Jobs {
    Job of[COUNT];

    DEVICE u32 tiles() const {
        u32 all = 0;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) all += ceil_div(of[i].rows, 16u);
        return all;
    }

    // The job that a tile is of, which becomes its place there; the last one if there is no such tile.
    DEVICE const Job& of_tile(u32& tile) const {
        u32 i = 0;
        for (; i + 1 < COUNT; ++i) {
            const u32 all = ceil_div(of[i].rows, 16u);
            if (tile < all) break;
            tile -= all;
        }
        return of[i];
    }

    // `use(job, at)` with the job that a tile is of and its place there.
    template <typename Use> DEVICE void with(u32 tile, Use use) const {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 all = ceil_div(of[i].rows, 16u);
            if (tile < all) return use(of[i], tile);
            tile -= all;
        }
    }
};
