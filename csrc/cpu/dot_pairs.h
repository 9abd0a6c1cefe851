// dot.h's products where 16 bits hold the sum of two: AVX2, and AVX-512 without VNNI. Included by dot.h.

typedef int16_t ShortVector __attribute__((vector_size(kPartBytes)));

constexpr int kCodeShift = -128;

// Magnitudes and signs apart: a product of pairs takes one factor unsigned, and 2 * 128 * 127 fits in 16 bits where
// 2 * 255 * 127 would not.
#if defined(__AVX512BW__)

struct SignedWeights {
  Bytes magnitudes;
  __mmask64 negative;
};

inline SignedWeights split_signs(Bytes codes) {
  const __m512i weights = reinterpret_cast<__m512i>(codes ^ 128);
  return {reinterpret_cast<Bytes>(_mm512_abs_epi8(weights)), _mm512_movepi8_mask(weights)};
}

inline Bytes apply_signs(Bytes activations, const SignedWeights& weights) {
  const __m512i values = reinterpret_cast<__m512i>(activations);
  return reinterpret_cast<Bytes>(_mm512_mask_sub_epi8(values, weights.negative, _mm512_setzero_si512(), values));
}

// For bytes a, b (unsigned) and c, d (signed) beside each other: a * c + b * d.
inline ShortVector multiply_pairs(Bytes weights, Bytes activations) {
  return reinterpret_cast<ShortVector>(
      _mm512_maddubs_epi16(reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(activations)));
}

inline IntVector add_pairs(ShortVector sums) {
  return reinterpret_cast<IntVector>(_mm512_madd_epi16(reinterpret_cast<__m512i>(sums), _mm512_set1_epi16(1)));
}

#else

struct SignedWeights {
  Bytes magnitudes;
  Bytes values;
};

inline SignedWeights split_signs(Bytes codes) {
  const Bytes values = codes ^ 128;
  return {reinterpret_cast<Bytes>(_mm256_abs_epi8(reinterpret_cast<__m256i>(values))), values};
}

inline Bytes apply_signs(Bytes activations, const SignedWeights& weights) {
  return reinterpret_cast<Bytes>(
      _mm256_sign_epi8(reinterpret_cast<__m256i>(activations), reinterpret_cast<__m256i>(weights.values)));
}

// For bytes a, b (unsigned) and c, d (signed) beside each other: a * c + b * d.
inline ShortVector multiply_pairs(Bytes weights, Bytes activations) {
  return reinterpret_cast<ShortVector>(
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(activations)));
}

inline IntVector add_pairs(ShortVector sums) {
  return reinterpret_cast<IntVector>(_mm256_madd_epi16(reinterpret_cast<__m256i>(sums), _mm256_set1_epi16(1)));
}

#endif

// The same sums, but the compiler cannot put them off. Left alone, it makes many products before it adds up the first,
// and has no registers for them.
template <typename Sums>
inline Sums finished(Sums sums) {
  asm volatile("" : "+v"(sums));
  return sums;
}

template <int kGroup, int kTokens>
inline void dot_group_w8(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / 4; ++step) {
    SignedWeights weights[kParts];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part)
      weights[part] = split_signs(load_bytes(codes + step * kLineBytes + part * kPartBytes));
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      const Bytes quad = broadcast_quad(activations + (step * kTokens + token) * 4);
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part)
        sums[token][part] = finished(
            sums[token][part] + add_pairs(multiply_pairs(weights[part].magnitudes, apply_signs(quad, weights[part]))));
    }
  }
}

// Lines whose pairs 16 bits have room for: 16 * 15 * 127 = 30480, 8 * 31 * 127 = 31496, 4 * 63 * 127 = 32004.
template <int kBits>
constexpr int kLinesInShorts = kBits == 4 ? 4 : kBits == 5 ? 2 : 1;

// With codes from PackedLines or UnpackedLines.
template <int kBits, int kGroup, typename Source, int kTokens>
inline void dot_lines(Source source, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
  constexpr int kSteps = kGroup / 8, kRoom = std::min(kSteps, kLinesInShorts<kBits>);
#pragma GCC unroll 4
  for (int first = 0; first < kSteps; first += kRoom) {
    ShortVector pairs[kTokens][kParts];
#pragma GCC unroll 4
    for (int step = first; step < first + kRoom; ++step) {
      Bytes low[kParts], high[kParts];
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const Halves both = source.load(step, part);
        low[part] = both.low;
        high[part] = both.high;
      }
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        const int8_t* quads = activations + (2 * step * kTokens + token) * 4;
        const Bytes quad = broadcast_quad(quads), next_quad = broadcast_quad(quads + kTokens * 4);
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          const ShortVector products = multiply_pairs(low[part], quad);
          pairs[token][part] = finished(step == first ? products : pairs[token][part] + products);
          pairs[token][part] = finished(pairs[token][part] + multiply_pairs(high[part], next_quad));
        }
      }
    }
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part)
        sums[token][part] = finished(sums[token][part] + add_pairs(pairs[token][part]));
  }
}

template <int kBits, int kGroup, int kTokens>
inline void dot_group_narrow(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
  dot_lines<kBits, kGroup>(PackedLines<kBits>{codes}, activations, sums);
}
