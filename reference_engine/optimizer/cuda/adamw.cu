// AdamW on one rank's shard, and the sum of squares of a gradient.  Each reads and writes memory once.
//
//   g = gradient / divisor
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps);  low = w rounded to nearest even
//
// A 16-bit gradient and a 16-bit copy: 2 + 12 bytes read and 12 + 2 written for each parameter.
//
// The file needs no header: NVRTC compiles it alone, and so does a C++ compiler that was told what
// __global__, threadIdx and the like are.  Every fused multiply-add is written out, the compiler makes none
// of its own.  The quotient and the root of the update are the hardware's (2 ulp, no branch): an exact
// division branches, and ptxas then no longer issues the loads of a pack together.

constexpr int THREADS = 256;  // of a block, at most; a power of two
constexpr int PACK = 8;       // elements that a thread takes at a time: 16 bytes of a 16-bit type

struct bfloat16 { unsigned short bits; };
struct float16 { unsigned short bits; };
struct none {};

struct alignas(16) Words { unsigned word[4]; };  // one memory access

// ---- types -----------------------------------------------------------------------------------------------

__device__ inline float decode(float value) { return value; }

__device__ inline float decode(bfloat16 value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

__device__ inline float decode(float16 value) {
    const unsigned magnitude = (value.bits & 0x7fffu) << 13;
    const bool infinite_or_nan = magnitude >= 0x7c00u << 13;
    // the exponent's bias grows from 15 to 127; a subnormal becomes normal by the same product
    const unsigned finite = __float_as_uint(__uint_as_float(magnitude) * 0x1p112f);
    const unsigned sign = (value.bits & 0x8000u) << 16;
    return __uint_as_float((infinite_or_nan ? magnitude | 0x7f800000u : finite) | sign);
}

template <typename T> __device__ T encode(float value);

template <> __device__ inline bfloat16 encode<bfloat16>(float value) {
    const unsigned bits = __float_as_uint(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const unsigned rounded = nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    return {static_cast<unsigned short>(rounded >> 16)};
}

template <> __device__ inline float16 encode<float16>(float value) {
    const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
    const unsigned magnitude = __float_as_uint(value) & 0x7fffffffu;
    unsigned result = (magnitude + 0xfffu + (magnitude >> 13 & 1u) >> 13) - (112u << 10);
    if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal's last bit is that of 0.5, so the sum rounds
        result = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    }
    if (magnitude >= 0x47800000u) {  // 2^16 and above
        result = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    }
    return {static_cast<unsigned short>(sign | result)};
}

// ---- memory, eight elements at a time --------------------------------------------------------------------

__device__ inline void load(const float* from, float (&to)[PACK]) {
    const Words low = reinterpret_cast<const Words*>(from)[0];
    const Words high = reinterpret_cast<const Words*>(from)[1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[i] = __uint_as_float(low.word[i]);
        to[i + 4] = __uint_as_float(high.word[i]);
    }
}

template <typename Half> __device__ inline void load(const Half* from, float (&to)[PACK]) {
    const Words words = *reinterpret_cast<const Words*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = decode(Half{static_cast<unsigned short>(words.word[i] & 0xffffu)});
        to[2 * i + 1] = decode(Half{static_cast<unsigned short>(words.word[i] >> 16)});
    }
}

__device__ inline void store(float* to, const float (&from)[PACK]) {
    Words low, high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        low.word[i] = __float_as_uint(from[i]);
        high.word[i] = __float_as_uint(from[i + 4]);
    }
    reinterpret_cast<Words*>(to)[0] = low;
    reinterpret_cast<Words*>(to)[1] = high;
}

template <typename Half> __device__ inline void store(Half* to, const float (&from)[PACK]) {
    Words words;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned low = encode<Half>(from[2 * i]).bits, high = encode<Half>(from[2 * i + 1]).bits;
        words.word[i] = low | high << 16;
    }
    *reinterpret_cast<Words*>(to) = words;
}

__device__ inline void store(none*, const float (&)[PACK]) {}

template <typename Half> __device__ inline void store_one(Half* to, long long index, float value) {
    to[index] = encode<Half>(value);
}

