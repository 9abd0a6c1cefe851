// dot.h's products widened to 16 bits first, for processors of which nothing is known. Included by dot.h.
//
// A row's four bytes, seen as two numbers of 16 bits, come apart into the even columns and the odd ones; each two
// products of these are added in the row's lane of 32 bits.

constexpr int kCodeShift = -128;

typedef int16_t ShortVector __attribute__((vector_size(kPartBytes)));
typedef uint16_t UnsignedShorts __attribute__((vector_size(kPartBytes)));

struct Columns {
  ShortVector even, odd;
};

inline Columns widen_signed(Bytes bytes) {
  const ShortVector both = reinterpret_cast<ShortVector>(bytes);
  return {(both << 8) >> 8, both >> 8};
}

inline Columns widen_unsigned(Bytes bytes) {
  const UnsignedShorts both = reinterpret_cast<UnsignedShorts>(bytes);
  return {reinterpret_cast<ShortVector>(both & 255), reinterpret_cast<ShortVector>(both >> 8)};
}

inline IntVector multiply_pairs(ShortVector a, ShortVector b) {
#if defined(__SSE2__)
  return reinterpret_cast<IntVector>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const IntVector x = reinterpret_cast<IntVector>(a), y = reinterpret_cast<IntVector>(b);
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

template <int kTokens>
inline void add_step(const Columns (&weights)[kParts], const int8_t* quads, IntVector (&sums)[kTokens][kParts]) {
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token) {
    const Columns quad = widen_signed(broadcast_quad(quads + token * 4));
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      sums[token][part] += multiply_pairs(weights[part].even, quad.even);
      sums[token][part] += multiply_pairs(weights[part].odd, quad.odd);
    }
  }
}

template <int kGroup, int kTokens>
inline void dot_group_w8(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
#pragma GCC unroll 1
  for (int step = 0; step < kGroup / 4; ++step) {
    Columns weights[kParts];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part)
      weights[part] = widen_signed(load_bytes(codes + step * kLineBytes + part * kPartBytes) ^ 128);
    add_step(weights, activations + step * kTokens * 4, sums);
  }
}

template <int kBits, int kGroup, int kTokens>
inline void dot_group_narrow(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
  typedef Lines<kBits> Here;
#pragma GCC unroll 1
  for (int step = 0; step < kGroup / 8; ++step) {
    const uint8_t* lines = codes + step / Here::kHalves * Here::kBytes;
    Columns low[kParts], high[kParts];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const Halves both = unpack_line<kBits>(lines + part * kPartBytes, step % Here::kHalves);
      low[part] = widen_unsigned(both.low);
      high[part] = widen_unsigned(both.high);
    }
    const int8_t* quads = activations + 2 * step * kTokens * 4;
    add_step(low, quads, sums);
    add_step(high, quads + kTokens * 4, sums);
  }
}
