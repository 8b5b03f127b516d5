// Decodes a batch of items whose payloads are in the memory of a GPU: one launch, and one warp for each frame.
//
// The decoders on the CPU are the specification: of slots arrays/slot_kernels.py, of headers and deltas
// codecs/delta_kernels/decoder.py, of blocks codecs/lz4_kernels.py, of packed differences codecs/packed_kernels.py, of
// stacked frames arrays/interleaving_kernels.py. What they accept is accepted here and decodes to the same bytes, apart
// from payloads that need zstd. No payload makes a warp read outside the segment and the references
// that it refers to, or write outside its frame.
//
// All lanes of a warp parse the payload, which they have copied to shared memory, so that branches do not diverge and
// no lane waits for what another one found. They divide the copies among themselves. __syncwarp() precedes what reads
// bytes that other lanes may have written. Each byte is written to where it lies in the output, so frames need neither
// scratch memory nor a second pass, also if their codec stores them in another order.
//
// NVRTC compiles it without headers. tests/device_emulator.cpp compiles it for the CPU, with one lane or with 32.

#ifndef LANES
#define LANES 32
#endif
#ifndef WARPS_PER_BLOCK
#define WARPS_PER_BLOCK 4
#endif
#ifndef BLOCKS_PER_PROCESSOR
#define BLOCKS_PER_PROCESSOR 5 // at least; leaves 96 registers for each lane, with which hardly anything is spilled
#endif
#ifndef WINDOW_NBYTES
#define WINDOW_NBYTES 1024 // more than most payloads have; a multiple of 16, at least 64
#endif
#define ALL_LANES 0xffffffffu

typedef unsigned char Byte;
typedef unsigned int Word;
typedef unsigned long long Long;

// -- interface -----------------------------------------------------------------------------------------------------
// What the host passes; see decode_batch for the rest. Numbers are int64, so records have no gaps. Sizes of frames and
// items must be below 2**30 bytes, and all frames of a batch fewer than 2**31.

// A segment of the log. One that is missing has no bytes.
struct Segment {
  const Byte *bytes;
  long long nbytes;
};

enum CodecKind { UNUSED, DELTA, UNCOMPRESSED };

// What decoding needs of a codec: CODEC_STATE of codecs/delta_format.py, with addresses on the device, and its kind.
struct Codec {
  const Byte *references;
  long long references_nbytes, reference_nbytes;
  long long channels, channel_last_nbytes, kind;
};

// PictureLayout.numbers of codecs/picture_layout.py.
struct Picture {
  long long n_planes, height, width, interleaved, has_colors;
};

// How items are divided into frames. A piece is so many consecutive bytes of one frame; those of the other frames of
// the item follow. It is a whole frame unless frames are stacked along another axis than the first.
struct Layout {
  long long n_frames, frame_nbytes, piece;
  Picture frame, item;
};

enum Reason { FINE, DAMAGED_SLOT, DAMAGED_PAYLOAD, UNKNOWN_CODEC, INVALID_PAYLOAD, NEEDS_ZSTD };

// -- bytes ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Word word_at(const Byte *bytes) {
  if ((Long)bytes % 4 == 0) return *(const Word *)bytes;
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (Word)bytes[3] << 24;
}

// Move n values, each lane every LANES-th of them. A load takes hundreds of cycles, so several precede their stores,
// which the compiler must assume to change what is loaded.
template <typename Value, typename Load, typename Store>
__device__ __forceinline__ void move(int n, int lane, Load load, Store store) {
  const int n_loads = 4;
#pragma unroll 1
  for (int first = lane; first < n; first += n_loads * LANES) {
    Value values[n_loads];
#pragma unroll
    for (int k = 0; k < n_loads; ++k)
      if (first + k * LANES < n) values[k] = load(first + k * LANES);
#pragma unroll
    for (int k = 0; k < n_loads; ++k)
      if (first + k * LANES < n) store(first + k * LANES, values[k]);
  }
}

