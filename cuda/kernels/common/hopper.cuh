// What GPUs of compute capability 9.0 have for matrices: products of four warps at once with a matrix in shared memory, and
// copies that an engine of the GPU carries out. Nothing of it exists on others.
#pragma once
#include "common/cluster.cuh"
#include "common/copy.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WARPGROUPS 1

// Copies bytes, a multiple of 16, to shared memory.
DEVICE void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// The same to both blocks of a cluster of two, to the same place, each with its own barrier.
DEVICE void copy_bulk_to_both(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
                 "%4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(u16(3))
                 : "memory");
}

template <u32 COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <u32 COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Waits for `COUNT` threads that come to barrier `NUMBER`.
DEVICE void sync_threads(u32 number, u32 count) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory"); }
// Comes to such a barrier, and goes on.
DEVICE void arrive_threads(u32 number, u32 count) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory"); }
template <u32 NUMBER, u32 COUNT> DEVICE void sync_some() { asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory"); }

// Products are under way while a warpgroup goes on: before the first one after registers were written ...
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// ... after some that belong together ...
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// ... and until all but the last `PENDING` such groups have ended.
template <u32 PENDING> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Describes rows of 128 bytes in shared memory, eight after eight (1024 bytes, at a multiple of it), in which piece `i` of 16
// bytes of row `r` is at `i ^ (r % 8)`. 32 bytes further along the rows are 2 more.
// `next`: bytes to the next 64 columns, if there are more and they are those of the transposed B.
DEVICE u64 rows_of_128(const void* at, u32 next = 16) {
    return u64((shared_address(at) & 0x3ffff) >> 4) | u64(next >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// Keeps the compiler from moving what it does with registers of products past here.
template <u32 COUNT> DEVICE void hold(float (&x)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// Registers that products read may be written to from here on, and not before.
DEVICE void hold(u32 (&w)[2][4]) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) asm volatile("" : "+r"(w[i / 4][i % 4])::"memory");
}

#define TEN(n) "%" #n "0, %" #n "1, %" #n "2, %" #n "3, %" #n "4, %" #n "5, %" #n "6, %" #n "7, %" #n "8, %" #n "9, "
#define FIRST_TEN "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define UP_TO_16 FIRST_TEN "%10, %11, %12, %13, %14, %15"
#define UP_TO_32 FIRST_TEN TEN(1) TEN(2) "%30, %31"
#define UP_TO_48 FIRST_TEN TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define UP_TO_64 FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define UP_TO_88 FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87"
#define UP_TO_96 FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define UP_TO_128                                                                                                      \
    FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)                           \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define IN_OUT_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define IN_OUT_16(d, i) IN_OUT_8(d, i), IN_OUT_8(d, i + 8)
#define IN_OUT_32(d, i) IN_OUT_8(d, i), IN_OUT_8(d, i + 8), IN_OUT_8(d, i + 16), IN_OUT_8(d, i + 24)
#define IN_OUT_48(d, i) IN_OUT_32(d, i), IN_OUT_16(d, i + 32)
#define IN_OUT_64(d, i) IN_OUT_32(d, i), IN_OUT_32(d, i + 32)
#define IN_OUT_88(d, i) IN_OUT_64(d, i), IN_OUT_16(d, i + 64), IN_OUT_8(d, i + 80)
#define IN_OUT_96(d, i) IN_OUT_64(d, i), IN_OUT_32(d, i + 64)
#define IN_OUT_128(d, i) IN_OUT_64(d, i), IN_OUT_64(d, i + 64)

// D[64][2 COUNT] = A[64][16] B[16][2 COUNT], plus D if `adds`: the rows of warp `w` of the warpgroup are `16 w..`, its
// registers of A and D those of `mma_f16` for every eight columns of D. `b`: columns of B are rows in shared memory, or, with
// TRANSPOSED, its rows are.
#define PRODUCT_OF_REGISTERS(name, type, COUNT, WIDTH, TRANSPOSED, A0, A1, A2, A3, B, ADDS)                            \
    DEVICE void name(float (&d)[COUNT], const u32 (&a)[4], u64 b, u32 adds) {                                          \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #WIDTH           \
                     "k16.f32." type "." type " {" UP_TO_##COUNT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B   \
                     ", p, 1, 1, " #TRANSPOSED ";}"                                                                    \
                     : IN_OUT_##COUNT(d, 0)                                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                \
    }
PRODUCT_OF_REGISTERS(product_f16, "f16", 16, 32, 0, 16, 17, 18, 19, 20, 21)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 16, 32, 0, 16, 17, 18, 19, 20, 21)
PRODUCT_OF_REGISTERS(product_f16, "f16", 32, 64, 0, 32, 33, 34, 35, 36, 37)
PRODUCT_OF_REGISTERS(product_f16, "f16", 48, 96, 0, 48, 49, 50, 51, 52, 53)
PRODUCT_OF_REGISTERS(product_f16, "f16", 64, 128, 0, 64, 65, 66, 67, 68, 69)
PRODUCT_OF_REGISTERS(product_f16, "f16", 88, 176, 0, 88, 89, 90, 91, 92, 93)
PRODUCT_OF_REGISTERS(product_f16, "f16", 96, 192, 0, 96, 97, 98, 99, 100, 101)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 32, 64, 0, 32, 33, 34, 35, 36, 37)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 48, 96, 0, 48, 49, 50, 51, 52, 53)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 64, 128, 0, 64, 65, 66, 67, 68, 69)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 88, 176, 0, 88, 89, 90, 91, 92, 93)
PRODUCT_OF_REGISTERS(product_bf16, "bf16", 96, 192, 0, 96, 97, 98, 99, 100, 101)
PRODUCT_OF_REGISTERS(product_f16_transposed, "f16", 32, 64, 1, 32, 33, 34, 35, 36, 37)
PRODUCT_OF_REGISTERS(product_f16_transposed, "f16", 64, 128, 1, 64, 65, 66, 67, 68, 69)
PRODUCT_OF_REGISTERS(product_f16_transposed, "f16", 128, 256, 1, 128, 129, 130, 131, 132, 133)

// The same with A in shared memory.
#define PRODUCT_OF_SHARED(name, type, COUNT, WIDTH, TRANSPOSED, A, B, ADDS)                                            \
    DEVICE void name(float (&d)[COUNT], u64 a, u64 b, u32 adds) {                                                      \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #WIDTH           \
                     "k16.f32." type "." type " {" UP_TO_##COUNT "}, %" #A ", %" #B ", p, 1, 1, 0, " #TRANSPOSED ";}"  \
                     : IN_OUT_##COUNT(d, 0)                                                                            \
                     : "l"(a), "l"(b), "r"(adds));                                                                     \
    }
PRODUCT_OF_SHARED(product_f16, "f16", 16, 32, 0, 16, 17, 18)
PRODUCT_OF_SHARED(product_f16, "f16", 32, 64, 0, 32, 33, 34)
PRODUCT_OF_SHARED(product_f16, "f16", 64, 128, 0, 64, 65, 66)
PRODUCT_OF_SHARED(product_bf16, "bf16", 128, 256, 0, 128, 129, 130)
PRODUCT_OF_SHARED(product_f16_transposed, "f16", 128, 256, 1, 128, 129, 130)

#endif
