// dot.h's products where one instruction adds four of them to a 32-bit sum: VNNI, and the dot products of Armv8.2.
// Included by dot.h.

#if defined(__ARM_FEATURE_DOTPROD)

// Both factors are signed; codes of 4 bits are either way.
constexpr int kCodeShift = -128;
inline Bytes shift_codes(Bytes codes) { return codes ^ 128; }

// The four activations of each token of a tile, in one register.
typedef int8x16_t Quads;

template <int kTokens>
inline Quads load_quads(const int8_t* from) {
  if constexpr (kTokens == 4) return vld1q_s8(from);
  if constexpr (kTokens == 2) return vcombine_s8(vld1_s8(from), vdup_n_s8(0));
  return reinterpret_cast<int8x16_t>(broadcast_quad(from));
}

template <int kToken>
inline IntVector add_products(IntVector sums, Bytes codes, Quads quads) {
  return vdotq_laneq_s32(sums, reinterpret_cast<int8x16_t>(codes), quads, kToken);
}

#else

constexpr int kCodeShift = 0;
inline Bytes shift_codes(Bytes codes) { return codes; }

// Where the four activations of each token of a tile are; a product takes them from there.
typedef const int8_t* Quads;

template <int kTokens>
inline Quads load_quads(const int8_t* from) {
  return from;
}

template <int kToken>
inline IntVector add_products(IntVector sums, Bytes codes, Quads quads) {
  const Bytes quad = broadcast_quad(quads + kToken * 4);
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IntVector>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                                         reinterpret_cast<__m512i>(codes),
                                                         reinterpret_cast<__m512i>(quad)));
#else
  return reinterpret_cast<IntVector>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums),
                                                             reinterpret_cast<__m256i>(codes),
                                                             reinterpret_cast<__m256i>(quad)));
#endif
}

#endif

// Four columns of panels by four activations of each token. kWide: the registers of all these panels.
template <int kTokens, int kWide, size_t... kToken>
inline void add_step(const Bytes (&weights)[kWide], Quads quads, IntVector (&sums)[kTokens][kWide],
                     std::index_sequence<kToken...>) {
  const auto add_token = [&]<size_t kIndex>() {
#pragma GCC unroll 4
    for (int part = 0; part < kWide; ++part)
      sums[kIndex][part] = add_products<kIndex>(sums[kIndex][part], weights[part], quads);
  };
  (add_token.template operator()<kToken>(), ...);
}

template <int kGroup, int kTokens, int kWide>
inline void dot_group_w8(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kWide],
                         int64_t panel_bytes = 0) {
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / 4; ++step) {
    Bytes weights[kWide];
#pragma GCC unroll 4
    for (int part = 0; part < kWide; ++part)
      weights[part] = shift_codes(load_bytes(codes + step * kLineBytes + part_offset(part, panel_bytes)));
    add_step(weights, load_quads<kTokens>(activations + step * kTokens * 4), sums, std::make_index_sequence<kTokens>());
  }
}

// With codes from PackedLines or UnpackedLines.
template <int kBits, int kGroup, typename Source, int kTokens, int kWide>
inline void dot_lines(Source source, const int8_t* activations, IntVector (&sums)[kTokens][kWide]) {
#pragma GCC unroll 4
  for (int step = 0; step < kGroup / 8; ++step) {
    Bytes low[kWide], high[kWide];
#pragma GCC unroll 4
    for (int part = 0; part < kWide; ++part) {
      const Halves both = source.load(step, part);
      low[part] = both.low;
      high[part] = both.high;
    }
    const int8_t* quads = activations + 2 * step * kTokens * 4;
    add_step(low, load_quads<kTokens>(quads), sums, std::make_index_sequence<kTokens>());
    add_step(high, load_quads<kTokens>(quads + kTokens * 4), sums, std::make_index_sequence<kTokens>());
  }
}

template <int kBits, int kGroup, int kTokens, int kWide>
inline void dot_group_narrow(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kWide],
                             int64_t panel_bytes = 0) {
  dot_lines<kBits, kGroup>(PackedLines<kBits>{codes, panel_bytes}, activations, sums);
}
