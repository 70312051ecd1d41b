// What changes from step to step, as src/step.rs lays it out.
#pragma once
#include "common/types.cuh"

// Consecutive new rows of one sequence, and what the step does to its replay rings (backend/src/cursors.rs).
struct __align__(16) Span {
    u32 slot;
    u32 context; // position of the first row
    u32 first;   // number of the first row in the step
    u32 rows;
    u32 before_base, before_held; // the ring before a flush
    u32 after_base, after_held;   // new rows go to logical entries `after_held..`
    u32 flags;
    u32 padding[3];

    // The committed entries are folded into the checkpoint before it is read.
    DEVICE bool flush() const { return flags & 1; }
    // The rows go straight into the checkpoint.
    DEVICE bool is_final() const { return flags & 2; }
    // The checkpoint is zero and need not be read.
    DEVICE bool is_fresh() const { return flags & 4; }
};

struct StepView {
    const u32* header;   // rows, outputs, spans
    const u32* tokens;   // [rows]
    const u32* row_span; // [rows]: the span of a row
    const u32* outputs;  // [outputs]: rows whose logits are wanted
    const Span* spans;   // [spans]
    const u32* tables;   // [slots][table_stores][table_stride]
    u32 table_stride;
    u32 table_stores;

    DEVICE u32 rows() const { return header[0]; }
    DEVICE u32 output_rows() const { return header[1]; }
    DEVICE u32 span_count() const { return header[2]; }

    // The page table of a slot in page store number `ordinal`.
    DEVICE const u32* table(u32 slot, u32 ordinal) const {
        return tables + u64(slot * table_stores + ordinal) * table_stride;
    }
};
