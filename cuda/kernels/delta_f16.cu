// The gated delta rule with a decay per head, checkpoints in f16.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(delta_f16, DELTA, f16)
RECURRENCE_OF_EIGHT(delta_f16, DELTA, f16, BLOCK_WARPS)

SEVERAL(delta_f16, DELTA, f16)

ROW(delta_f16_64, DELTA, f16, 2)
ROW(delta_f16_128, DELTA, f16, 4)
ROW(delta_f16_256, DELTA, f16, 8)
NORMED_ROW(delta_f16_128, DELTA, f16, 4)

PROMPT(delta_f16_64, DELTA, f16, 2)
PROMPT(delta_f16_128, DELTA, f16, 4)
PROMPT(delta_f16_256, DELTA, f16, 8)
