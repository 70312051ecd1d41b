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
    // There are sums of tokens that were evicted (`StepView::span_in`).
    DEVICE bool has_sums() const { return flags & 8; }
};

// What a page store holds of a sequence that may evict tokens.
struct __align__(16) Bound {
    u32 held;       // tokens before the span
    float count;    // tokens in the moments of each KV head
    float mass_cap; // in nats
    u32 flags;

    // Tokens were evicted head by head, or could have been.
    DEVICE bool is_bounded() const { return flags & 1; }
    // Segments went into the memory of the slot.
    DEVICE bool has_memory() const { return flags & 2; }
};

struct StepView {
    const u32* header;   // rows, outputs, spans
    const u32* tokens;   // [rows]
    const u32* row_span; // [rows]: the span of a row
    const u32* outputs;  // [outputs]: rows whose logits are wanted
    const Span* spans;   // [spans]
    const u32* tables;   // [slots][table_stores][table_stride]
    const Bound* bounds; // [spans][table_stores], none if all stores hold all tokens
    u32 table_stride;
    u32 table_stores;

    DEVICE u32 rows() const { return header[0]; }
    DEVICE u32 output_rows() const { return header[1]; }
    DEVICE u32 span_count() const { return header[2]; }

    DEVICE Bound bound(u32 span, u32 ordinal) const { return bounds[span * table_stores + ordinal]; }

    // A span as page store number `ordinal` has it: its context is what is held.
    DEVICE Span span_in(u32 number, u32 ordinal) const {
        Span span = spans[number];
        if (bounds == nullptr) return span;
        const Bound of_store = bound(number, ordinal);
        span.context = of_store.held;
        if (of_store.count > 0.0f) span.flags |= 8;
        return span;
    }

    // The page table of a slot in page store number `ordinal`.
    DEVICE const u32* table(u32 slot, u32 ordinal) const {
        return tables + u64(slot * table_stores + ordinal) * table_stride;
    }
};