__device__ inline void store_one(none*, long long, float) {}

template <typename T> __device__ inline bool aligned(const T* pointer, long long index) {
    return reinterpret_cast<unsigned long long>(pointer + index) % 16 == 0;
}

// Elements before the first 16-byte boundary.
template <typename T> __device__ inline long long head_of(const T* pointer) {
    return static_cast<long long>(-reinterpret_cast<unsigned long long>(pointer) % 16 / sizeof(T));
}

struct Split {
    long long head;   // elements before the first pack
    long long packs;  // 0 where the arrays are aligned differently
};

__device__ inline Split split(long long elements, long long head, bool aligned) {
    if (!aligned) return {0, 0};
    return {head, (elements - head) / PACK};  // a head is shorter than a pack: never below 0
}

// Everything that no pack covers: ``index`` counts the head and goes on with the tail.
__device__ inline long long outside(const Split& parts, long long index) {
    return index < parts.head ? index : index + parts.packs * PACK;
}

// ---- AdamW -----------------------------------------------------------------------------------------------

struct Factors {
    float inverse, beta1, rest1, beta2, rest2, decay, step_size, root, eps;
};

// By squaring: an integer power, with the same bits wherever it runs.
__device__ inline double power(double base, long long exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

__device__ inline Factors factors(
    double rate, double beta1, double beta2, double eps, double weight_decay, float divisor, float step
) {
    const long long count = static_cast<long long>(step);
    Factors result;
    result.inverse = static_cast<float>(1.0 / divisor);
    result.beta1 = static_cast<float>(beta1);
    result.rest1 = static_cast<float>(1.0 - beta1);
    result.beta2 = static_cast<float>(beta2);
    result.rest2 = static_cast<float>(1.0 - beta2);
    result.decay = static_cast<float>(1.0 - rate * weight_decay);
    result.step_size = static_cast<float>(rate / (1.0 - power(beta1, count)));
    result.root = static_cast<float>(1.0 / sqrt(1.0 - power(beta2, count)));
    result.eps = static_cast<float>(eps);
    return result;
}

__device__ inline void update(float& w, float gradient, float& m, float& v, const Factors& by) {
    const float g = gradient * by.inverse;
    m = fmaf(by.beta1, m, by.rest1 * g);
    v = fmaf(by.beta2, v, by.rest2 * g * g);  // from the left: the square alone could overflow
    const float direction = m / fmaf(sqrtf(v), by.root, by.eps);
    w = fmaf(-by.step_size, direction, by.decay * w);
}

template <typename Gradient, typename Low>
__device__ inline void update_pack(
    float* w, const Gradient* g, float* m, float* v, Low* low, long long index, const Factors& by
) {
    float weight[PACK], gradient[PACK], first[PACK], second[PACK];
    load(g + index, gradient);
    load(w + index, weight);
    load(m + index, first);
    load(v + index, second);
#pragma unroll
    for (int i = 0; i < PACK; ++i) update(weight[i], gradient[i], first[i], second[i], by);
    store(w + index, weight);
    store(m + index, first);
    store(v + index, second);
    store(low + index, weight);
}

template <typename Gradient, typename Low>
__device__ inline void update_one(
    float* w, const Gradient* g, float* m, float* v, Low* low, long long index, const Factors& by
) {
    float weight = w[index], first = m[index], second = v[index];
    update(weight, decode(g[index]), first, second, by);
    w[index] = weight;
    m[index] = first;
    v[index] = second;
    store_one(low, index, weight);
}

template <typename Gradient, typename Low>
__device__ inline Split split_of(
    const float* w, const Gradient* g, const float* m, const float* v, const Low* low, long long elements
) {
    // one of 16 bits, if there is one, says where its boundary is; all others must have one there
    const long long head = sizeof(Low) == 2 ? head_of(low) : head_of(g);
    const bool states = aligned(w, head) && aligned(m, head) && aligned(v, head);
    return split(elements, head, states && aligned(g, head));
}

template <typename Gradient, typename Low>
__device__ inline void update_shard(
    float* w, const Gradient* g, float* m, float* v, Low* low, long long elements, const Factors& by
) {
    const Split parts = split_of(w, g, m, v, low, elements);
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (long long i = first; i < parts.packs; i += stride) {
        update_pack(w, g, m, v, low, parts.head + i * PACK, by);
    }
#pragma unroll 1
    for (long long i = first; i < elements - parts.packs * PACK; i += stride) {
        update_one(w, g, m, v, low, outside(parts, i), by);
    }
}

// ``divisor`` and ``found_inf`` may be null.  One thread of a block works out the factors, for all of it.
#define ADAMW(GRADIENT, LOW, NAME)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                              \
        float* w, const void* g, float* m, float* v, void* low, long long elements, double rate,             \
        double beta1, double beta2, double eps, double weight_decay, const float* divisor,                   \
        const float* found_inf, const float* step                                                            \
    ) {                                                                                                      \
        __shared__ Factors shared;                                                                           \
        if (found_inf != nullptr && *found_inf != 0.0f) return;                                              \
        if (threadIdx.x == 0) {                                                                              \
            const float by = divisor == nullptr ? 1.0f : *divisor;                                           \
            shared = factors(rate, beta1, beta2, eps, weight_decay, by, *step);                              \
        }                                                                                                    \
        __syncthreads();                                                                                     \
        update_shard(                                                                                        \
            w, static_cast<const GRADIENT*>(g), m, v, static_cast<LOW*>(low), elements, shared               \
        );                                                                                                   \
    }

