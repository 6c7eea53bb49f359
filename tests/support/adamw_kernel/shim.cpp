// What adamw.cu takes for granted of CUDA, in C++.  A thread of a block is a thread; blocks run one after
// another, so that __shared__ may be a static object.  A misaligned access, which a GPU refuses, is counted.

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

struct Index {
    unsigned x;
};
static thread_local Index threadIdx, blockIdx;
static Index blockDim, gridDim;

class Barrier {
public:
    explicit Barrier(int threads) : threads_(threads) {}
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        const unsigned round = round_;
        if (++waiting_ == threads_) {
            waiting_ = 0;
            ++round_;
            all_here_.notify_all();
        } else {
            all_here_.wait(lock, [&] { return round != round_; });
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable all_here_;
    int threads_, waiting_ = 0;
    unsigned round_ = 0;
};
static Barrier* barrier;

// Called by what -fsanitize=alignment puts before each access; the sanitizer's own library is not linked.
static std::atomic<long long> misaligned;
extern "C" void __ubsan_handle_type_mismatch_v1(void*, void*) { ++misaligned; }
extern "C" long long misaligned_accesses() { return misaligned; }

static void __syncthreads() { barrier->wait(); }
static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
using std::fma;
using std::sqrt;

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __builtin_assume(condition)

#include "adamw.cu"

template <typename... Arguments>
static void run(void (*kernel)(Arguments...), int blocks, int threads, Arguments... arguments) {
    Barrier all(threads);
    barrier = &all;
    blockDim.x = static_cast<unsigned>(threads);
    gridDim.x = static_cast<unsigned>(blocks);
    std::vector<std::thread> workers;
    for (int thread = 0; thread < threads; ++thread) {
        workers.emplace_back([=, &all] {
            threadIdx.x = static_cast<unsigned>(thread);
            for (int block = 0; block < blocks; ++block) {
                blockIdx.x = static_cast<unsigned>(block);
                kernel(arguments...);
                all.wait();
            }
        });
    }
    for (std::thread& worker : workers) worker.join();
}

extern "C" void run_adamw(
    decltype(&adamw_float32_none) kernel, int blocks, int threads, const Shard* shards, const long long* starts,
    long long tiles, double rate, double beta1, double beta2, double eps, double weight_decay,
    const float* divisor, const float* found_inf
) {
    run(kernel, blocks, threads, shards, starts, tiles, rate, beta1, beta2, eps, weight_decay, divisor,
        found_inf);
}

extern "C" void run_squares(
    decltype(&sum_of_squares_float32) kernel, int blocks, int threads, const GradientPart* gradients,
    const long long* starts, long long tiles, double* partials
) {
    run(kernel, blocks, threads, gradients, starts, tiles, partials);
}

extern "C" void run_partials(
    decltype(&sum_partials) kernel, int blocks, int threads, const double* partials, long long count,
    double* result
) {
    run(kernel, blocks, threads, partials, count, result);
}

// Where a thread's pack lies in arrays without a head.
extern "C" long long first_element(int threads, int thread, long long tile, int pack) {
    blockDim.x = static_cast<unsigned>(threads);
    threadIdx.x = static_cast<unsigned>(thread);
    return element_of({0, 0}, pack_of(tile) + pack * threads);
}
