// The gated delta rule with a decay per head, checkpoints in f16.
#include "common/recurrence_half.cuh"
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_HALF(delta_f16_64, DELTA, 2)
RECURRENCE_HALF(delta_f16_128, DELTA, 4)
RECURRENCE_HALF(delta_f16_256, DELTA, 8)

RECURRENCE_ROWS(delta_f16_64, DELTA, f16, 2, 8)
RECURRENCE_ROWS(delta_f16_64, DELTA, f16, 2, 16)
RECURRENCE_ROWS(delta_f16_128, DELTA, f16, 4, 8)
RECURRENCE_ROWS(delta_f16_128, DELTA, f16, 4, 16)
RECURRENCE_ROWS(delta_f16_256, DELTA, f16, 8, 8)
RECURRENCE_ROWS(delta_f16_256, DELTA, f16, 8, 16)

PROMPT(delta_f16_64, DELTA, f16, 2)
PROMPT(delta_f16_128, DELTA, f16, 4)
PROMPT(delta_f16_256, DELTA, f16, 8)
