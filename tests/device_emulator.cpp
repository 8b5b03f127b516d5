// Runs the decoder for GPUs on the CPU: as a library, and as a program that reads batches from a file, for sanitizers.
//
// With LANES above 1, each lane of a warp is a fiber. They run one after the other, in an order that changes at each
// barrier, so bytes that are read without a barrier after the lane that writes them are wrong in some lanes; with
// ThreadSanitizer, every such access is reported. All lanes must come to the same barrier.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if LANES > 1
#include <csetjmp>
#include <ucontext.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(n, m)
#define __syncwarp() synchronize(__LINE__)
#define __shfl_sync(mask, value, lane) exchanged(value, lane, __LINE__)
#define __shfl_up_sync(mask, value, n) exchanged(value, std::max(int(threadIdx.x % LANES) - n, 0), __LINE__)
#define __all_sync(mask, value) for_all(value, __LINE__)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Index {
  unsigned x;
};
static Index blockIdx, current_thread;

#ifdef __SANITIZE_THREAD__ // what is not the kernel's is no race
#define UNCHECKED __attribute__((noinline, no_sanitize("thread")))
#else
#define UNCHECKED
#endif
UNCHECKED static Index thread_index() { return current_thread; }
#define threadIdx thread_index()
using std::max;
using std::min;

[[noreturn, maybe_unused]] static void fail(const char *reason) {
  fprintf(stderr, "%s\n", reason);
  abort();
}

#if LANES > 1

static const int STACK_NBYTES = 1 << 17;

// What ThreadSanitizer has to be told: which fiber runs, and that barriers order what is before and after them.
#ifdef __SANITIZE_THREAD__
static void release(char *event) { __tsan_release(event); }
static void acquire(char *event) { __tsan_acquire(event); }
#else
static void release(char *) {}
static void acquire(char *) {}
#endif
// The start and the end of a warp, and its barriers in turns: a lane may come to one before another has left the last.
static char start_of_warp, end_of_warp, barriers[2];

struct Fiber {
  ucontext_t context;
  void *of_sanitizer;
  jmp_buf jump;
  bool has_jump = false;
};

struct Lane {
  Fiber fiber;
  std::vector<char> stack = std::vector<char>(STACK_NBYTES);
  int line = 0; // where it waits for the others; 0 if it has ended
  unsigned n_barriers = 0;
};

static Lane lanes[LANES];
static bool has_fibers = false;
static Fiber scheduler;

UNCHECKED static void switch_fiber(Fiber &from, Fiber &to) {
#if defined __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.of_sanitizer, __tsan_switch_to_fiber_no_sync);
  swapcontext(&from.context, &to.context);
#elif defined __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);
#else // swapcontext takes ten times as long: it calls the kernel
  from.has_jump = true;
  if (_setjmp(from.jump)) return;
  if (to.has_jump) _longjmp(to.jump, 1);
  setcontext(&to.context);
#endif
}

// Let the other lanes run until they have come to the same line.
UNCHECKED static void meet(int line) {
  Lane &lane = lanes[threadIdx.x % LANES];
  lane.line = line;
  switch_fiber(lane.fiber, scheduler);
}

UNCHECKED static void synchronize(int line) {
  char *barrier = &barriers[lanes[threadIdx.x % LANES].n_barriers++ % 2];
  release(barrier);
  meet(line);
  acquire(barrier);
}

static void (*run_lane)();

UNCHECKED static void run_fiber() {
  while (true) { // a run of all lanes for each warp
    acquire(&start_of_warp);
    run_lane();
    release(&end_of_warp);
    meet(0);
  }
}

UNCHECKED static void start_fibers() {
  for (Lane &lane : lanes) {
    getcontext(&lane.fiber.context);
    lane.fiber.context.uc_stack.ss_sp = lane.stack.data();
    lane.fiber.context.uc_stack.ss_size = lane.stack.size();
    makecontext(&lane.fiber.context, run_fiber, 0);
#ifdef __SANITIZE_THREAD__
    lane.fiber.of_sanitizer = __tsan_create_fiber(0);
    scheduler.of_sanitizer = __tsan_get_current_fiber();
#endif
  }
  has_fibers = true;
}

UNCHECKED static void run_warp(unsigned first_thread, void (*function)()) {
  run_lane = function;
  if (!has_fibers) start_fibers();
  release(&start_of_warp);
  for (unsigned round = 0;; ++round) {
    for (unsigned k = 0; k < LANES; ++k) {
      const unsigned number = round % 3 == 0 ? k : round % 3 == 1 ? LANES - 1 - k : (5 * k + round) % LANES;
      current_thread.x = first_thread + number;
      switch_fiber(scheduler, lanes[number].fiber);
    }
    for (const Lane &lane : lanes)
      if (lane.line != lanes[0].line) fail("lanes wait at different lines");
    if (lanes[0].line == 0) break;
  }
  acquire(&end_of_warp);
}