// Copy bytes between places that do not overlap: 16 at once if both are aligned alike, else 4 at once.
__device__ void copy_bytes(const Byte *source, Byte *target, int n, int lane) {
  const int head = n < 4 * LANES + 16 ? n : -(Long)target & 15, n_wide = (n - head) / 16, tail = head + 16 * n_wide;
  const auto load = [=](int i) { return source[i]; };
  const auto store = [=](int i, Byte value) { target[i] = value; };
  move<Byte>(head, lane, load, store);
  if ((Long)(source + head) % 16 == 0) {
    const uint4 *from = (const uint4 *)(source + head);
    uint4 *to = (uint4 *)(target + head);
    move<uint4>(n_wide, lane, [=](int i) { return from[i]; }, [=](int i, uint4 value) { to[i] = value; });
  } else {
    Word *to = (Word *)(target + head);
    move<Word>(
        4 * n_wide, lane, [=](int i) { return word_at(source + head + 4 * i); },
        [=](int i, Word value) { to[i] = value; });
  }
  for (int i = tail + lane; i < n; i += LANES) store(i, load(i));
}

// Return the sum of a value of all lanes before this one; total is that of all lanes.
__device__ __forceinline__ int sum_before(int value, int lane, int &total) {
  int sum = value;
  for (int step = 1; step < LANES; step *= 2) {
    const int other = __shfl_up_sync(ALL_LANES, sum, step);
    if (lane >= step) sum += other;
  }
  total = __shfl_sync(ALL_LANES, sum, LANES - 1);
  return sum - value;
}

// -- where the bytes of a frame lie --------------------------------------------------------------------------------

// A divisor that is known at run time only. Devices divide in dozens of instructions, and multiply in a few.
struct Divisor {
  Word value;
  Long reciprocal; // 2**64 / value, rounded up; unused for 1
};

__device__ Divisor divisor_of(Word value) { return {value, value > 1 ? ~0ull / value + 1 : 0}; }

__device__ __forceinline__ Word divide(Word number, const Divisor &by) {
  if (by.value == 1) return number;
  return ((by.reciprocal >> 32) * number + ((by.reciprocal & 0xffffffff) * number >> 32)) >> 32;
}

// The memory of a frame. Payloads have its bytes in stored order, in which channels may be the last axis: then the byte
// at i * channels + c lies at c * plane + i of the frame. In the item, a gap follows each piece of the frame.
struct Target {
  Byte *bytes;
  int size, channels, plane, gap;
  bool is_plain; // whether its bytes are consecutive and in stored order
  Divisor by_channels, by_piece;
};

__device__ Target target_of(Byte *item, int frame, int size, int piece, int n_frames) {
  const int gap = piece < size ? piece * (n_frames - 1) : 0;
  return {item + (long long)frame * piece, size, 1, size, gap, gap == 0, divisor_of(1), divisor_of(piece)};
}

// Return the target for bytes that are stored in channel-last order.
__device__ Target with_channels(Target target, int channels) {
  if (channels == 1) return target;
  target.channels = channels;
  target.plane = target.size / channels;
  target.is_plain = false;
  target.by_channels = divisor_of(channels);
  return target;
}

// Return where a byte lies, by its position in stored order.
__device__ __forceinline__ Byte *address_of(const Target &target, int position) {
  Word at = position;
  if (target.channels > 1) {
    const Word pixel = divide(at, target.by_channels);
    at = (at - pixel * target.channels) * target.plane + pixel;
  }
  if (target.gap > 0) at += divide(at, target.by_piece) * target.gap;
  return target.bytes + at;
}

// Copy bytes that do not lie in the frame to a position of it.
__device__ void copy_to(const Byte *source, const Target &target, int position, int n, int lane) {
  if (n <= LANES) { // as most
    if (lane < n) *address_of(target, position + lane) = source[lane];
  } else if (target.is_plain) {
    copy_bytes(source, target.bytes + position, n, lane);
  } else {
    move<Byte>(
        n, lane, [=](int i) { return source[i]; },
        [&](int i, Byte value) { *address_of(target, position + i) = value; });
  }
}

