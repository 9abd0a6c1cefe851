// Pairs of 16-bit integers: two products of such pairs are added to a 32-bit sum by one instruction, or by two. Included
// inside the level's namespace, by kernels.cpp.

struct IntegerPair {
  int16_t first, second;
};

#if defined(__AVX2__)

inline IntVector load(const IntegerPair* from) {
  IntVector pairs;
  __builtin_memcpy(&pairs, from, sizeof pairs);
  return pairs;
}

inline void store(IntegerPair* to, IntVector pairs) { __builtin_memcpy(to, &pairs, sizeof pairs); }

inline IntVector broadcast(const IntegerPair& pair) {
  int32_t bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits - IntVector{};
}

#if defined(__AVX512F__)

inline IntVector add_product(IntVector sum, IntVector a, IntVector b) {
#if defined(__AVX512VNNI__)
  return (IntVector)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return sum + (IntVector)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
}

// kLanes integers each, joined pair by pair.
inline IntVector join_integers(const int8_t* first, const int8_t* second) {
  // Each four lanes see all numbers and take theirs, by the number of the lane, into their upper bytes.
  typedef int8_t Places __attribute__((vector_size(64)));
  constexpr auto places = []<size_t... kByte>(std::index_sequence<kByte...>) { return Places{kByte / 4 ...}; };
  const __m512i of_lanes = (__m512i)places(std::make_index_sequence<64>());
  const __m512i firsts = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i*)first));
  const __m512i seconds = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i*)second));
  const __m512i both = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(firsts, of_lanes), 0x8888888888888888, seconds, of_lanes);
  return (IntVector)_mm512_srai_epi16(both, 8);
}

// Rounds kLanes numbers that 16 bits hold.
inline void store_integers(void* to, Vector value) {
  const __m512i rounded = _mm512_maskz_cvtps_epi32(0xffff, value);
  _mm256_storeu_si256((__m256i*)to, _mm512_maskz_cvtepi32_epi16(0xffff, rounded));
}

#else

inline IntVector add_product(IntVector sum, IntVector a, IntVector b) {
#if defined(__AVXVNNI__)
  return (IntVector)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
  return sum + (IntVector)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

// kLanes integers each, joined pair by pair.
inline IntVector join_integers(const int8_t* first, const int8_t* second) {
  const __m128i firsts = _mm_loadl_epi64((const __m128i*)first), seconds = _mm_loadl_epi64((const __m128i*)second);
  return (IntVector)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(firsts, seconds));
}

// Rounds kLanes numbers that 16 bits hold.
inline void store_integers(void* to, Vector value) {
  const __m256i rounded = _mm256_cvtps_epi32(value);
  const __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
  _mm_storeu_si128((__m128i*)to, _mm_packs_epi32(low, high));
}

#endif
#endif
