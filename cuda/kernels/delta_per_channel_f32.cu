// The gated delta rule with a decay per head and channel of the key, checkpoints in f32.
#include "common/recurrence_one.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_ONE(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2, 4)
RECURRENCE_ONE(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2, 1)
RECURRENCE_ONE(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4, 4)
RECURRENCE_ONE(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4, 1)
RECURRENCE_ONE(delta_per_channel_f32_256, DELTA_PER_CHANNEL, float, 8, 1)

RECURRENCE_ROWS(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2, 8)
RECURRENCE_ROWS(delta_per_channel_f32_64, DELTA_PER_CHANNEL, float, 2, 16)
RECURRENCE_ROWS(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4, 8)
RECURRENCE_ROWS(delta_per_channel_f32_128, DELTA_PER_CHANNEL, float, 4, 16)
RECURRENCE_ROWS(delta_per_channel_f32_256, DELTA_PER_CHANNEL, float, 8, 8)
RECURRENCE_ROWS(delta_per_channel_f32_256, DELTA_PER_CHANNEL, float, 8, 16)
