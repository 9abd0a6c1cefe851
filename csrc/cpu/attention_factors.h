// Factors: what attention multiplies. Included inside the level's namespace, by kernels.cpp.
//
// Floats, one by one, to which the cache's numbers are widened. Or, where the processor has an instruction for it and the
// cache is bfloat16, pairs of such numbers, of neighbouring dimensions for a score and of neighbouring keys for an output:
// query and weights are rounded to bfloat16, and sums stay float32. A pair starts at an even dimension or position,
// wherever the keys at hand start, so a row meets the same pairs however its prompt was chunked; what has no partner
// gets one that is multiplied by 0, and that must be finite: not what nobody has written yet.

// Reads `count` numbers as one vector whose other lanes may be anything.
template <typename Stored>
inline Vector load_some(const Stored* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Stored lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return load(lanes);
}

inline Vector add_product(Vector sum, Vector a, Vector b) { return sum + a * b; }

// Writes kLanes numbers as factors, and returns them as they are now.
inline Vector store_factors(float* to, Vector value) {
  store(to, value);
  return value;
}

// Of a cache's numbers.
template <typename Stored>
struct Factors {
  using Factor = float;
  static constexpr int64_t kTogether = 1;

  // kLanes factors, or some, the rest of which may be anything; of each the first number, and its second if it has one.
  static Vector join(const Stored* first, const Stored*) { return load(first); }
  static Vector join_some(const Stored* first, const Stored*, int64_t count) { return load_some(first, count); }
};

#if defined(__AVX512BF16__)

inline Vector store_factors(Pair* to, Vector value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  __builtin_memcpy(to, &rounded, sizeof rounded);
  return load(&to->first);
}

template <>
struct Factors<BFloat16> {
  using Factor = Pair;
  static constexpr int64_t kTogether = 2;

  static PairVector join(const BFloat16* first, const BFloat16* second) {
    return (PairVector)(load_16_bits(first) | load_16_bits(second) << 16);
  }
  static PairVector join_some(const BFloat16* first, const BFloat16* second, int64_t count) {
    if (count >= kLanes) return join(first, second);
    BFloat16 lanes[2][kLanes] = {};
    std::copy_n(first, count, lanes[0]);
    std::copy_n(second, count, lanes[1]);
    return join(lanes[0], lanes[1]);
  }
};

#endif
