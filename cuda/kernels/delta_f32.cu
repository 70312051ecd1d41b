// The gated delta rule with a decay per head, checkpoints in f32.
#include "common/recurrence_one.cuh"
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_ONE(delta_f32_64, DELTA, float, 2, 4)
RECURRENCE_ONE(delta_f32_64, DELTA, float, 2, 1)
RECURRENCE_ONE(delta_f32_128, DELTA, float, 4, 4)
RECURRENCE_ONE(delta_f32_128, DELTA, float, 4, 1)
RECURRENCE_ONE(delta_f32_256, DELTA, float, 8, 1)

RECURRENCE_ROWS(delta_f32_64, DELTA, float, 2, 8)
RECURRENCE_ROWS(delta_f32_64, DELTA, float, 2, 16)
RECURRENCE_ROWS(delta_f32_128, DELTA, float, 4, 8)
RECURRENCE_ROWS(delta_f32_128, DELTA, float, 4, 16)
RECURRENCE_ROWS(delta_f32_256, DELTA, float, 8, 8)
RECURRENCE_ROWS(delta_f32_256, DELTA, float, 8, 16)

PROMPT(delta_f32_64, DELTA, float, 2)
PROMPT(delta_f32_128, DELTA, float, 4)
PROMPT(delta_f32_256, DELTA, float, 8)