struct FourPixels {
  Word first, second, third;
};

// Copy a whole frame. Four pixels of three bytes, as most pictures have, are three words of as many planes.
__device__ void copy_frame(const Byte *source, const Target &target, int lane) {
  if (target.channels != 3 || target.gap > 0 || target.plane % 4 != 0 || (Long)target.bytes % 4 != 0) {
    copy_to(source, target, 0, target.size, lane);
    return;
  }
  Word *reds = (Word *)target.bytes, *greens = reds + target.plane / 4, *blues = greens + target.plane / 4;
  move<FourPixels>(
      target.plane / 4, lane,
      [=](int i) {
        const Byte *pixels = source + 12 * i;
        return FourPixels{word_at(pixels), word_at(pixels + 4), word_at(pixels + 8)};
      },
      [=](int i, const FourPixels &of) {
        reds[i] = (of.first & 255) | of.first >> 24 << 8 | (of.second & 0xff0000) | (of.third & 0xff00) << 16;
        greens[i] = (of.first >> 8 & 255) | (of.second & 255) << 8 | of.second >> 24 << 16 | (of.third & 0xff0000) << 8;
        blues[i] = (of.first >> 16 & 255) | (of.second & 0xff00) | (of.third & 255) << 16 | of.third >> 24 << 24;
      });
}

// Copy n bytes of the frame to a position from so many bytes before it; they may include bytes copied already.
__device__ void copy_from_frame(const Target &target, int position, int distance, int n, int lane) {
  __syncwarp();
  const int start = position - distance;
  if (n <= LANES || !target.is_plain) { // all that is needed repeats the bytes before the position, which are complete
    move<Byte>(
        n, lane, [&](int i) { return *address_of(target, start + (i < distance ? i : i % distance)); },
        [&](int i, Byte value) { *address_of(target, position + i) = value; });
    return;
  }
  const Byte *from = target.bytes + start;
  Byte *to = target.bytes + position;
  int done = 0;
  if (distance < 32) { // 128 bytes or a few more, after which source and target are aligned alike
    done = min(n, (16 * ((7 + distance) / distance) - 1) * distance);
    move<Byte>(done, lane, [=](int i) { return from[i % distance]; }, [=](int i, Byte value) { to[i] = value; });
  }
  while (done < n) { // whole periods, twice as many each time
    __syncwarp();
    const int available = min(n - done, done + distance);
    copy_bytes(from, to + done, available, lane);
    done += available;
  }
}

// -- payloads ------------------------------------------------------------------------------------------------------

enum { SLOT_HEADER = 4, PAYLOAD_HEADER = 8 }; // see arrays/slot_format.py

// A payload in global memory, and a part of it in shared memory.
struct Payload {
  const Byte *bytes;
  int size;
  const Byte *begin, *end; // of its segment, which may be read
  Byte *window;
  int window_at; // the position in the payload at which the window begins; negative at first, for the payload's header
};

// Copy what follows a position to the window, 16 aligned bytes at once.
__device__ void load_window(Payload &payload, int at, int lane) {
  const Byte *start = payload.bytes + at;
  start -= (Long)start % 16;
  __syncwarp(); // other lanes may still read what is there
  for (int k = lane; k < WINDOW_NBYTES / 16; k += LANES) {
    const Byte *from = start + 16 * k;
    Byte *to = payload.window + 16 * k;
    if (from >= payload.begin && from + 16 <= payload.end)
      *(uint4 *)to = *(const uint4 *)from;
    else
      for (int i = 0; i < 16; ++i)
        if (from + i >= payload.begin && from + i < payload.end) to[i] = from[i];
  }
  __syncwarp();
  payload.window_at = start - payload.bytes;
}

__device__ __forceinline__ bool is_in_window(const Payload &payload, int at, int n) {
  return at - payload.window_at + n <= WINDOW_NBYTES;
}

