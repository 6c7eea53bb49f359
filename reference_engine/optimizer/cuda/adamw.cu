// AdamW on the shards of one rank, and the sum of squares of its gradients.  Each reads and writes memory once,
// and adjacent threads access adjacent packs, so that a warp's access covers whole sectors.  One launch takes any
// number of arrays: a table in device memory says where they are.
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
constexpr int BLOCKS = 3;     // that fit a multiprocessor, of AdamW
constexpr int PACK = 4;       // elements of one access: 16 bytes in 32-bit types, 8 in 16-bit ones
constexpr int PACKS = 2;      // that a thread has under way: its own, and that of the thread a block further

struct bfloat16 { unsigned short bits; };
struct float16 { unsigned short bits; };
struct none {};

template <int COUNT> struct alignas(4 * COUNT) Words { unsigned word[COUNT]; };  // one memory access

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
    const unsigned quiet = bits | 0x400000u, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return {static_cast<unsigned short>((nan ? quiet : rounded) >> 16)};
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

// ---- memory, one pack at a time --------------------------------------------------------------------------

__device__ inline void load(const float* from, float (&to)[PACK]) {
    const Words<4> words = *reinterpret_cast<const Words<4>*>(from);
#pragma unroll
    for (int i = 0; i < PACK; ++i) to[i] = __uint_as_float(words.word[i]);
}

template <typename Half> __device__ inline void load(const Half* from, float (&to)[PACK]) {
    const Words<2> words = *reinterpret_cast<const Words<2>*>(from);
#pragma unroll
    for (int i = 0; i < PACK / 2; ++i) {
        to[2 * i] = decode(Half{static_cast<unsigned short>(words.word[i] & 0xffffu)});
        to[2 * i + 1] = decode(Half{static_cast<unsigned short>(words.word[i] >> 16)});
    }
}

__device__ inline void store(float* to, const float (&from)[PACK]) {
    Words<4> words;
#pragma unroll
    for (int i = 0; i < PACK; ++i) words.word[i] = __float_as_uint(from[i]);
    *reinterpret_cast<Words<4>*>(to) = words;
}

template <typename Half> __device__ inline void store(Half* to, const float (&from)[PACK]) {
    unsigned long long word = 0;  // of two words the compiler would make two accesses
#pragma unroll
    for (int i = 0; i < PACK; ++i) word |= static_cast<unsigned long long>(encode<Half>(from[i]).bits) << 16 * i;
    *reinterpret_cast<unsigned long long*>(to) = word;
}

__device__ inline void store(none*, const float (&)[PACK]) {}

template <typename Half> __device__ inline void store_one(Half* to, long long index, float value) {
    to[index] = encode<Half>(value);
}

__device__ inline void store_one(none*, long long, float) {}

template <typename T> __device__ inline bool aligned(const T* pointer, long long index) {
    return reinterpret_cast<unsigned long long>(pointer + index) % (PACK * sizeof(T)) == 0;
}

// Elements before the first boundary of a pack.
template <typename T> __device__ inline long long head_of(const T* pointer) {
    return static_cast<long long>(
        -reinterpret_cast<unsigned long long>(pointer) % (PACK * sizeof(T)) / sizeof(T)
    );
}

// Elements that a block has under way: PACKS packs for each of its threads.
__device__ inline long long tile_elements() { return static_cast<long long>(blockDim.x) * PACKS * PACK; }

struct Split {
    long long head;   // elements before the first pack
    long long packs;  // 0 where the arrays are aligned differently, or have no whole pack
};

__device__ inline Split split(long long elements, long long head, bool aligned) {
    if (!aligned || elements < head + PACK) return {0, 0};
    return {head, (elements - head) / PACK};
}

__device__ inline long long full_tiles(const Split& parts) {
    return parts.packs / (static_cast<long long>(blockDim.x) * PACKS);
}

// The first of a thread's packs in a tile; the others are a block further each.
__device__ inline long long pack_of(long long tile) { return tile * blockDim.x * PACKS + threadIdx.x; }

__device__ inline long long element_of(const Split& parts, long long pack) { return parts.head + pack * PACK; }

// Elements that no pack covers, of the tiles from ``tile`` to ``end``: ``from`` to ``to``, as ``outside`` counts.
// Without packs that is every element; the few before and behind the packs belong to the first tile.
struct Singles {
    long long from, to;
};

