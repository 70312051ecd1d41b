// Launches that begin before the one ahead of them has ended (`Launch::early` of src/launch.rs), on GPUs that can; and blocks of
// a launch that wait for others.
#pragma once
#include "common/types.cuh"

// Waits until everything that was launched before has ended and can be seen. A kernel that is launched early calls this in
// every thread, before it reads or writes anything but weights (`prepare_chunks` of recurrence_prompt.cuh says what else there is),
// and before any thread leaves.
DEVICE void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch begin as soon as every block of this one came here or left, and there is room: best called at the
// beginning.
DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Says `value` to other blocks, after what this block wrote before a barrier.
DEVICE void tell_blocks(u32* at, u32 value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }

// The same where nothing was written that others are to see.
DEVICE void set_for_blocks(u32* at, u32 value) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }

// Waits until another block has said `value`: one that has begun, if blocks begin in their order and it is ahead of this one, or
// one of a launch whose blocks are all at work at once.
DEVICE void wait_until_told(const u32* at, u32 value) {
    u32 told;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(told) : "l"(at) : "memory");
    } while (told != value);
}