// Move the window if necessary, so that the next bytes are in it: more than all numbers that are read until the next
// call. Positions only grow.
__device__ __forceinline__ void look_ahead(Payload &payload, int at, int lane) {
  if (at < payload.size && !is_in_window(payload, at, min(16, payload.size - at))) load_window(payload, at, lane);
}

__device__ __forceinline__ int byte_at(const Payload &payload, int at) {
  return payload.window[at - payload.window_at];
}

__device__ __forceinline__ int short_at(const Payload &payload, int at) {
  return byte_at(payload, at) | byte_at(payload, at + 1) << 8;
}

__device__ void copy_literals(const Payload &payload, int at, const Target &target, int position, int n, int lane) {
  const bool is_near = is_in_window(payload, at, n);
  copy_to(is_near ? payload.window + (at - payload.window_at) : payload.bytes + at, target, position, n, lane);
}

// -- deltas --------------------------------------------------------------------------------------------------------

enum { FIRST_REFERENCE = 2, LONG_NUMBER = 255, N_RECENT = 4, STEP = 32 }; // how far back sources in the frame must lie

// Return the number at a position, and move the position after it. If it is truncated, it is 0 and followed by no other
// number and no source.
__device__ __forceinline__ int read_number(const Payload &payload, int &at) {
  int number = 0;
  if (at < payload.size && (number = byte_at(payload, at)) < LONG_NUMBER) {
    at += 1;
  } else if (at + 3 <= payload.size) {
    number = short_at(payload, at + 1);
    at += 3;
  } else {
    at = payload.size + 1;
  }
  return number;
}

// Copy bytes from a source position, which counts the bytes of all references and then those of the frame. It is not
// negative: it was not where the source began, and it grew since then. Return whether it is valid for so many bytes.
__device__ bool copy_from_source(
    int source, const Byte *references, int references_nbytes, const Target &target, int position, int n, int lane) {
  if (source < references_nbytes) {
    const int readable = min(n, references_nbytes - source);
    copy_to(references + source, target, position, readable, lane);
    n -= readable;
    position += readable;
    source = references_nbytes;
  }
  const int distance = position - (source - references_nbytes);
  if (n > 0 && distance < STEP) return false;
  if (n > 0) copy_from_frame(target, position, distance, n, lane);
  return true;
}

__device__ bool decode_delta(Payload &payload, const Codec &codec, const Target &target, int lane) {
  const int size = target.size, nbytes = codec.reference_nbytes == size ? codec.references_nbytes : 0;
  const long long start = (byte_at(payload, 0) - FIRST_REFERENCE) * (long long)size;
  if (start + size > nbytes) return false;
  copy_frame(codec.references + start, target, lane); // most bytes of most frames
  __syncwarp();
  const int first = start;
  int offset = first, recent_1 = first, recent_2 = first, recent_3 = first, recent_4 = first; // registers have no index
  int position = 0, at = 1;
  while (true) {
    look_ahead(payload, at, lane);
    int n = read_number(payload, at);
    if (n > size - position) return false;
    if (offset != first && !copy_from_source(offset + position, codec.references, nbytes, target, position, n, lane))
      return false;
    position += n;
    if (position == size) return at == payload.size;
    n = read_number(payload, at);
    if (n > 0) {
      if (n > size - position || n > payload.size - at) return false;
      copy_literals(payload, at, target, position, n, lane);
      position += n;
      at += n;
      continue;
    }
    // The source changes, to a recent offset or to a position.
    if (at >= payload.size) return false;
    const int index = byte_at(payload, at);
    int next = index == 0 ? recent_1 : index == 1 ? recent_2 : index == 2 ? recent_3 : recent_4;
    if (index >= N_RECENT) {
      if (at + 3 > payload.size) return false;
      next = ((index - N_RECENT) << 16 | short_at(payload, at + 1)) - position;
    }
    at += index < N_RECENT ? 1 : 3;
    if (index > 2) recent_4 = recent_3; // the one that it resumes, or the oldest one, makes room
    if (index > 1) recent_3 = recent_2;
    if (index > 0) recent_2 = recent_1;
    recent_1 = offset;
    offset = next;
  }
}