__device__ inline Singles singles(const Split& parts, long long elements, long long tile, long long end) {
    if (parts.packs > 0) return {0, tile == 0 ? elements - parts.packs * PACK : 0};
    const long long stop = end * tile_elements();
    return {tile * tile_elements(), stop < elements ? stop : elements};
}

__device__ inline long long outside(const Split& parts, long long index) {
    return index < parts.head ? index : index + parts.packs * PACK;
}

// ---- the table of a launch -------------------------------------------------------------------------------

// Tiles are counted through all arrays; ``first`` is an array's first one and ``end`` that of the next.  A block
// takes adjacent tiles, so that it meets few arrays, and ``starts`` has the array in which it begins.  ``first``
// and ``end`` follow from lengths alone, however the arrays are aligned.
struct Shard {
    void *w, *g, *m, *v, *low;
    const float* step;
    const float* skip;  // null, or not 0 where the shard is left alone
    long long elements, first, end;
};

struct GradientPart {
    void* g;
    long long elements, first, end;
};

// The compiler does not know that a pointer it reads from memory is one to device memory: it would keep accesses
// to shared memory in order with those through it, for which the registers do not suffice.
template <typename T> __device__ inline T* in_global(void* pointer) {
    __builtin_assume(__isGlobal(pointer));
    return static_cast<T*>(pointer);
}

__device__ inline long long first_tile(long long tiles, unsigned block) { return tiles * block / gridDim.x; }

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

