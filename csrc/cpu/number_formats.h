// Numbers as the KV cache and weights store them, and their conversion to and from float. Included inside the level's namespace,
// by kernels.cpp.
//
// Reading is exact. Writing rounds to the nearest, ties to even; a float that is too large for 16 bits becomes the
// largest number there is, and a NaN stays one.

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

typedef uint32_t UnsignedVector __attribute__((vector_size(kLanes * sizeof(uint32_t))));

#if defined(__AVX512F__)
// With masks of all lanes, since gcc 12 warns of its own headers otherwise.
inline UnsignedVector load_16_bits(const void* from) {
  return (UnsignedVector)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i*)from));
}
inline Vector load(const int8_t* from) {
  const __m512i numbers = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
  return _mm512_maskz_cvtepi32_ps(0xffff, numbers);
}
inline Vector load(const Half* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)from));
}
#elif defined(__AVX2__)
inline UnsignedVector load_16_bits(const void* from) {
  return (UnsignedVector)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
}
inline Vector load(const int8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
}
inline Vector load(const Half* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
#else
inline UnsignedVector load_16_bits(const void* from) {
  uint16_t numbers __attribute__((vector_size(kLanes * sizeof(uint16_t))));
  __builtin_memcpy(&numbers, from, sizeof numbers);
  return __builtin_convertvector(numbers, UnsignedVector);
}
inline Vector load(const int8_t* from) {
  int8_t numbers __attribute__((vector_size(kLanes)));
  __builtin_memcpy(&numbers, from, sizeof numbers);
  return __builtin_convertvector(__builtin_convertvector(numbers, IntVector), Vector);
}
inline Vector load(const Half* from) {
  const UnsignedVector bits = load_16_bits(from);  // as in widen, below
  const Vector size = (Vector)((bits & 0x7fff) << 13) * 0x1p112f;
  const UnsignedVector not_finite = (UnsignedVector)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
  return (Vector)((UnsignedVector)size | not_finite | (bits & 0x8000) << 16);
}
#endif

inline Vector load(const BFloat16* from) { return (Vector)(load_16_bits(from) << 16); }

inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen(Half number) {
  // The exponent's bias differs by 112, which a product puts right, and so it does for numbers without leading one.
  const float size = float_of((number.bits & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t not_finite = (number.bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  return float_of(bits_of(size) | not_finite | (number.bits & 0x8000u) << 16);
}

// Rounds away the low `count` bits of a finite float's bits and shifts them out.
inline uint32_t round_off(uint32_t bits, int count) {
  return (bits + (1u << (count - 1)) - 1 + (bits >> count & 1)) >> count;
}

inline void narrow(float value, float* to) { *to = value; }

inline void narrow(float value, BFloat16* to) {
  constexpr float kLargest = 0x1.fep127f;
  const uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
  uint32_t result = 0x7fc0;
  if (value == value) result = round_off(bits_of(std::min(float_of(size), kLargest)), 16);
  to->bits = static_cast<uint16_t>(result | (bits >> 16 & 0x8000));
}

inline void narrow(float value, Half* to) {
  constexpr float kLargest = 65504, kLeastNormal = 0x1p-14f;
  const uint32_t bits = bits_of(value);
  const float size = float_of(bits & 0x7fffffff);
  uint32_t result = 0x7e00;
  if (size < kLeastNormal) result = bits_of(size + 0.5f) - bits_of(0.5f);  // the sum has its last digit at 2^-24
  else if (size == size) result = round_off(bits_of(std::min(size, kLargest)) - (112u << 23), 13);
  to->bits = static_cast<uint16_t>(result | (bits >> 16 & 0x8000));
}

template <typename Stored>
inline void store(Stored* to, Vector value) {
  for (int lane = 0; lane < kLanes; ++lane) narrow(value[lane], to + lane);
}

#if defined(__AVX2__)
inline void store(Half* to, Vector value) {
  const Vector largest = broadcast(65504);
  value = value > largest ? largest : value < -largest ? -largest : value;
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#endif
}
#endif

// Writes numbers, `stride` places apart. Returns what they are to be multiplied by when they are read.
template <typename Stored>
inline float narrow_row(const float* from, int64_t size, Stored* to, int64_t stride) {
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes) {
    Stored lanes[kLanes];
    store(lanes, load(from + index));
    for (int lane = 0; lane < kLanes; ++lane) to[(index + lane) * stride] = lanes[lane];
  }
  for (; index < size; ++index) narrow(from[index], to + index * stride);
  return 1.0f;
}

constexpr uint32_t kInfinityBits = 0x7f800000;

// The bits of the largest magnitude; not below kInfinityBits if there is a NaN or an infinity.
inline uint32_t bits_of_largest(const float* from, int64_t size) {
  uint32_t largest = 0;
  for (int64_t index = 0; index < size; ++index) largest = std::max(largest, bits_of(from[index]) & 0x7fffffff);
  return largest;
}

// In 8 bits the row's largest number becomes 127 or -127; a row with a NaN or an infinity is read back as NaN.
inline float narrow_row(const float* from, int64_t size, int8_t* to, int64_t stride) {
  const uint32_t largest = bits_of_largest(from, size);
  if (largest >= kInfinityBits) {
    for (int64_t index = 0; index < size; ++index) to[index * stride] = 0;
    return std::numeric_limits<float>::quiet_NaN();
  }
  constexpr float kRounder = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float scale = std::max(float_of(largest) / 127.0f, std::numeric_limits<float>::min());
  typedef int8_t ByteVector __attribute__((vector_size(kLanes)));
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes) {
    const Vector rounded = load(from + index) / scale + kRounder - kRounder;
    const ByteVector bytes = __builtin_convertvector(__builtin_convertvector(rounded, IntVector), ByteVector);
    int8_t lanes[kLanes];
    __builtin_memcpy(lanes, &bytes, sizeof lanes);
    if (stride == 1) std::copy_n(lanes, kLanes, to + index);
    else for (int lane = 0; lane < kLanes; ++lane) to[(index + lane) * stride] = lanes[lane];
  }
  for (; index < size; ++index) to[index * stride] = static_cast<int8_t>(from[index] / scale + kRounder - kRounder);
  return scale;
}