// -- blocks of LZ4 -------------------------------------------------------------------------------------------------

enum { LONG_LENGTH = 15, MIN_MATCH = 4, LAST_LITERALS = 5, LAST_MATCH = 12 };

// Add to a length what follows of it; return whether the payload has it all, and the frame may have room for it.
__device__ bool read_rest(Payload &payload, int &at, int &length, int size, int lane) {
  while (at < payload.size && length <= size) {
    look_ahead(payload, at, lane);
    const int byte = byte_at(payload, at++);
    length += byte;
    if (byte < 255) return true;
  }
  return false;
}

__device__ bool decode_block(Payload &payload, const Target &target, int lane) {
  const int size = target.size;
  int at = 1, position = 0;
  while (at < payload.size) {
    look_ahead(payload, at, lane);
    const int token = byte_at(payload, at++);
    int length = token >> 4;
    if (length == LONG_LENGTH && !read_rest(payload, at, length, size, lane)) return false;
    if (length > payload.size - at || length > size - position) return false;
    copy_literals(payload, at, target, position, length, lane);
    at += length;
    position += length;
    if (at == payload.size) return position == size;
    if (at + 2 > payload.size) return false;
    look_ahead(payload, at, lane);
    const int distance = short_at(payload, at);
    at += 2;
    length = token & 15;
    if (length == LONG_LENGTH && !read_rest(payload, at, length, size, lane)) return false;
    length += MIN_MATCH;
    const int room = size - position;
    if (room < LAST_MATCH || room - LAST_LITERALS < length) return false;
    if (distance == 0 || distance > position) return false;
    copy_from_frame(target, position, distance, length, lane);
    position += length;
  }
  return false;
}

// -- packed differences --------------------------------------------------------------------------------------------

enum { BLOCK = 8, MAX_GROUP_WIDTH = 4 };
#define LOWEST_BITS 0x0101010101010101ull

// Return the word of which bit i of byte j is bit j of byte i of a word.
__device__ __forceinline__ Long transposed(Long word) {
  Long swapped = (word ^ word >> 7) & 0x00AA00AA00AA00AAull;
  word ^= swapped ^ swapped << 7;
  swapped = (word ^ word >> 14) & 0x0000CCCC0000CCCCull;
  word ^= swapped ^ swapped << 14;
  swapped = (word ^ word >> 28) & 0x00000000F0F0F0F0ull;
  return word ^ swapped ^ swapped << 28;
}

// Return the values of a block of so many bit planes. It is not ok if they need fewer.
__device__ __forceinline__ Long load_block(const Byte *bytes, int width, bool &ok) {
  Long planes = 0;
#pragma unroll
  for (int k = 0; k < BLOCK; ++k)
    if (k < width) planes |= (Long)bytes[k] << 8 * k;
  ok &= width == 0 || planes >> 8 * (width - 1) != 0;
  return transposed(planes);
}

__device__ __forceinline__ bool is_zero_from(Long values, int n) { return n >= BLOCK || values >> 8 * n == 0; }

__device__ __forceinline__ int group_width(const Byte *packed, int group) {
  return packed[1 + group / 2] >> 4 * (group % 2) & 15;
}

// Return the position in the frame of the first byte of a plane. Others follow at a distance of picture.interleaved.
__device__ __forceinline__ int plane_position(const Picture &picture, int plane) {
  const int interleaved = picture.interleaved, size = picture.height * picture.width;
  return interleaved == 1 ? plane * size : plane / interleaved * interleaved * size + plane % interleaved;
}

// Write n values of a plane from the first one on.
__device__ __forceinline__ void store_block(
    Long values, int n, const Target &target, const Picture &picture, int plane, int first) {
  const int start = plane_position(picture, plane), step = picture.interleaved;
  Byte *to = target.bytes + start + first;
  if (n == BLOCK && step == 1 && target.gap == 0 && (Long)to % 8 == 0) {
    *(Long *)to = values;
    return;
  }
  for (int k = 0; k < n; ++k) *address_of(target, start + (first + k) * step) = values >> 8 * k;
}

