// Wide loads, and copies from global to shared memory that threads do not wait for.
#pragma once
#include "common/types.cuh"

// 16 bytes that nobody writes while the kernel runs.
DEVICE uint4 load_16(const void* from) {
    uint4 x;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// The same for bytes that are read once: weights, keys and values.
DEVICE uint4 load_16_once(const void* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// 16 bytes that a kernel wrote which may still have run when this one began.
DEVICE uint4 load_16_written(const void* from) {
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

// Floats as all multiprocessors see them: for what was written while others may have been kept from the same place.
DEVICE float load_float(const float* from) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

DEVICE float4 load_four_floats(const float* from) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

DEVICE uint2 load_8(const void* from) {
    uint2 x;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}

DEVICE u32 load_4(const u8* from) { return *reinterpret_cast<const u32*>(from); }

DEVICE u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }

// A place in shared memory, for loads that may be from there as well.
struct Shared {
    u32 at;
    DEVICE Shared operator+(u32 bytes) const { return Shared{at + bytes}; }
};

// The same, which is not found again where it is used.
DEVICE Shared once(Shared at) {
    asm("" : "+r"(at.at));
    return at;
}

DEVICE uint4 load_16(Shared from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from.at));
    return x;
}

DEVICE uint4 load_16_once(Shared from) { return load_16(from); }

DEVICE void store_16(Shared to, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to.at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

DEVICE uint2 load_8(Shared from) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from.at));
    return x;
}

DEVICE u32 load_4(Shared from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from.at));
    return x;
}

// Copies 16 bytes into shared memory; zeros if not `valid`.
DEVICE void copy_16_async(void* to, const void* from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

DEVICE void copy_16_async(Shared to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to.at), "l"(from) : "memory");
}

// The same if it is `wanted`. It is no branch: behind one that lanes may go through apart, the compiler takes nothing for alike in
// all lanes of a warp.
DEVICE void copy_16_async_if(bool wanted, Shared to, const void* from) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to.at), "l"(from),
                 "r"(u32(wanted))
                 : "memory");
}
// The same for bytes that are read once: they are the first to leave the second-level cache.
DEVICE void copy_16_async_once_if(bool wanted, Shared to, const void* from) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0;"
                 " @p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;}" ::"r"(to.at),
                 "l"(from), "l"(policy), "r"(u32(wanted))
                 : "memory");
}

DEVICE void copy_16_async(Shared to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// Copies 8 bytes.
DEVICE void copy_8_async(Shared to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to.at), "l"(from), "r"(valid ? 8 : 0) : "memory");
}

// Copies 4 bytes.
DEVICE void copy_4_async(void* to, const void* from, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

DEVICE void copy_4_async(Shared to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to.at), "l"(from) : "memory");
}

DEVICE void copy_4_async(Shared to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to.at), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

// Ends a group of copies of this thread.
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of the last groups of this thread are under way.
template <u32 PENDING> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