#else

static void meet(int) {}
static void synchronize(int) {}

static void run_warp(unsigned first_thread, void (*function)()) {
  current_thread.x = first_thread;
  function();
}

#endif

// Shuffles and votes are no barriers for other memory.

static uint64_t exchanged_values[LANES];

template <typename Value> UNCHECKED static Value exchanged(Value value, int lane, int line) {
  exchanged_values[threadIdx.x % LANES] = value;
  meet(line);
  const Value other = exchanged_values[lane];
  meet(line);
  return other;
}

UNCHECKED static bool for_all(bool value, int line) {
  exchanged_values[threadIdx.x % LANES] = value;
  meet(line);
  bool all = true;
  for (int lane = 0; lane < LANES; ++lane) all = all && exchanged_values[lane];
  meet(line);
  return all;
}

static void atomicMin(unsigned long long *target, unsigned long long value) { *target = std::min(*target, value); }

#include "device_decoder.cu"

struct Launch {
  const long long *slots;
  long long n_items;
  const Segment *segments;
  long long first_segment, n_segments;
  const Codec *codecs;
  long long n_codecs;
  const Layout *layout;
  Byte *out;
  Long *problem;
};

static Launch launch;

static void run_thread() {
  const Launch &l = launch;
  decode_batch(
      l.slots, l.n_items, l.segments, l.first_segment, l.n_segments, l.codecs, l.n_codecs, l.layout, l.out, l.problem);
}

extern "C" void decode(const Launch *arguments) {
  launch = *arguments;
  const long long n_warps = launch.n_items * launch.layout->n_frames;
  for (long long warp = 0; warp < (n_warps + WARPS_PER_BLOCK - 1) / WARPS_PER_BLOCK * WARPS_PER_BLOCK; ++warp) {
    blockIdx.x = warp / WARPS_PER_BLOCK;
    run_warp(warp % WARPS_PER_BLOCK * LANES, run_thread);
  }
}

#ifdef IS_PROGRAM

// Batches in a file: for each the fields of its launch, of which arrays are their number of bytes and these bytes. Every
// array has memory of its own, and no word before and after it may be accessed.

static FILE *input;
static std::vector<void *> memory;

static bool read_number(long long *number) { return fread(number, sizeof *number, 1, input) == 1; }

static long long number() {
  long long value;
  if (!read_number(&value)) fail("the file is truncated");
  return value;
}

template <typename Element> static Element *array(long long *nbytes) {
  *nbytes = number();
  char *bytes = (char *)malloc(8 + *nbytes);
  if (fread(bytes + 8, 1, *nbytes, input) != (size_t)*nbytes) fail("the file is truncated");
  memory.push_back(bytes);
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(bytes, 8); // 16 aligned bytes may not be what 8 of them are
#endif
  return (Element *)(bytes + 8);
}

int main(int argc, char **argv) {
  if (argc != 3) fail("two files are needed: batches and results");
  input = fopen(argv[1], "rb");
  FILE *output = fopen(argv[2], "wb");
  if (!input || !output) fail("a file cannot be opened");
  Launch next;
  long long nbytes;
  for (int unaligned = 0; read_number(&next.first_segment); unaligned = 1 - unaligned) {
    next.slots = array<long long>(&nbytes);
    next.n_items = nbytes / sizeof(long long);
    next.n_segments = number();
    std::vector<Segment> segments(next.n_segments);
    for (Segment &segment : segments) segment.bytes = array<Byte>(&segment.nbytes);
    next.segments = segments.data();
    next.n_codecs = number();
    std::vector<Codec> codecs(next.n_codecs);
    for (Codec &codec : codecs) {
      codec.kind = number();
      codec.reference_nbytes = number();
      codec.channels = number();
      codec.channel_last_nbytes = number();
      codec.references = array<Byte>(&codec.references_nbytes);
    }
    next.codecs = codecs.data();
    next.layout = array<Layout>(&nbytes);
    const long long out_nbytes = next.n_items * next.layout->n_frames * next.layout->frame_nbytes;
    Byte *out = (Byte *)malloc(out_nbytes + unaligned);
    next.out = out + unaligned;
    Long problem = ~0ull;
    next.problem = &problem;
    decode(&next);
    fwrite(&problem, sizeof problem, 1, output);
    fwrite(next.out, 1, out_nbytes, output);
    free(out);
    for (void *bytes : memory) free(bytes);
    memory.clear();
  }
  return fclose(output);
}

#endif
