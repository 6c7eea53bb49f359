/* Counts the live bytes of libc10's CPU allocator exactly, on all threads.  Preloaded into a process,
 * it stands before c10::alloc_cpu(size_t) and c10::free_cpu(void*): independent of the profiler, which
 * sees only threads that carry its state.
 *
 * Sizes are kept in a hash table with open addressing; removal shifts the following entries back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *(*alloc_function)(size_t);
typedef void (*free_function)(void *);

struct block {
    uintptr_t address; /* 0: empty */
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *table;
static size_t capacity, used; /* capacity is a power of two */
static int64_t live_bytes, max_bytes;

static size_t slot_of(uintptr_t address) {
    return (size_t)((address >> 4) * 0x9E3779B97F4A7C15ull >> 20) & (capacity - 1);
}

static size_t find(uintptr_t address) {
    size_t slot = slot_of(address);
    while (table[slot].address != 0 && table[slot].address != address) slot = (slot + 1) & (capacity - 1);
    return slot;
}

static void grow(void) {
    struct block *old = table;
    size_t old_capacity = capacity;
    capacity = capacity ? capacity * 2 : 1u << 16;
    table = calloc(capacity, sizeof *table);
    if (table == NULL) abort();
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].address != 0) table[find(old[i].address)] = old[i];
    free(old);
}

static void add(void *pointer, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (2 * (used + 1) > capacity) grow();
    size_t slot = find((uintptr_t)pointer);
    table[slot].address = (uintptr_t)pointer;
    table[slot].bytes = bytes;
    used++;
    live_bytes += (int64_t)bytes;
    if (live_bytes > max_bytes) max_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
}

static void drop(void *pointer) {
    pthread_mutex_lock(&lock);
    size_t hole = capacity ? find((uintptr_t)pointer) : 0;
    if (capacity && table[hole].address != 0) {
        live_bytes -= (int64_t)table[hole].bytes;
        used--;
        table[hole].address = 0;
        for (size_t next = (hole + 1) & (capacity - 1); table[next].address != 0;
             next = (next + 1) & (capacity - 1)) {
            struct block moved = table[next];
            table[next].address = 0;
            table[find(moved.address)] = moved;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Python loads torch's libraries privately, so RTLD_NEXT does not reach them: ask libc10 by its name. */
static void *real_symbol(const char *name) {
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL) {
        fprintf(stderr, "exact counter: %s not found in libc10.so\n", name);
        abort();
    }
    return found;
}

/* c10::alloc_cpu(size_t) */
void *_ZN3c109alloc_cpuEm(size_t bytes) {
    static alloc_function real;
    if (real == NULL) real = (alloc_function)real_symbol("_ZN3c109alloc_cpuEm");
    void *pointer = real(bytes);
    if (pointer != NULL) add(pointer, bytes);
    return pointer;
}

/* c10::free_cpu(void*) */
void _ZN3c108free_cpuEPv(void *pointer) {
    static free_function real;
    if (real == NULL) real = (free_function)real_symbol("_ZN3c108free_cpuEPv");
    if (pointer != NULL) drop(pointer);
    real(pointer);
}

int64_t exact_live_bytes(void) {
    pthread_mutex_lock(&lock);
    int64_t bytes = live_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* The maximum counts from now on. */
void exact_begin(void) {
    pthread_mutex_lock(&lock);
    max_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
}

int64_t exact_max_bytes(void) {
    pthread_mutex_lock(&lock);
    int64_t bytes = max_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}