// A thread's ``COUNT`` packs, a block apart; all loads are issued before the first result is needed.
template <int COUNT, typename Gradient, typename Low>
__device__ inline void update_packs(
    float* w, const Gradient* g, float* m, float* v, Low* low, const Split& parts, long long pack,
    const Factors& by
) {
    float weight[COUNT][PACK], gradient[COUNT][PACK], first[COUNT][PACK], second[COUNT][PACK];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const long long index = element_of(parts, pack + i * static_cast<long long>(blockDim.x));
        load(g + index, gradient[i]);
        load(w + index, weight[i]);
        load(m + index, first[i]);
        load(v + index, second[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const long long index = element_of(parts, pack + i * static_cast<long long>(blockDim.x));
#pragma unroll
        for (int j = 0; j < PACK; ++j) update(weight[i][j], gradient[i][j], first[i][j], second[i][j], by);
        store(w + index, weight[i]);
        store(m + index, first[i]);
        store(v + index, second[i]);
        store(low + index, weight[i]);
    }
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
    const long long head = head_of(g);  // all others must have a boundary there
    const bool states = aligned(w, head) && aligned(m, head) && aligned(v, head);
    return split(elements, head, states && (sizeof(Low) != 2 || aligned(low, head)));
}

// The tiles of a shard from ``tile`` to ``end``, counted from its own first one.
template <typename Gradient, typename Low>
__device__ inline void update_tiles(const Shard& shard, long long tile, long long end, const Factors& by) {
    float *w = in_global<float>(shard.w), *m = in_global<float>(shard.m), *v = in_global<float>(shard.v);
    const Gradient* g = in_global<const Gradient>(shard.g);
    Low* low = in_global<Low>(shard.low);
    const Split parts = split_of(w, g, m, v, low, shard.elements);
    const Singles rest = singles(parts, shard.elements, tile, end);
    const long long full = full_tiles(parts) < end ? full_tiles(parts) : end;
#pragma unroll 1
    for (; tile < full; ++tile) update_packs<PACKS>(w, g, m, v, low, parts, pack_of(tile), by);
    if (tile < end) {  // the last tile, of fewer packs
#pragma unroll 1
        for (long long pack = pack_of(tile); pack < parts.packs; pack += blockDim.x) {
            update_packs<1>(w, g, m, v, low, parts, pack, by);
        }
    }
#pragma unroll 1
    for (long long i = rest.from + threadIdx.x; i < rest.to; i += blockDim.x) {
        update_one(w, g, m, v, low, outside(parts, i), by);
    }
}

// ``divisor`` and ``found_inf`` may be null.  One thread works out the factors of a shard, for its block.
#define ADAMW(GRADIENT, LOW, NAME)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(                                      \
        const Shard* shards, const long long* starts, long long tiles, double rate, double beta1,            \
        double beta2, double eps, double weight_decay, const float* divisor, const float* found_inf          \
    ) {                                                                                                      \
        __shared__ Shard here;                                                                               \
        __shared__ Factors shared;                                                                           \
        if (found_inf != nullptr && *found_inf != 0.0f) return;                                              \
        const long long last = first_tile(tiles, blockIdx.x + 1);                                            \
        long long tile = first_tile(tiles, blockIdx.x);                                                      \
        for (const Shard* shard = shards + starts[blockIdx.x]; tile < last; ++shard) {                       \
            __syncthreads(); /* the shard before is not read any more */                                     \
            if (threadIdx.x == 0) {                                                                          \
                const float by = divisor == nullptr ? 1.0f : *divisor;                                       \
                here = *shard;                                                                               \
                shared = factors(rate, beta1, beta2, eps, weight_decay, by, *here.step);                     \
            }                                                                                                \
            __syncthreads();                                                                                 \
            const long long stop = here.end < last ? here.end : last;                                        \
            if (here.skip == nullptr || *here.skip == 0.0f) {                                                \
                update_tiles<GRADIENT, LOW>(here, tile - here.first, stop - here.first, shared);             \
            }                                                                                                \
            tile = stop;                                                                                     \
        }                                                                                                    \
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

// Sums of a thread in fp32, which any GPU adds fast, and float64 not.  Squares of large and of small numbers
// have sums of their own, scaled by powers of two: no finite one overflows, and none vanishes.
struct Squares {
    float large, medium, small;
};

constexpr float LARGE = 0x1p50f, SMALL = 0x1p-50f;

__device__ inline void add_square(Squares& to, float value) {
    const float magnitude = fabsf(value);
    const float large = magnitude > LARGE ? value * 0x1p-80f : 0.0f;
    const float small = magnitude < SMALL ? value * 0x1p100f : 0.0f;
    const float medium = magnitude > LARGE || magnitude < SMALL ? 0.0f : value;  // nan too
    to.large = fmaf(large, large, to.large);
    to.medium = fmaf(medium, medium, to.medium);
    to.small = fmaf(small, small, to.small);
}

__device__ inline double total_of(const Squares& sums) {
    return fma(0x1p160, static_cast<double>(sums.large), static_cast<double>(sums.medium))
        + 0x1p-200 * static_cast<double>(sums.small);
}

template <typename Element>
__device__ inline void add_squares(Squares& sums, const GradientPart& gradient, long long tile, long long end) {
    const Element* g = in_global<const Element>(gradient.g);
    const long long head = head_of(g);
    const Split parts = split(gradient.elements, head, aligned(g, head));
    const Singles rest = singles(parts, gradient.elements, tile, end);
    const long long full = full_tiles(parts) < end ? full_tiles(parts) : end;
#pragma unroll 1
    for (; tile < full; ++tile) {
        float values[PACKS][PACK];
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            load(g + element_of(parts, pack_of(tile) + i * static_cast<long long>(blockDim.x)), values[i]);
        }
#pragma unroll
        for (int i = 0; i < PACKS * PACK; ++i) add_square(sums, values[i / PACK][i % PACK]);
    }
    if (tile < end) {
#pragma unroll 1
        for (long long pack = pack_of(tile); pack < parts.packs; pack += blockDim.x) {
            float values[PACK];
            load(g + element_of(parts, pack), values);
#pragma unroll
            for (int i = 0; i < PACK; ++i) add_square(sums, values[i]);
        }
    }
#pragma unroll 1
    for (long long i = rest.from + threadIdx.x; i < rest.to; i += blockDim.x) {
        add_square(sums, decode(g[outside(parts, i)]));
    }
}

// A thread adds PACKS * PACK squares of a tile, and one more in an array's first: the caller starts so many
// blocks that they are no more than 128, a relative error of 2^-17 at most.
template <typename Element>
__device__ inline double squares(const GradientPart* gradients, const long long* starts, long long tiles) {
    Squares sums = {0.0f, 0.0f, 0.0f};
    const long long last = first_tile(tiles, blockIdx.x + 1);
    long long tile = first_tile(tiles, blockIdx.x);
    for (const GradientPart* gradient = gradients + starts[blockIdx.x]; tile < last; ++gradient) {
        const GradientPart here = *gradient;
        const long long stop = here.end < last ? here.end : last;
        add_squares<Element>(sums, here, tile - here.first, stop - here.first);
        tile = stop;
    }
    return total_of(sums);
}

// One partial sum for each block, then ``sum_partials`` in one block: no atomics, so always the same order.
#define SUM_OF_SQUARES(ELEMENT, NAME)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                              \
        const GradientPart* gradients, const long long* starts, long long tiles, double* partials            \
    ) {                                                                                                      \
        const double total = sum_of_block(squares<ELEMENT>(gradients, starts, tiles));                       \
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
