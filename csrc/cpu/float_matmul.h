// Products with matrices of floats, of 32 bits or of 16 that are widened as they are read. Included inside the
// level's namespace.
//
// A panel is [columns, 16 rows] (fathom/quant/float_weight.py), so a register holds one column of kLanes rows and
// each of a token's numbers is broadcast to all of them. One register per token and part of a panel sums from the
// first column to the last: that is the order of every element's sum, whatever else is computed, and cutting the
// columns into pieces, with the sums set down in the output in between, does not change it.
//
// Few tokens walk through the panels as they lie in memory, once. For many tokens a piece of a panel is widened
// first, into a buffer in the first cache, and multiplied with one tile of tokens after another.

constexpr int kFloatTile = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 2;  // tokens whose sums the registers hold
constexpr int kFloatPanels = kLanes == 16 ? 2 : 1;                  // panels beside each other, likewise
constexpr int64_t kPieceColumns = 256;
constexpr int64_t kFloatBlockTokens = 96;

// Where a product goes: the output's rows of some tokens.
struct FloatOutput {
  float* values;        // of the first token
  int64_t stride;       // from token to token
  const float* bias;    // null: none
  int64_t rows;         // of the matrix
  bool begins, ends;    // whether the columns at hand are the first, and the last
};

// Adds to sums [kTokens, kPanels * 16 rows] the products of kPanels panels, `panel_stride` elements apart, and kTokens
// tokens, `input_stride` apart, over `columns` columns. kFromMemory: the panels are in no cache yet. A function of its
// own, or the compiler would keep some of the sums in memory.
template <bool kFromMemory, typename Element, int kPanels, int kTokens>
[[gnu::noinline]] void accumulate(float* sums, const Element* panels, int64_t panel_stride, const float* input,
                                    int64_t input_stride, int64_t columns) {
  constexpr int kWide = kPanels * kParts;
  constexpr int kAhead = 2048 / sizeof(Element);
  Vector totals[kTokens][kWide];
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 8
    for (int part = 0; part < kWide; ++part) totals[token][part] = load(sums + (token * kWide + part) * kLanes);
  for (int64_t column = 0; column < columns; ++column) {
    Vector weights[kWide];
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const Element* at = panels + panel * panel_stride + column * kPanel;
      if constexpr (kFromMemory) __builtin_prefetch(at + kAhead);
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) weights[panel * kParts + part] = load(at + part * kLanes);
    }
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      const Vector number = broadcast(input[token * input_stride + column]);
#pragma GCC unroll 8
      for (int part = 0; part < kWide; ++part)
        totals[token][part] = multiply_add(weights[part], number, totals[token][part]);
    }
  }
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 8
    for (int part = 0; part < kWide; ++part) store(sums + (token * kWide + part) * kLanes, totals[token][part]);
}

// One tile: as above, from and to the output.
template <bool kFromMemory, typename Element, int kPanels, int kTokens>
inline void float_tile(const Element* panels, int64_t panel_stride, const float* input, int64_t input_stride,
                       int64_t columns, const FloatOutput& output, int64_t first_row) {
  constexpr int kRows = kPanels * kPanel;
  const int64_t num_rows = std::min<int64_t>(kRows, output.rows - first_row);
  float sums[kTokens * kRows] = {};
  for (int token = 0; token < kTokens && !output.begins; ++token)
    std::copy_n(output.values + token * output.stride + first_row, num_rows, sums + token * kRows);
  accumulate<kFromMemory, Element, kPanels, kTokens>(sums, panels, panel_stride, input, input_stride, columns);
  for (int token = 0; token < kTokens; ++token) {
    float* to = output.values + token * output.stride + first_row;
    const bool biased = output.ends && output.bias != nullptr;
    for (int64_t row = 0; row < num_rows; ++row)
      to[row] = biased ? sums[token * kRows + row] + output.bias[first_row + row] : sums[token * kRows + row];
  }
}

// The same for a number of tokens that is known at run time: 1 to kTokens.
template <bool kFromMemory, typename Element, int kPanels, int kTokens = kFloatTile>
inline void float_tile_of(int tokens, const Element* panels, int64_t panel_stride, const float* input,
                          int64_t input_stride, int64_t columns, const FloatOutput& output, int64_t first_row) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens)
      return float_tile_of<kFromMemory, Element, kPanels, kTokens - 1>(tokens, panels, panel_stride, input, input_stride,
                                                                       columns, output, first_row);
  }
  float_tile<kFromMemory, Element, kPanels, kTokens>(panels, panel_stride, input, input_stride, columns, output,
                                                     first_row);
}

// One panel or kFloatPanels of them by any number of tokens, in tiles of about the same size.
template <bool kFromMemory, typename Element>
inline void float_tiles(int panels_beside, const Element* panels, int64_t panel_stride, const float* input,
                        int64_t input_stride, int64_t columns, FloatOutput output, int64_t num_tokens,
                        int64_t first_row) {
  const int64_t num_tiles = (num_tokens + kFloatTile - 1) / kFloatTile;
  float* const values = output.values;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = num_tokens * tile / num_tiles, end = num_tokens * (tile + 1) / num_tiles;
    output.values = values + first * output.stride;
    const float* tokens = input + first * input_stride;
    const int size = static_cast<int>(end - first);
    if (panels_beside == kFloatPanels)
      float_tile_of<kFromMemory, Element, kFloatPanels>(size, panels, panel_stride, tokens, input_stride, columns,
                                                        output, first_row);
    else
      float_tile_of<kFromMemory, Element, 1>(size, panels, panel_stride, tokens, input_stride, columns, output,
                                             first_row);
  }
}

