// Products of many tokens with weights that take long to unpack: some columns of a panel are unpacked once, into the
// first cache, for all tiles of a block of tokens. Included by quant_matmul.h.

constexpr int64_t kUnpackTokens = 16;  // fewer are not worth it

// Where codes have bits that lie apart, or groups of 16 columns many scales. Codes of 4 and 8 bits in groups of 32 cost
// less to unpack for each tile than to store and load.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
template <typename Format>
constexpr bool kUnpacks = Format::kBits == 5 || Format::kBits == 6 || Format::kGroup == 16;
#else
template <typename Format>
constexpr bool kUnpacks = false;
#endif

// Some columns of a panel, unpacked.
template <typename Format>
struct UnpackedPanel {
  static constexpr int kColumns = 256, kGroups = kColumns / Format::kGroup;
  static constexpr int kGroupBytes = Format::kGroup * kPanel;

  int64_t first_group;
  int num_groups;
  alignas(64) uint8_t codes[kGroups * kGroupBytes];
  alignas(64) float scales[kGroups * kPanel];
  alignas(64) float minimums[Format::kMinimums ? kGroups * kPanel : kLanes];

  // The columns of groups [first, end).
  void unpack(const Panel<Format>& panel, int64_t first, int64_t end) {
    first_group = first;
    num_groups = static_cast<int>(end - first);
    unpack_codes(panel.codes + first * Format::kGroupBytes);
    for (int group = 0; group < num_groups; ++group) {
      for (int part = 0; part < kParts; ++part) {
        const int here = group * kPanel + part * kLanes;
        store(scales + here, panel.scales.load_part(first + group, part));
        if constexpr (Format::kMinimums) store(minimums + here, panel.minimums.load_part(first + group, part));
      }
    }
  }

 private:
  void unpack_codes(const uint8_t* packed) {
    for (int byte = 0; byte < num_groups * Format::kGroupBytes; byte += 64)
      __builtin_prefetch(packed + kPrefetchBytes + byte);
    constexpr int kHalves = Lines<Format::kBits>::kHalves;
    const PackedLines<Format::kBits> lines = {packed};
    for (int first = 0; first < num_groups * Format::kGroup / 8; first += kHalves) {
#pragma GCC unroll 4
      for (int line = first; line < first + kHalves; ++line)
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) store_line(codes, line, part, lines.load(line, part));
    }
  }
};

// These columns by the tile of kTokens tokens that starts at `first`, added to sums [kTokens, kPanel].
template <typename Format, int kTokens>
inline void matmul_unpacked_tile(const UnpackedPanel<Format>& panel, const Activations& activations, int64_t first,
                                 float* sums) {
  TileGroups<Format, kTokens> tile(activations, activations.columns / Format::kGroup, first, panel.first_group);
  Vector totals[kTokens][kParts];
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) totals[token][part] = load(sums + token * kPanel + part * kLanes);
  for (int group = 0; group < panel.num_groups; ++group) {
    IntVector dots[kTokens][kParts];
    tile.start(dots);
    const UnpackedLines lines = {panel.codes + group * panel.kGroupBytes};
    dot_lines<Format::kBits, Format::kGroup>(lines, tile.integers, dots);
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int here = group * kPanel + part * kLanes;
      const Vector scale = load(panel.scales + here);
      const Vector minimum = Format::kMinimums ? load(panel.minimums + here) : Vector{};
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token)
        totals[token][part] = add_group<Format>(totals[token][part], dots[token][part], scale, minimum,
                                                tile.sums[token], tile.steps[token]);
    }
    tile.advance();
  }
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) store(sums + token * kPanel + part * kLanes, totals[token][part]);
}

// The tokens [first, end), which are whole tiles; sums [end - first, kPanel].
template <typename Format>
inline void matmul_unpacked_tiles(const UnpackedPanel<Format>& panel, const Activations& activations, int64_t first,
                                  int64_t end, float* sums) {
  constexpr int kWidest = widest_tile(kUnpackTokens);
  while (first < end) {
    const int size = tile_size(end - first, kWidest);
    const auto multiply = [&]<int kTokens>() {
      if (size == kTokens) matmul_unpacked_tile<Format, kTokens>(panel, activations, first, sums);
    };
    if constexpr (kWidest > 4) multiply.template operator()<kWidest>();
    multiply.template operator()<4>();
    multiply.template operator()<2>();
    multiply.template operator()<1>();
    first += size;
    sums += size * kPanel;
  }
}

// As matmul_block.
template <typename Format>
inline void matmul_unpacked(const PackedArgs& args, const Activations& activations, int64_t first_panel,
                            int64_t end_panel, int64_t first_token, int64_t end_token) {
  const int64_t num_groups = args.matrix.columns / Format::kGroup;
  UnpackedPanel<Format> unpacked;
  alignas(64) float sums[kBlockTokens * kPanel];
  for (int64_t number = first_panel; number < end_panel; ++number) {
    const Panel<Format> panel(args.matrix, number);
    std::fill(std::begin(sums), std::end(sums), 0.0f);
    for (int64_t group = 0; group < num_groups; group += unpacked.kGroups) {
      unpacked.unpack(panel, group, std::min(num_groups, group + unpacked.kGroups));
      matmul_unpacked_tiles(unpacked, activations, first_token, end_token, sums);
    }
    for (int64_t token = first_token; token < end_token; ++token) {
      Vector totals[kParts];
      for (int part = 0; part < kParts; ++part)
        totals[part] = load(sums + (token - first_token) * kPanel + part * kLanes);
      store_panel(args, number, token, totals);
    }
  }
}
