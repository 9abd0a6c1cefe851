// Factors: what attention multiplies. Included inside the level's namespace, by kernels.cpp.
//
// Floats, one by one, to which the cache's numbers are widened. Or pairs, where the processor has an instruction for them,
// of neighbouring dimensions for a score and of neighbouring keys for an output:
//
//   bfloat16 cache   pairs of bfloat16: query and weights are rounded to it, and sums stay float32;
//   int8 cache       pairs of 16-bit integers: a query's numbers, and a row's weights in a range of keys, are rounded to
//                    whole steps of a size of their own, the largest of them to kLargestInteger, and sums are exact.
//
// A pair starts at an even dimension or position, wherever the keys at hand start, so a row meets the same pairs however
// its prompt was chunked; what has no partner gets one that is multiplied by 0, and that, if it is a float, must be
// finite: not what nobody has written yet.

// Reads `count` numbers as one vector whose other lanes may be anything.
template <typename Stored>
inline Vector load_some(const Stored* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Stored lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return load(lanes);
}

// Sums lie where floats lie at another time.
template <typename Sum>
inline Sum load_sums(const float* from) {
  Sum value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store_sums(float* to, Vector value) { store(to, value); }

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
  static constexpr bool kAreIntegers = false;

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
  static constexpr bool kAreIntegers = false;

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

constexpr float kLargestInteger = 32767;  // times 127, of all keys of a range it adds up to less than 2^31

// The step of numbers of which none is larger; not a number if the largest is none.
inline float integer_step(uint32_t bits_of_largest, float largest_integer = kLargestInteger) {
  const bool is_finite = bits_of_largest < kInfinityBits;
  const float step = std::max(float_of(bits_of_largest) / largest_integer, std::numeric_limits<float>::min());
  return is_finite ? step : std::numeric_limits<float>::quiet_NaN();
}

#if defined(__AVX2__)

inline void store_sums(float* to, IntVector value) { __builtin_memcpy(to, &value, sizeof value); }

inline void store_factors(IntegerPair* to, Vector steps) { store_integers(to, steps); }

template <>
struct Factors<int8_t> {
  using Factor = IntegerPair;
  static constexpr int64_t kTogether = 2;
  static constexpr bool kAreIntegers = true;

  static IntVector join(const int8_t* first, const int8_t* second) { return join_integers(first, second); }
  static IntVector join_some(const int8_t* first, const int8_t* second, int64_t count) {
    if (count >= kLanes) return join(first, second);
    int8_t lanes[2][kLanes] = {};
    std::copy_n(first, count, lanes[0]);
    std::copy_n(second, count, lanes[1]);
    return join(lanes[0], lanes[1]);
  }
};

#endif

// What products of a kind of factor are summed up in.
template <typename Factor>
using SumOf = std::conditional_t<std::is_same_v<Factor, IntegerPair>, IntVector, Vector>;
