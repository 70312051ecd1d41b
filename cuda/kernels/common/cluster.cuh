// Clusters of blocks, which see each other's shared memory, and barriers there: compute capability 9.0 and more. Nothing of it
// exists on others.
#pragma once
#include "common/copy.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1

// Barriers in shared memory: a phase ends when all arrivals have come, and all bytes that were announced.
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Lets the copy engine, and the other blocks of a cluster, see barriers that were made.
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Where a place is in block `rank` of the cluster, for those that take it from any block.
DEVICE u32 address_at(Shared at, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at.at), "r"(rank));
    return there;
}

// The same to a barrier of any block of the cluster. Nothing that was written before is made visible there: it says that something
// was read.
DEVICE void barrier_arrive_there(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void barrier_arrive_at(u64* barrier, u32 rank) { barrier_arrive_there(address_at(Shared{shared_address(barrier)}, rank)); }

// Arrives, and announces bytes of copies.
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits for the end of a phase of this parity.
DEVICE void barrier_wait(Shared barrier, u32 parity) {
    asm volatile("{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
                 "@!done bra again;}" ::"r"(barrier.at),
                 "r"(parity)
                 : "memory");
}
DEVICE void barrier_wait(u64* barrier, u32 parity) { barrier_wait(Shared{shared_address(barrier)}, parity); }

// Whether there is nothing to wait for. What comes of it can be asked for long before it is needed.
DEVICE bool barrier_test(Shared barrier, u32 parity) {
    u32 done;
    asm volatile("{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done;}"
                 : "=r"(done)
                 : "r"(barrier.at), "r"(parity)
                 : "memory");
    return done != 0;
}

// Has bytes, a multiple of 16, brought to the second-level cache.
DEVICE void fetch(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

DEVICE u32 multiprocessors() {
    u32 count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
}

// Stores four floats in the shared memory of block `rank` of the cluster, at the same place as here, and tells its barrier of
// their 16 bytes.
DEVICE void store_four_at(float* to, const float* four, u64* barrier, u32 rank) {
    asm volatile("{.reg .b32 there, told; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 told, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [told];}" ::"r"(
                     shared_address(to)),
                 "r"(shared_address(barrier)), "r"(rank), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3])
                 : "memory");
}

// The same with two floats.
DEVICE void store_two_at(float* to, const float* two, u64* barrier, u32 rank) {
    asm volatile("{.reg .b32 there, told; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 told, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [told];}" ::"r"(
                     shared_address(to)),
                 "r"(shared_address(barrier)), "r"(rank), "f"(two[0]), "f"(two[1])
                 : "memory");
}

// The same with one float.
DEVICE void store_float_at(float* to, float x, u64* barrier, u32 rank) {
    asm volatile("{.reg .b32 there, told; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 told, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [told];}" ::"r"(shared_address(to)),
                 "r"(shared_address(barrier)), "r"(rank), "f"(x)
                 : "memory");
}

// Copies bytes, a multiple of 16, from shared memory to that of block `rank` of the cluster, to where `to` is here, and tells its
// barrier of them.
DEVICE void copy_to_block(const void* to, const void* from, u32 bytes, u64* barrier, u32 rank) {
    asm volatile("{.reg .b32 there, told; mapa.shared::cluster.u32 there, %0, %4; mapa.shared::cluster.u32 told, %3, %4; "
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [told];}" ::"r"(
                     shared_address(to)),
                 "r"(shared_address(from)), "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
                 : "memory");
}

// Lets the copy engine, and the matrix unit, see what this thread wrote into shared memory.
DEVICE void written_for_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE u32 rank_in_cluster() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster, in two steps: that they came, and that all have.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

#endif
