// New entries of page tables.
#include "common/types.cuh"

// `updates`: pairs of the index of an entry and its page. A chunk never has two for one entry.
KERNEL tables_update(u32* tables, const uint2* updates, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) tables[updates[i].x] = updates[i].y;
}
