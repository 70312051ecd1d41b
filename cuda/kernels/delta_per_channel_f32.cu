// The gated delta rule with a decay per head and channel of the key, checkpoints in f32.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(delta_per_channel_f32, DELTA_PER_CHANNEL, float)

SEVERAL(delta_per_channel_f32, DELTA_PER_CHANNEL, float)

ROW(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2)
ROW(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4)
ROW(delta_per_channel_f32_256, DELTA_PER_CHANNEL, float, 8)
NORMED_ROW(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4)

PROMPT(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2)
PROMPT(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4)
