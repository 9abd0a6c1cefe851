// Activations rounded to 8 bits, for products with packed weights. Included inside the level's namespace.
//
// Each token's group of columns becomes integers of -127..127 times a step, the largest magnitude / 127. Tokens are
// taken in tiles, of the call's widest, then 4, 2 and 1, which lie one after another; within a tile
//
//   integers        [columns / 4, tile's tokens, 4 columns]
//   steps and sums  [columns / group, tile's tokens]
//
// so that a kernel walks along a tile with one pointer.

// With many tokens a tile is of several panels at once, where there are registers for their sums.
constexpr int kManyTokens = 9;
#if defined(__AVX512VNNI__)
constexpr int kManyPanels = 2;
#else
constexpr int kManyPanels = 1;
#endif

// Tokens of the widest tile: as many as have their sums in registers.
constexpr int widest_tile([[maybe_unused]] int64_t num_tokens) {
  if (kLanes < 16) return 4;
  return kManyPanels > 1 && num_tokens >= kManyTokens ? 6 : 8;
}

// The size of the tile that starts where `remaining` tokens are left.
inline int tile_size(int64_t remaining, int widest) {
  if (remaining >= widest) return widest;
  return remaining >= 4 ? 4 : remaining >= 2 ? 2 : 1;
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

// Rounded half to even. What is beyond 32 bits, and NaN, becomes some number.
inline IntVector round_to_int(Vector value) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVector>(_mm512_maskz_cvtps_epi32(0xffff, value));  // unmasked, GCC 12 warns
#elif defined(__AVX2__)
  return reinterpret_cast<IntVector>(_mm256_cvtps_epi32(value));
#elif defined(__SSE2__)
  return reinterpret_cast<IntVector>(_mm_cvtps_epi32(value));
#elif defined(__ARM_NEON)
  return reinterpret_cast<IntVector>(vcvtnq_s32_f32(value));
#else
  return reinterpret_cast<IntVector>(value + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23 leaves no bits below 1
#endif
}

// The low bytes of four vectors: [kLanes / 4, 4 vectors, 4 bytes].
inline Bytes pack_quads(const IntVector (&from)[4]) {
#if defined(__AVX512BW__)
  const auto at = [&](int number) { return reinterpret_cast<__m512i>(from[number]); };
  return reinterpret_cast<Bytes>(
      _mm512_packs_epi16(_mm512_packs_epi32(at(0), at(1)), _mm512_packs_epi32(at(2), at(3))));
#elif defined(__AVX2__)
  const auto at = [&](int number) { return reinterpret_cast<__m256i>(from[number]); };
  return reinterpret_cast<Bytes>(
      _mm256_packs_epi16(_mm256_packs_epi32(at(0), at(1)), _mm256_packs_epi32(at(2), at(3))));
#elif defined(__SSE2__)
  const auto at = [&](int number) { return reinterpret_cast<__m128i>(from[number]); };
  return reinterpret_cast<Bytes>(_mm_packs_epi16(_mm_packs_epi32(at(0), at(1)), _mm_packs_epi32(at(2), at(3))));
#else
  Bytes packed;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int number = 0; number < 4; ++number)
      packed[(lane / 4 * 4 + number) * 4 + lane % 4] = static_cast<uint8_t>(from[number][lane]);
  return packed;
#endif
}

// Of each lane's four signed bytes, the sum.
inline IntVector sum_quads(Bytes bytes) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IntVector>(
      _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), reinterpret_cast<__m512i>(bytes)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), reinterpret_cast<__m256i>(bytes));
  return reinterpret_cast<IntVector>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  const IntVector lanes = reinterpret_cast<IntVector>(bytes);
  return (lanes << 24 >> 24) + (lanes << 16 >> 24) + (lanes << 8 >> 24) + (lanes >> 24);
#endif
}

