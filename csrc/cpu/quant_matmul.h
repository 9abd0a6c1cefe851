// Products with packed weights (fathom/quant/packed.py has the layout). Included inside the level's namespace.
//
// The activations are quantised first, once. Then a micro-kernel multiplies a panel of 16 rows by a tile of a few tokens,
// or with many tokens two panels, where the registers hold that many sums: weights are loaded once for the tile, and the
// sums stay in registers. A panel is multiplied by all tiles of a block of tokens before the next panel: the panel stays
// in the first cache and the block in the second. For one token this is one pass over the weights in the order in which
// they lie.

constexpr int64_t kBlockTokens = 96;  // a multiple of every widest tile
constexpr int kPrefetchBytes = 8192;  // how far ahead of the codes being multiplied

// a * b + c. In words of our own where there is an instruction for it: which product of a sum of two products the
// compiler fuses must not depend on the tile's size.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline void store_panel(const PackedArgs& args, int64_t panel, int64_t token, const Vector* totals) {
  const int64_t first = panel * kPanel, count = args.matrix.rows - first;
  float* output = args.output + token * args.output_stride + first;
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) {
    const int64_t row = part * kLanes, rest = count - row;
    if (rest <= 0) return;
    Vector values = totals[part];
    if (rest >= kLanes) {
      if (args.bias != nullptr) values += load(args.bias + first + row);
      store(output + row, values);
    } else {
      if (args.bias != nullptr) values += load_first(args.bias + first + row, rest);
      store_first(output + row, values, rest);
    }
  }
}

// The activations of a tile of kTokens tokens, group by group.
template <typename Format, int kTokens>
struct TileGroups {
  const int8_t* integers;
  const float* steps;  // of each token, as are the others
  const float* sums;
  const int32_t* starts;

  TileGroups(const Activations& activations, int64_t num_groups, int64_t first_token, int64_t group) {
    const int64_t number = first_token * num_groups + group * kTokens;
    integers = activations.integers.data() + number * Format::kGroup;
    steps = activations.steps.data() + number;
    sums = activations.sums.data() + number;
    starts = activations.starts.data() + number;
  }

  void advance() {
    integers += Format::kGroup * kTokens;
    steps += kTokens;
    sums += kTokens;
    starts += kTokens;
  }

  // What the group's sums of products start from.
  template <int kWide>
  void start(IntVector (&dots)[kTokens][kWide]) const {
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 4
      for (int part = 0; part < kWide; ++part)
        dots[token][part] = Format::kStartFactor == 0 ? IntVector{} : broadcast_int(starts[token]);
  }
};

// A group's products of some rows with one token, times its factors, added to the total.
template <typename Format>
inline Vector add_group(Vector total, IntVector dots, Vector scale, Vector minimum, float sum, float step) {
  const Vector dot = __builtin_convertvector(dots, Vector);
  const Vector product = Format::kMinimums ? multiply_add(scale, dot, minimum * broadcast(sum)) : scale * dot;
  return multiply_add(product, broadcast(step), total);
}

// Fetches the codes that kPanels panels beside each other reach some groups after `group`; `codes` are its own.
template <typename Format, int kPanels>
inline void prefetch_codes(const uint8_t* codes, int64_t panel_bytes, int64_t group, int64_t num_groups) {
  constexpr int kAhead = kPrefetchBytes / (kPanels * Format::kGroupBytes);
  const uint8_t* ahead = codes + kAhead * Format::kGroupBytes;
  if (group + kAhead >= num_groups) ahead += (kPanels - 1) * panel_bytes;  // the next panels'
#pragma GCC unroll 2
  for (int panel = 0; panel < kPanels; ++panel)
    for (int line = 0; line < Format::kGroupBytes; line += 64)
      __builtin_prefetch(ahead + panel * panel_bytes + line);
}

// kPanels panels by the tile of kTokens tokens that starts at `first`. from_memory: they are in no cache yet.
template <typename Format, int kPanels, int kTokens>
inline void matmul_tile(const PackedArgs& args, const Activations& activations, int64_t number, int64_t first,
                        bool from_memory) {
  constexpr int kWide = kPanels * kParts;
  const int64_t num_groups = args.matrix.columns / Format::kGroup;
  const Panel<Format> panel(args.matrix, number);
  const uint8_t* codes = panel.codes;
  const int64_t panel_bytes = num_groups * Format::kGroupBytes;
  TileGroups<Format, kTokens> tile(activations, num_groups, first, 0);
  Vector totals[kTokens][kWide];
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 4
    for (int part = 0; part < kWide; ++part) totals[token][part] = Vector{};
  for (int64_t group = 0; group < num_groups; ++group) {
    if (from_memory) prefetch_codes<Format, kPanels>(codes, panel_bytes, group, num_groups);
    IntVector dots[kTokens][kWide];
    tile.start(dots);
    if constexpr (kPanels == 1) Format::template dot_group<kTokens>(codes, tile.integers, dots);
    if constexpr (kPanels > 1) Format::template dot_group<kTokens>(codes, tile.integers, dots, panel_bytes);
#pragma GCC unroll 4
    for (int part = 0; part < kWide; ++part) {
      const int64_t place = group + part / kParts * num_groups;
      const Vector scale = panel.scales.load_part(place, part % kParts);
      const Vector minimum = Format::kMinimums ? panel.minimums.load_part(place, part % kParts) : Vector{};
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token)
        totals[token][part] = add_group<Format>(totals[token][part], dots[token][part], scale, minimum,
                                                tile.sums[token], tile.steps[token]);
    }
    codes += Format::kGroupBytes;
    tile.advance();
  }
