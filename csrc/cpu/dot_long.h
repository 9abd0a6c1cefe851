// dot.h's products by NEON's long multiplications: eight bytes by eight bytes make eight sums of 16 bits, which are
// added up in pairs when they are full. Included by dot.h.

constexpr int kCodeShift = -128;
constexpr int kHalves = 2;  // of a register: two rows each

inline int8x8_t half_of(Bytes value, int half) {
  const int8x16_t bytes = reinterpret_cast<int8x16_t>(value);
  return half == 0 ? vget_low_s8(bytes) : vget_high_s8(bytes);
}

// Two steps of codes - 128 fill 16 bits: 2 * 128 * 127 = 32512.
template <int kGroup, int kTokens>
inline void dot_group_w8(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
#pragma GCC unroll 1  // the sums of one part, all there is room for
  for (int part = 0; part < kParts; ++part) {
    int32x4_t pairs[kTokens][kHalves] = {};
    for (int step = 0; step < kGroup / 4; step += 2) {
      const uint8_t* from = codes + step * kLineBytes + part * kPartBytes;
      const Bytes first = load_bytes(from) ^ 128, second = load_bytes(from + kLineBytes) ^ 128;
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token) {
        const int8_t* quads = activations + (step * kTokens + token) * 4;
        const Bytes quad = broadcast_quad(quads), next_quad = broadcast_quad(quads + kTokens * 4);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          const int16x8_t products = vmlal_s8(vmull_s8(half_of(first, half), half_of(quad, half)),
                                              half_of(second, half), half_of(next_quad, half));
          pairs[token][half] = vpadalq_s16(pairs[token][half], products);
        }
      }
    }
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; ++token) sums[token][part] += vpaddq_s32(pairs[token][0], pairs[token][1]);
  }
}

// Codes of up to 6 bits leave room in 16 bits for a whole group: 8 * 31 * 127 = 31496 in groups of 32,
// 4 * 63 * 127 = 32004 in groups of 16. Those of 4 bits also for a group added up in pairs: 16 * 15 * 127 = 30480.
template <int kBits, int kGroup, int kTokens>
inline void dot_group_narrow(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kParts]) {
  static_assert(kBits < 6 || kGroup == 16);
  typedef Lines<kBits> Here;
#pragma GCC unroll 1
  for (int part = 0; part < kParts; ++part) {
    int16x8_t products[kTokens][kHalves] = {};
#pragma GCC unroll 4
    for (int step = 0; step < kGroup / 8; ++step) {
      const uint8_t* lines = codes + step / Here::kHalves * Here::kBytes;
      const Halves both = unpack_line<kBits>(lines + part * kPartBytes, step % Here::kHalves);
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token) {
        const int8_t* quads = activations + (2 * step * kTokens + token) * 4;
        const Bytes quad = broadcast_quad(quads), next_quad = broadcast_quad(quads + kTokens * 4);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          int16x8_t& sum = products[token][half];
          sum = vmlal_s8(sum, half_of(both.low, half), half_of(quad, half));
          sum = vmlal_s8(sum, half_of(both.high, half), half_of(next_quad, half));
        }
      }
    }
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; ++token) {
      const int16x8_t first = products[token][0], second = products[token][1];
      sums[token][part] += kBits == 4 ? vpaddlq_s16(vpaddq_s16(first, second))
                                      : vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
    }
  }
}