// A matrix stored as floats of the type Element.
template <typename Element>
struct FloatMatrix {
  const Element* values;
  int64_t columns;

  static constexpr bool kDirect = true;  // whether tiles can read it as it lies

  const Element* panel(int64_t number) const { return values + number * columns * kPanel; }

  // Columns [first, end) of a panel, widened, to [columns, 16 rows].
  void decode(float* to, int64_t number, int64_t first, int64_t end) const {
    const Element* from = panel(number) + first * kPanel;
    for (int64_t index = 0; index < (end - first) * kPanel; index += kLanes) store(to + index, load(from + index));
  }
};

// A matrix of integers with scales, decoded to floats: for results free of the rounding of activations.
template <typename Format>
struct DecodedMatrix {
  const PackedMatrix& matrix;

  static constexpr bool kDirect = false;

  void decode(float* to, int64_t number, int64_t first, int64_t end) const {
    const Panel<Format> panel(matrix, number);
    for (int row = 0; row < kPanel; ++row) panel.decode_row(to + row, kPanel, row, first, end, 1.0f);
  }
};

// Panels [first_panel, end_panel) by tokens that input and output begin with.
template <typename Matrix>
inline void float_block(const Matrix& matrix, int64_t first_panel, int64_t end_panel, const float* input,
                        int64_t num_tokens, int64_t columns, FloatOutput output) {
  if constexpr (Matrix::kDirect) {
    if (num_tokens <= 2 * kFloatTile) {
      output.begins = output.ends = true;
      for (int64_t panel = first_panel; panel < end_panel;) {
        const int beside = end_panel - panel >= kFloatPanels ? kFloatPanels : 1;
        float_tiles<true>(beside, matrix.panel(panel), columns * kPanel, input, columns, columns, output, num_tokens,
                    panel * kPanel);
        panel += beside;
      }
      return;
    }
  }
  alignas(64) float piece[kFloatPanels * kPieceColumns * kPanel];
  for (int64_t first = 0; first < columns; first += kPieceColumns) {
    const int64_t end = std::min(columns, first + kPieceColumns);
    output.begins = first == 0;
    output.ends = end == columns;
    for (int64_t panel = first_panel; panel < end_panel;) {
      const int beside = end_panel - panel >= kFloatPanels ? kFloatPanels : 1;
      for (int index = 0; index < beside; ++index)
        matrix.decode(piece + index * kPieceColumns * kPanel, panel + index, first, end);
      float_tiles<false>(beside, piece, kPieceColumns * kPanel, input + first, columns, end - first, output, num_tokens,
                         panel * kPanel);
      panel += beside;
    }
  }
}

// Args: FloatArgs or PackedArgs, of which only what both have is read. The matrix has `rows` and `columns`.
template <typename Matrix, typename Args>
inline void float_product(const Matrix& matrix, const Args& args, int64_t rows, int64_t columns) {
  const int64_t num_panels = (rows + kPanel - 1) / kPanel;
  const int64_t num_blocks = (args.num_tokens + kFloatBlockTokens - 1) / kFloatBlockTokens;
  const int64_t runs = num_runs(num_panels, num_blocks, columns, std::min(args.num_tokens, kFloatBlockTokens));
  pool().run(runs * num_blocks, [&](int64_t part) {
    const int64_t run = part % runs, first = part / runs * kFloatBlockTokens;
    float_block(matrix, num_panels * run / runs, num_panels * (run + 1) / runs, args.input + first * columns,
                std::min(args.num_tokens - first, kFloatBlockTokens), columns,
                {args.output + first * args.output_stride, args.output_stride, args.bias, rows, true, true});
  });
}

template <typename Element>
inline void float_matmul_of(const FloatArgs& args) {
  float_product(FloatMatrix<Element>{static_cast<const Element*>(args.values), args.columns}, args, args.rows,
                args.columns);
}

inline void float_matmul(const FloatArgs& args) {
  if (args.num_tokens == 0) return;
  switch (args.type) {
    case FloatType::kFloat32:
      return float_matmul_of<float>(args);
    case FloatType::kFloat16:
      return float_matmul_of<Half>(args);
    case FloatType::kBFloat16:
      return float_matmul_of<BFloat16>(args);
  }
}

// Row row_ids[index] of the matrix for each index.
template <typename Element>
inline void gather_float_rows(const FloatRowsArgs& args) {
  const int64_t step = rows_per_part(args.columns);
  pool().run((args.num_rows + step - 1) / step, [&](int64_t part) {
    for (int64_t index = part * step; index < std::min(args.num_rows, (part + 1) * step); ++index) {
      const int64_t row = args.row_ids[index];
      const Element* from = static_cast<const Element*>(args.values) + row / kPanel * kPanel * args.columns + row % kPanel;
      float* to = args.output + index * args.columns;
      for (int64_t column = 0; column < args.columns; column += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, args.columns - column);
        Element some[kLanes] = {};
        for (int64_t lane = 0; lane < count; ++lane) some[lane] = from[(column + lane) * kPanel];
        store_first(to + column, load(some) * args.factor, count);
      }
    }
  });
}

inline void float_rows(const FloatRowsArgs& args) {
  switch (args.type) {
    case FloatType::kFloat32:
      return gather_float_rows<float>(args);
    case FloatType::kFloat16:
      return gather_float_rows<Half>(args);
    case FloatType::kBFloat16:
      return gather_float_rows<BFloat16>(args);
  }
}

inline void decoded_matmul(const PackedArgs& args) {
  if (args.num_tokens == 0) return;
  with_format(args.matrix, [&](auto format) {
    float_product(DecodedMatrix<decltype(format)>{args.matrix}, args, args.matrix.rows, args.matrix.columns);
  });
}
