// Activations rounded to 8 bits, for products with packed weights. Included inside the level's namespace.
//
// Each token's group of columns becomes integers of -127..127 times a step: the largest magnitude / 127. Tokens are
// taken in tiles of 8 (or fewer), 4, 2 and 1, which lie one after another; within a tile
//
//   integers        [columns / 4, tile's tokens, 4 columns]
//   steps and sums  [columns / group, tile's tokens]
//
// so that a kernel walks along a tile with one pointer.

#if defined(__AVX512F__)
constexpr int kMaxTile = 8;
#else
constexpr int kMaxTile = 4;  // as many sums as 16 registers hold
#endif

// The size of the tile that starts where `remaining` tokens are left.
inline int tile_size(int64_t remaining) {
  int size = kMaxTile;
  while (size > remaining) size /= 2;
  return size;
}

// What the kernel needs to know of one token's group besides its integers.
struct Activations {
  std::vector<int8_t> integers;
  std::vector<float> steps;
  std::vector<float> sums;      // of the integers
  std::vector<int32_t> starts;  // what the products' sum starts from: the sum of integers * start_factor
  int64_t columns = 0, group = 0;

  void resize(int64_t num_tokens, int64_t new_columns, int64_t new_group) {
    columns = new_columns;
    group = new_group;
    const size_t num_groups = num_tokens * columns / group;
    if (integers.size() < static_cast<size_t>(num_tokens * columns)) integers.resize(num_tokens * columns);
    if (steps.size() >= num_groups) return;
    steps.resize(num_groups);
    sums.resize(num_groups);
    starts.resize(num_groups);
  }
};

// A group of a token's numbers, in registers.
template <int kGroup>
struct Group {
  static constexpr int kVectors = kGroup / kLanes;
  Vector numbers[kVectors];

  explicit Group(const float* from) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) numbers[v] = load(from + v * kLanes);
  }

  // Magnitudes compare as integers; so compared, NaN is above everything and reaches the result.
  float largest_magnitude() const {
    IntVector largest = {};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const IntVector magnitudes = reinterpret_cast<IntVector>(numbers[v]) & 0x7fffffff;
      largest = largest > magnitudes ? largest : magnitudes;
    }
    return reinterpret_cast<Vector>(reduce_lanes(largest, [](IntVector a, IntVector b) { return a > b ? a : b; }))[0];
  }

  // Stores the numbers / step, rounded half to even, and returns the sum of these integers.
  int32_t round_to(int8_t* integers, float step) const {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits below 1
    IntVector sum = {};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      // The bounds are for subnormal steps, which are too coarse to divide by.
      Vector scaled = numbers[v] / step;
      scaled = scaled > -127.0f ? scaled : broadcast(-127.0f);
      scaled = scaled < 127.0f ? scaled : broadcast(127.0f);
      const IntVector rounded = __builtin_convertvector((scaled + kRounder) - kRounder, IntVector);
      const Integers narrow = __builtin_convertvector(rounded, Integers);
      __builtin_memcpy(integers + v * kLanes, &narrow, sizeof narrow);
      sum += rounded;
    }
    return reduce_lanes(sum, [](IntVector a, IntVector b) { return a + b; })[0];
  }

 private:
  typedef int8_t Integers __attribute__((vector_size(kLanes)));
};

// Quantises the tile of `size` tokens that starts at `first`.
template <int kGroup>
inline void quantise_tile(Activations& to, const float* input, int64_t first, int size, int32_t start_factor) {
  const int64_t num_groups = to.columns / kGroup;
  int8_t* quads = to.integers.data() + first * to.columns;
  for (int token = 0; token < size; ++token) {
    const float* row = input + (first + token) * to.columns;
    for (int64_t group = 0; group < num_groups; ++group) {
      int8_t integers[kGroup] = {};
      const Group<kGroup> numbers(row + group * kGroup);
      const float step = numbers.largest_magnitude() / 127.0f;
      const int32_t sum = step == 0.0f ? 0 : numbers.round_to(integers, step);
      for (int quad = 0; quad < kGroup / 4; ++quad)
        __builtin_memcpy(quads + ((group * (kGroup / 4) + quad) * size + token) * 4, integers + quad * 4, 4);
      const int64_t index = first * num_groups + group * size + token;
      to.steps[index] = step;
      to.sums[index] = static_cast<float>(sum);
      to.starts[index] = sum * start_factor;
    }
  }
}

// Quantises [num_tokens, columns], several threads taking part where there is enough to do.
template <int kGroup>
inline void quantise(Activations& to, const float* input, int64_t num_tokens, int64_t columns, int32_t start_factor) {
  to.resize(num_tokens, columns, kGroup);
  const int64_t num_tiles = (num_tokens + kMaxTile - 1) / kMaxTile;
  const int64_t tiles_per_part = 1 + 16384 / (columns * kMaxTile);
  pool().run((num_tiles + tiles_per_part - 1) / tiles_per_part, [&](int64_t part) {
    const int64_t end = std::min(num_tokens, (part + 1) * tiles_per_part * kMaxTile);
    for (int64_t first = part * tiles_per_part * kMaxTile; first < end;) {
      const int size = tile_size(end - first);
      quantise_tile<kGroup>(to, input, first, size, start_factor);
      first += size;
    }
  });
}