// Quantises kCount neighbouring tokens of a tile, 4 or fewer, which start at `first`; the tile's are `size`, starting
// at `tile`. Instructions that take four vectors get one of each token, or of fewer tokens several.
template <int kGroup, int kCount>
inline void quantise_tokens(Activations& to, const float* input, int64_t tile, int size, int64_t first,
                            int32_t start_factor) {
  constexpr int kVectors = kGroup / kLanes, kTogether = std::min(4 / kCount, kVectors);
  constexpr int32_t kSmallest = 0x04800000;  // 2^-118 as bits
  const int64_t num_groups = to.columns / kGroup;
  int8_t* quads = to.integers.data() + tile * to.columns + (first - tile) * 4;
  const float* rows = input + first * to.columns;
  for (int64_t group = 0; group < num_groups; ++group) {
    Vector numbers[kCount][kVectors];
    IntVector magnitudes[4];
    // Magnitudes compare as integers; so compared, NaN is above everything and reaches the result.
    const auto larger = [](IntVector a, IntVector b) { return a > b ? a : b; };
#pragma GCC unroll 4
    for (int token = 0; token < kCount; ++token) {
      magnitudes[token] = broadcast_int(kSmallest);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        numbers[token][v] = load(rows + token * to.columns + group * kGroup + v * kLanes);
        magnitudes[token] = larger(magnitudes[token], reinterpret_cast<IntVector>(numbers[token][v]) & 0x7fffffff);
      }
    }
#pragma GCC unroll 4
    for (int token = kCount; token < 4; ++token) magnitudes[token] = magnitudes[token % kCount];
    const Vector largest = reinterpret_cast<Vector>(reduce_four(magnitudes, larger));
    const Vector steps = largest / 127.0f, inverses = 127.0f / largest;
    const Vector inverse[4] = {repeat_lane<0>(inverses, Lanes()), repeat_lane<1>(inverses, Lanes()),
                               repeat_lane<2>(inverses, Lanes()), repeat_lane<3>(inverses, Lanes())};
    IntVector sum = {};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += kTogether) {
      IntVector rounded[4];
#pragma GCC unroll 4
      for (int number = 0; number < 4; ++number) {
        const int token = number % kCount, vector = number / kCount;
        rounded[number] = vector < kTogether ? round_to_int(numbers[token][v + vector] * inverse[token]) : IntVector{};
      }
      const Bytes packed = pack_quads(rounded);
      sum += sum_quads(packed);
      uint8_t bytes[sizeof packed];
      __builtin_memcpy(bytes, &packed, sizeof packed);
#pragma GCC unroll 4
      for (int vector = 0; vector < kTogether; ++vector)
#pragma GCC unroll 4
        for (int quad = 0; quad < kLanes / 4; ++quad)
          __builtin_memcpy(quads + ((v + vector) * kLanes / 4 + quad) * size * 4,
                           bytes + quad * 16 + vector * kCount * 4, kCount * 4);
    }
    if constexpr (kLanes >= 16) sum += exchange_lanes<8>(sum, Lanes());
    if constexpr (kLanes >= 8) sum += exchange_lanes<4>(sum, Lanes());
    if constexpr (kCount <= 2) sum += exchange_lanes<2>(sum, Lanes());
    if constexpr (kCount == 1) sum += exchange_lanes<1>(sum, Lanes());
    const Vector float_sum = __builtin_convertvector(sum, Vector);
    const IntVector start = sum * start_factor;
    const int64_t index = tile * num_groups + group * size + first - tile;
    __builtin_memcpy(to.steps.data() + index, &steps, kCount * 4);
    __builtin_memcpy(to.sums.data() + index, &float_sum, kCount * 4);
    __builtin_memcpy(to.starts.data() + index, &start, kCount * 4);
    quads += kGroup * size;
  }
}

// Quantises the tile of `size` tokens that starts at `first`.
template <int kGroup>
inline void quantise_tile(Activations& to, const float* input, int64_t first, int size, int32_t start_factor) {
  for (int64_t token = first; token < first + size;) {
    const int count = tile_size(first + size - token, 4);
    if (count == 4) quantise_tokens<kGroup, 4>(to, input, first, size, token, start_factor);
    if (count == 2) quantise_tokens<kGroup, 2>(to, input, first, size, token, start_factor);
    if (count == 1) quantise_tokens<kGroup, 1>(to, input, first, size, token, start_factor);
    token += count;
  }
}

// Quantises [num_tokens, columns], several threads taking part where there is enough to do.
template <int kGroup>
inline void quantise(Activations& to, const float* input, int64_t num_tokens, int64_t columns, int32_t start_factor) {
  to.resize(num_tokens, columns, kGroup);
  const int widest = widest_tile(num_tokens);
  const int64_t part_tokens = (1 + 16384 / (columns * widest)) * widest;
  pool().run((num_tokens + part_tokens - 1) / part_tokens, [&](int64_t part) {
    const int64_t end = std::min(num_tokens, (part + 1) * part_tokens);
    for (int64_t first = part * part_tokens; first < end;) {
      const int size = tile_size(end - first, widest);
      quantise_tile<kGroup>(to, input, first, size, start_factor);
      first += size;
    }
  });
}