__device__ __forceinline__ Byte sum_of_bytes(Byte first, Byte second) { return first + second; }

__device__ __forceinline__ Word sum_of_bytes(Word first, Word second) { // four sums, modulo 256 each
  return ((first & 0x7f7f7f7f) + (second & 0x7f7f7f7f)) ^ ((first ^ second) & 0x80808080);
}

// Add to each line the one above, and green to red and blue. A value is one byte, or four of neighboring columns.
template <typename Value, int N_COLORS>
__device__ void sum_lines(const Target &target, const Picture &picture, int lane) {
  const int n_loads = 4, middle = N_COLORS / 2; // of colors, green
  const int height = picture.height, step = picture.interleaved, line = picture.width * step;
  const int columns = picture.width / sizeof(Value), n_columns = picture.n_planes / N_COLORS * columns;
  for (int column = lane; column < n_columns; column += LANES) {
    const int plane = column / columns * N_COLORS, x = column % columns * sizeof(Value) * step;
    const auto at = [&](int color, int y) {
      const int position = plane_position(picture, plane + color) + y * line + x;
      return (Value *)(sizeof(Value) > 1 ? target.bytes + position : address_of(target, position));
    };
    Value sums[N_COLORS] = {};
#pragma unroll 1
    for (int y = 0; y < height; y += n_loads) {
      Value differences[n_loads][N_COLORS];
#pragma unroll
      for (int k = 0; k < n_loads; ++k)
        for (int color = 0; color < N_COLORS; ++color)
          if (y + k < height) differences[k][color] = *at(color, y + k);
#pragma unroll
      for (int k = 0; k < n_loads; ++k) {
        if (y + k >= height) break;
        for (int color = 0; color < N_COLORS; ++color)
          sums[color] = sum_of_bytes(sums[color], differences[k][color]);
        for (int color = 0; color < N_COLORS; ++color)
          *at(color, y + k) = color == middle ? sums[color] : sum_of_bytes(sums[color], sums[middle]);
      }
    }
  }
}