#pragma GCC unroll 8  // an array whose elements are found at run time is kept in memory
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel)
      store_panel(args, number + panel, first + token, totals[token] + panel * kParts);
}

#include "unpacked_panel.h"

// The calling thread's memory for quantised activations, kept from call to call; the pool's threads share it.
inline Activations& activations_scratch() {
  static thread_local Activations scratch;
  return scratch;
}

// kPanels panels by the tokens [first, end), which are whole tiles.
template <typename Format, int kPanels>
inline void matmul_panels(const PackedArgs& args, const Activations& activations, int64_t number, int64_t first,
                          int64_t end) {
  const int widest = widest_tile(args.num_tokens);
  for (int64_t token = first; token < end;) {
    const int size = tile_size(end - token, widest);
    const auto multiply = [&]<int kTokens>() {
      if (size == kTokens) matmul_tile<Format, kPanels, kTokens>(args, activations, number, token, token == first);
    };
    if constexpr (kPanels == 1 && widest_tile(1) == 8) multiply.template operator()<8>();
    if constexpr (widest_tile(kManyTokens) == 6) multiply.template operator()<6>();
    multiply.template operator()<4>();
    multiply.template operator()<2>();
    multiply.template operator()<1>();
    token += size;
  }
}

// Panels [first_panel, end_panel) by the tokens [first_token, end_token), which are whole tiles.
template <typename Format>
inline void matmul_block(const PackedArgs& args, const Activations& activations, int64_t first_panel,
                           int64_t end_panel, int64_t first_token, int64_t end_token) {
  if constexpr (kUnpacks<Format>) {
    if (end_token - first_token >= kUnpackTokens)
      return matmul_unpacked<Format>(args, activations, first_panel, end_panel, first_token, end_token);
  }
  constexpr int kPanels = kManyPanels;
  int64_t panel = first_panel;
  if constexpr (kPanels > 1) {
    for (; args.num_tokens >= kManyTokens && panel + kPanels <= end_panel; panel += kPanels)
      matmul_panels<Format, kPanels>(args, activations, panel, first_token, end_token);
  }
  for (; panel < end_panel; ++panel) matmul_panels<Format, 1>(args, activations, panel, first_token, end_token);
}

// Runs of panels a block of tokens is cut into: some for each thread, so that they end together, but none too
// small to be worth handing over.
inline int64_t num_runs(int64_t num_panels, int64_t num_blocks, int64_t columns, int64_t block_tokens) {
  constexpr int64_t kPartsPerThread = 4;
  constexpr int64_t kMinProducts = 1 << 16;
  const int64_t wanted = (kPartsPerThread * pool().num_threads() + num_blocks - 1) / num_blocks;
  const int64_t worthwhile = num_panels * kPanel * columns * block_tokens / kMinProducts;
  return std::max<int64_t>(1, std::min({wanted, worthwhile, num_panels}));
}

template <typename Format>
inline void matmul_format(const PackedArgs& args) {
  const int64_t columns = args.matrix.columns;
  Activations& activations = activations_scratch();
  quantise<Format::kGroup>(activations, args.input, args.num_tokens, columns, Format::kStartFactor);
  const int64_t num_panels = (args.matrix.rows + kPanel - 1) / kPanel;
  const int64_t at_once = args.num_tokens >= kManyTokens ? kManyPanels : 1;  // runs do not cut a tile's panels
  const int64_t num_units = (num_panels + at_once - 1) / at_once;
  const int64_t num_blocks = (args.num_tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t runs = num_runs(num_units, num_blocks, at_once * columns, std::min(args.num_tokens, kBlockTokens));
  pool().run(runs * num_blocks, [&](int64_t part) {
    const int64_t run = part % runs, first_token = part / runs * kBlockTokens;
    const int64_t end_panel = std::min(num_panels, num_units * (run + 1) / runs * at_once);
    matmul_block<Format>(args, activations, num_units * run / runs * at_once, end_panel, first_token,
                         std::min(args.num_tokens, first_token + kBlockTokens));
  });
}

inline void quant_matmul(const PackedArgs& args) {
  if (args.num_tokens == 0) return;
  with_format(args.matrix, [&](auto format) { matmul_format<decltype(format)>(args); });
}