ADAMW(float, none, adamw_float32_none)
ADAMW(float, bfloat16, adamw_float32_bfloat16)
ADAMW(float, float16, adamw_float32_float16)
ADAMW(bfloat16, none, adamw_bfloat16_none)
ADAMW(bfloat16, bfloat16, adamw_bfloat16_bfloat16)
ADAMW(bfloat16, float16, adamw_bfloat16_float16)
ADAMW(float16, none, adamw_float16_none)
ADAMW(float16, bfloat16, adamw_float16_bfloat16)
ADAMW(float16, float16, adamw_float16_float16)

// ---- sum of squares --------------------------------------------------------------------------------------

// Of all threads of a block, in a fixed order; valid in thread 0.
__device__ inline double sum_of_block(double value) {
    __shared__ double shared[THREADS];
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

// A square of two fp32 numbers is exact in float64, and no finite one overflows.
template <typename Gradient> __device__ inline double squares(const Gradient* g, long long elements) {
    const long long head = head_of(g);
    const Split parts = split(elements, head, aligned(g, head));
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    double total = 0.0;
#pragma unroll 1
    for (long long i = first; i < parts.packs; i += stride) {
        float gradient[PACK];
        load(g + parts.head + i * PACK, gradient);
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            const double one = gradient[j];
            total = fma(one, one, total);
        }
    }
#pragma unroll 1
    for (long long i = first; i < elements - parts.packs * PACK; i += stride) {
        const double one = decode(g[outside(parts, i)]);
        total = fma(one, one, total);
    }
    return total;
}

// One partial sum for each block, then ``sum_partials`` in one block: no atomics, so always the same order.
#define SUM_OF_SQUARES(GRADIENT, NAME)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                              \
        const void* g, long long elements, double* partials                                                  \
    ) {                                                                                                      \
        const double total = sum_of_block(squares(static_cast<const GRADIENT*>(g), elements));               \
        if (threadIdx.x == 0) partials[blockIdx.x] = total;                                                  \
    }

SUM_OF_SQUARES(float, sum_of_squares_float32)
SUM_OF_SQUARES(bfloat16, sum_of_squares_bfloat16)
SUM_OF_SQUARES(float16, sum_of_squares_float16)

extern "C" __global__ void __launch_bounds__(THREADS) sum_partials(
    const double* partials, long long count, double* result
) {
    double total = 0.0;
    for (long long i = threadIdx.x; i < count; i += blockDim.x) total += partials[i];
    total = sum_of_block(total);
    if (threadIdx.x == 0) *result = total;
}
