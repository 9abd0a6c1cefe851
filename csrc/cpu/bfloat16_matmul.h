// Products of matrices of bfloat16 with activations rounded to bfloat16; sums are float32. Included inside the level's
// namespace.
//
// The activations are rounded first, once, in pairs of columns, as the matrix has them. Where the processor multiplies
// pairs, a register of 16 pairs of weights meets a pair of a token's numbers, which is twice as many products at a time as of
// float32. One register sums from the first pair to the last, so the order of an element's sum depends on nothing
// else, as in float_matmul.h, whose tiles these are. Elsewhere rounded activations meet widened weights: the same products,
// added one by one.

// To the nearest number that bfloat16 has, ties to even. Too large a number becomes infinite, and a NaN stays one.
inline Vector round_to_bfloat16(Vector value) {
  const UnsignedVector bits = (UnsignedVector)value;
  const UnsignedVector rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16;
  return value == value ? (Vector)rounded : value;
}

#if defined(__AVX512BF16__)

constexpr int kPairTile = 12;  // tokens
constexpr int64_t kPiecePairs = 1024;

// Pairs from one token's to the next's: whole cache lines, an odd number of them, since tokens that were a page apart
// would push each other out of the first cache.
inline int64_t pair_stride(int64_t columns) { return ((columns + 31) / 32 | 1) * 16; }

inline void round_row(Pair* to, const float* from, int64_t columns) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= columns; column += 2 * kLanes) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(load(from + column + kLanes), load(from + column));
    __builtin_memcpy(to + column / 2, &pairs, sizeof pairs);
  }
  const int64_t rest = columns - column;
  if (rest == 0) return;
  const __m512bh pairs = _mm512_cvtne2ps_pbh(load_first(from + column + kLanes, std::max<int64_t>(0, rest - kLanes)),
                                             load_first(from + column, std::min<int64_t>(rest, kLanes)));
  __builtin_memcpy(to + column / 2, &pairs, sizeof pairs);
}

template <int kPanels, int kTokens>
[[gnu::always_inline]] inline void add_step(Vector (&totals)[kTokens][kPanels * kParts], const BFloat16* panels,
                                            int64_t panel_stride, const Pair* input, int64_t input_stride) {
  PairVector weights[kPanels];
#pragma GCC unroll 2
  for (int panel = 0; panel < kPanels; ++panel)
    weights[panel] = load(reinterpret_cast<const Pair*>(panels + panel * panel_stride));
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const PairVector pair = broadcast(input[token * input_stride]);
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel)
      totals[token][panel] = add_product(totals[token][panel], weights[panel], pair);
  }
}

inline void bfloat16_matmul(const FloatArgs& args) {
  if (args.num_tokens == 0) return;
  static thread_local std::vector<Pair> memory;
  const int64_t stride = pair_stride(args.columns), pairs = (args.columns + 1) / 2;
  Pair* const rounded = scratch(memory, args.num_tokens * stride);
  const int64_t step = rows_per_part(args.columns);
  pool().run((args.num_tokens + step - 1) / step, [&](int64_t part) {
    for (int64_t token = part * step; token < std::min(args.num_tokens, (part + 1) * step); ++token)
      round_row(rounded + token * stride, args.input + token * args.columns, args.columns);
  });
  const FloatMatrix<BFloat16> matrix{static_cast<const BFloat16*>(args.values), args.columns};
  const auto block = [&](int64_t first_panel, int64_t end_panel, int64_t first_token, int64_t count,
                         FloatOutput output) {
    const int64_t piece = count <= kPairTile ? pairs : kPiecePairs;
    for (int64_t first = 0; first < pairs; first += piece) {
      const int64_t end = std::min(pairs, first + piece);
      output.begins = first == 0;
      output.ends = end == pairs;
      for_panels(first_panel, end_panel, [&](int64_t panel, int beside) {
        float_tiles<true, kPairTile>(beside, matrix.panel(panel) + first * 2 * kPanel, matrix.panel_size(),
                                     rounded + first_token * stride + first, stride, end - first, output, count,
                                     panel * kPanel);
      });
    }
  };
  float_product(args, args.rows, args.columns, block);
}

#else

inline void bfloat16_matmul(const FloatArgs& args) {
  static thread_local std::vector<float> memory;
  float* const rounded = scratch(memory, args.num_tokens * args.columns);
  const int64_t step = rows_per_part(args.columns);
  pool().run((args.num_tokens + step - 1) / step, [&](int64_t part) {
    const int64_t end = std::min(args.num_tokens, (part + 1) * step) * args.columns;
    for (int64_t index = part * step * args.columns; index < end; index += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, end - index);
      store_first(rounded + index, round_to_bfloat16(load_first(args.input + index, count)), count);
    }
  });
  FloatArgs args_of_rounded = args;
  args_of_rounded.input = rounded;
  float_matmul(args_of_rounded);
}

#endif