// Decode packed differences: each lane unpacks the widths of a group of blocks, and then every LANES-th block of these
// groups. Sums of widths over the lanes find both.
__device__ bool unpack(const Byte *packed, int nbytes, const Picture picture, const Target &target, int lane) {
  const int size = picture.height * picture.width, blocks_per_plane = (size + BLOCK - 1) / BLOCK;
  const int n_blocks = picture.n_planes * blocks_per_plane, n_groups = (n_blocks + BLOCK - 1) / BLOCK;
  int groups_at = 1 + (n_groups + 1) / 2;
  if (groups_at > nbytes || packed[0] != 1 + target.size % 255) return false;
  bool ok = n_groups % 2 == 0 || packed[groups_at - 1] >> 4 == 0;
  int sum = 0, total;
  for (int group = lane; group < n_groups; group += LANES) {
    const int width = group_width(packed, group);
    ok &= width <= MAX_GROUP_WIDTH;
    sum += width;
  }
  sum_before(sum, lane, total);
  int blocks_at = groups_at + total;
  if (!__all_sync(ALL_LANES, ok) || blocks_at > nbytes) return false;

  for (int first = 0; first < n_groups; first += LANES) {
    const int group = first + lane, width = group < n_groups ? group_width(packed, group) : 0;
    const int at = groups_at + sum_before(width, lane, total);
    groups_at += total;
    const Long widths = load_block(packed + at, width, ok); // below 16
    const Long too_large = (widths + 7 * LOWEST_BITS) & 16 * LOWEST_BITS;
    ok &= too_large == 0 && is_zero_from(widths, max(n_blocks - BLOCK * group, 0));
    const int block_at = blocks_at + sum_before(widths * LOWEST_BITS >> 56, lane, total);
    blocks_at += total;
    if (!__all_sync(ALL_LANES, ok) || blocks_at > nbytes) return false;
#pragma unroll 4
    for (int k = 0; k < BLOCK; ++k) {
      const int index = k * LANES + lane, shift = index % BLOCK * 8, block = BLOCK * first + index;
      const Long group_widths = __shfl_sync(ALL_LANES, widths, index / BLOCK);
      const int group_at = __shfl_sync(ALL_LANES, block_at, index / BLOCK);
      if (block >= n_blocks) continue;
      const Long before = group_widths * LOWEST_BITS - group_widths; // byte i: the sum of the widths before it
      const Long values = load_block(packed + group_at + (before >> shift & 255), group_widths >> shift & 255, ok);
      const int plane = block / blocks_per_plane, in_plane = BLOCK * (block - plane * blocks_per_plane);
      const int n = min((int)BLOCK, size - in_plane);
      ok &= is_zero_from(values, n);
      const Long odd = values & LOWEST_BITS; // 0, 1, 2, 3, ... are differences 0, -1, 1, -2, ...
      store_block((values ^ odd) >> 1 ^ ((odd << 8) - odd), n, target, picture, plane, in_plane);
    }
  }
  if (!__all_sync(ALL_LANES, ok) || blocks_at != nbytes) return false;

  __syncwarp();
  const bool has_words = target.gap == 0 && picture.interleaved == 1 && picture.width % 4 == 0;
  if (has_words && (Long)target.bytes % 4 == 0)
    picture.has_colors ? sum_lines<Word, 3>(target, picture, lane) : sum_lines<Word, 1>(target, picture, lane);
  else
    picture.has_colors ? sum_lines<Byte, 3>(target, picture, lane) : sum_lines<Byte, 1>(target, picture, lane);
  return true;
}

// -- frames --------------------------------------------------------------------------------------------------------

// The first byte of payloads that are no deltas; see codecs/delta_format.py.
enum Header { PACKED = 251, LZ4_BLOCK = 254, RAW };

__device__ bool decode_payload(
    Payload &payload, const Codec &codec, const Picture &picture, const Target &target, int lane) {
  const int size = target.size, header = byte_at(payload, 0);
  if (header == PACKED)
    return payload.size <= size && unpack(payload.bytes + 1, payload.size - 1, picture, target, lane);
  const bool is_channel_last = codec.channel_last_nbytes == size;
  const Target stored = with_channels(target, is_channel_last ? codec.channels : 1);
  if (header == LZ4_BLOCK) return decode_block(payload, stored, lane);
  if (header != RAW) return decode_delta(payload, codec, stored, lane);
  if (payload.size != 1 + size) return false;
  copy_frame(payload.bytes + 1, stored, lane);
  return true;
}

struct Log {
  const Segment *segments;
  long long first_segment, n_segments;
  const Codec *codecs;
  long long n_codecs;
};

// Decode one frame of the item of a slot, and return what is wrong with it.
__device__ Reason decode_frame(
    const Log &log, const Layout &layout, long long slot, int frame, Byte *item, Byte *window, int lane) {
  const int n_frames = layout.n_frames, frame_nbytes = layout.frame_nbytes;
  if (slot == 0) { // never written: zeros, in whatever order
    for (int i = lane; i < frame_nbytes; i += LANES) item[(long long)frame * frame_nbytes + i] = 0;
    return FINE;
  }
  const long long number = (slot >> 32) - log.first_segment, offset = slot & 0xffffffff;
  if (number < 0 || number >= log.n_segments) return DAMAGED_SLOT;
  const Segment segment = log.segments[number];
  if (offset + SLOT_HEADER > segment.nbytes) return DAMAGED_SLOT;
  const long long n_payloads = word_at(segment.bytes + offset);
  if (n_payloads != n_frames && n_payloads != 1) return DAMAGED_SLOT;
  if (offset + SLOT_HEADER + 4 * n_payloads > segment.nbytes) return DAMAGED_SLOT;
  const bool is_whole = n_payloads < n_frames; // stored before its layout was known
  if (is_whole && frame > 0) return FINE;
  const long long begin = word_at(segment.bytes + offset + SLOT_HEADER + 4 * frame);
  if (begin + PAYLOAD_HEADER > segment.nbytes) return DAMAGED_PAYLOAD;

  const Byte *bytes = segment.bytes + begin + PAYLOAD_HEADER;
  Payload payload = {bytes, 0, segment.bytes, segment.bytes + segment.nbytes, window, 0};
  load_window(payload, -PAYLOAD_HEADER, lane); // the header and what follows at once, instead of one after the other
  const long long nbytes = short_at(payload, -8) | (Long)short_at(payload, -6) << 16;
  const long long codec_number = short_at(payload, -4) | (Long)short_at(payload, -2) << 16;
  if (begin + PAYLOAD_HEADER + nbytes > segment.nbytes) return DAMAGED_PAYLOAD;
  if (codec_number >= log.n_codecs || log.codecs[codec_number].kind == UNUSED) return UNKNOWN_CODEC;
  if (nbytes > 0x7ffffff0) return INVALID_PAYLOAD; // more than any frame here
  payload.size = nbytes;

  const Codec codec = log.codecs[codec_number]; // a copy in registers: memory would be read again after each store
  const Picture &picture = is_whole ? layout.item : layout.frame;
  const int size = is_whole ? n_frames * frame_nbytes : frame_nbytes;
  const Target target = target_of(item, frame, size, is_whole ? size : layout.piece, n_frames);
  if (size == 0 || codec.kind == UNCOMPRESSED) {
    if (payload.size != size) return INVALID_PAYLOAD;
    copy_frame(bytes, target, lane);
    return FINE;
  }
  if (payload.size == 0) return INVALID_PAYLOAD;
  if (byte_at(payload, 0) < FIRST_REFERENCE) return NEEDS_ZSTD;
  return decode_payload(payload, codec, picture, target, lane) ? FINE : INVALID_PAYLOAD;
}

// Decode items, with LANES * WARPS_PER_BLOCK threads a block and one warp for each frame: n_items * n_frames /
// WARPS_PER_BLOCK blocks, rounded up.
//
// slots: int64 (n_items,), addresses in the log: segment << 32 | offset, 0 for an item that was never written
// segments: by number, from first_segment on, (n_segments,)
// codecs: by number, (n_codecs,); number 0 is that of payloads that name no codec
// layout: one record
// out: n_items items of n_frames * frame_nbytes bytes
// problem: one word, which must have all bits set. If frames cannot be decoded, it receives the smallest of
//   (item * n_frames + frame) << 8 | reason; their bytes are undefined then. As it is written only then, it costs
//   nothing on the usual path, where one status for each frame would have to be written and searched. The host can copy
//   it to pinned memory after the launch, and look at it once the stream has come there anyway.
extern "C" __global__ void __launch_bounds__(LANES * WARPS_PER_BLOCK, BLOCKS_PER_PROCESSOR) decode_batch(
    const long long *slots, long long n_items, const Segment *segments, long long first_segment, long long n_segments,
    const Codec *codecs, long long n_codecs, const Layout *layout, Byte *out, Long *problem) {
  __shared__ uint4 windows[WARPS_PER_BLOCK][WINDOW_NBYTES / 16];
  const Word warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, n_frames = layout->n_frames;
  const Word index = blockIdx.x * WARPS_PER_BLOCK + warp, item = index / n_frames, frame = index % n_frames;
  if (item >= n_items) return;
  const Log log = {segments, first_segment, n_segments, codecs, n_codecs};
  Byte *to = out + (long long)item * n_frames * layout->frame_nbytes;
  const Reason reason = decode_frame(log, *layout, slots[item], frame, to, (Byte *)windows[warp], lane);
  if (reason != FINE && lane == 0) atomicMin(problem, (Long)index << 8 | reason);
}
