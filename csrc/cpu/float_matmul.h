// Products with matrices of floats, of 32 bits or of 16 that are widened as they are read. Included inside the
// level's namespace.
//
// A panel is [columns, 16 rows], or of bfloat16 [pairs of columns, 16 rows, 2] (fathom/quant/float_weight.py), so a
// register holds one column of kLanes rows and each of a token's numbers is broadcast to all of them. One register per
// token and part of a panel sums from the first column to the last: that is the order of every element's sum, whatever
// else is computed, and cutting the columns into pieces, with the sums set down in the output in between, does not
// change it.
//
// Few tokens walk through the panels as they lie in memory, once. For many tokens a piece of a panel is widened
// first, into a buffer in the first cache, and multiplied with one tile of tokens after another.

constexpr int kFloatTile = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 2;  // tokens whose sums the registers hold
constexpr int kFloatPanels = kLanes == 16 ? 2 : 1;                  // panels beside each other, likewise
constexpr int64_t kPieceColumns = 256;
constexpr int64_t kFloatBlockTokens = 192;

// Columns that lie beside each other in each row of a panel.
template <typename Element>
constexpr int kBeside = std::is_same_v<Element, BFloat16> ? 2 : 1;

// Columns as they are stored: the last of an odd number has one of zeros beside it.
template <typename Element>
constexpr int64_t stored_columns(int64_t columns) {
  return (columns + kBeside<Element> - 1) / kBeside<Element> * kBeside<Element>;
}

// Of the columns that lie beside each other at `from`, for kLanes rows, one.
template <int kColumn, typename Element>
inline Vector load_column(const Element* from) {
  return load(from);
}
template <int kColumn>
inline Vector load_column(const BFloat16* from) {
  UnsignedVector both;
  __builtin_memcpy(&both, from, sizeof both);
  return (Vector)(kColumn == 0 ? both << 16 : both >> 16 << 16);
}

// Where a product goes: the output's rows of some tokens.
struct FloatOutput {
  float* values;        // of the first token
  int64_t stride;       // from token to token
  const float* bias;    // null: none
  int64_t rows;         // of the matrix
  bool begins, ends;    // whether the columns at hand are the first, and the last
};

// Adds to the totals the products of the columns beside each other at `panels` and of kTokens tokens, `input_stride`
// apart.
template <int kPanels, int kTokens, typename Element>
[[gnu::always_inline]] inline void add_step(Vector (&totals)[kTokens][kPanels * kParts], const Element* panels,
                                            int64_t panel_stride, const float* input, int64_t input_stride) {
  constexpr int kWide = kPanels * kParts;
  const auto add_column = [&]<int kColumn>() __attribute__((always_inline)) {
    Vector weights[kWide];
#pragma GCC unroll 8
    for (int part = 0; part < kWide; ++part)
      weights[part] = load_column<kColumn>(panels + part / kParts * panel_stride +
                                           part % kParts * kLanes * kBeside<Element>);
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      const Vector number = broadcast(input[token * input_stride + kColumn]);
#pragma GCC unroll 8
      for (int part = 0; part < kWide; ++part)
        totals[token][part] = multiply_add(weights[part], number, totals[token][part]);
    }
  };
  add_column.template operator()<0>();
  if constexpr (kBeside<Element> == 2) add_column.template operator()<1>();
}

// Adds to sums [kTokens, kPanels * 16 rows] the products of kPanels panels, `panel_stride` elements apart, and kTokens
// tokens, `input_stride` apart, in `steps` steps: of a pair of columns where they lie in pairs, else of one.
// kFromMemory: the panels are in no cache yet. A function of its own, or the compiler would keep some of the sums in
// memory.
template <bool kFromMemory, int kPanels, int kTokens, typename Element, typename Input>
[[gnu::noinline]] void accumulate(float* sums, const Element* panels, int64_t panel_stride, const Input* input,
                                  int64_t input_stride, int64_t steps) {
  constexpr int kWide = kPanels * kParts;
  constexpr int64_t kAhead = 4096 / sizeof(Element), kStepSize = kPanel * kBeside<Element>;
  Vector totals[kTokens][kWide];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 8
    for (int part = 0; part < kWide; ++part) totals[token][part] = load(sums + (token * kWide + part) * kLanes);
  for (int64_t step = 0; step < steps; ++step) {
    if constexpr (kFromMemory) {
      const Element* ahead = panels + kAhead;
      if (step + kAhead / kStepSize >= steps) ahead += (kPanels - 1) * panel_stride;  // the next panels'
#pragma GCC unroll 2
      for (int panel = 0; panel < kPanels; ++panel) __builtin_prefetch(ahead + panel * panel_stride);
    }
    add_step<kPanels, kTokens>(totals, panels, panel_stride, input, input_stride);
    panels += kStepSize;
    input += std::is_same_v<Input, float> ? kBeside<Element> : 1;
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
#pragma GCC unroll 8
    for (int part = 0; part < kWide; ++part) store(sums + (token * kWide + part) * kLanes, totals[token][part]);
}

// One tile: as above, from and to the output.
template <bool kFromMemory, int kPanels, int kTokens, typename Element, typename Input>
inline void float_tile(const Element* panels, int64_t panel_stride, const Input* input, int64_t input_stride,
                       int64_t steps, const FloatOutput& output, int64_t first_row) {
  constexpr int kRows = kPanels * kPanel;
  const int64_t num_rows = std::min<int64_t>(kRows, output.rows - first_row);
  float sums[kTokens * kRows] = {};
  for (int token = 0; token < kTokens && !output.begins; ++token)
    std::copy_n(output.values + token * output.stride + first_row, num_rows, sums + token * kRows);
  accumulate<kFromMemory, kPanels, kTokens>(sums, panels, panel_stride, input, input_stride, steps);
  for (int token = 0; token < kTokens; ++token) {
    float* to = output.values + token * output.stride + first_row;
    const bool biased = output.ends && output.bias != nullptr;
    for (int64_t row = 0; row < num_rows; ++row)
      to[row] = biased ? sums[token * kRows + row] + output.bias[first_row + row] : sums[token * kRows + row];
  }
}

// The same for a number of tokens that is known at run time: 1 to kTokens.
template <bool kFromMemory, int kPanels, int kTokens, typename Element, typename Input>
inline void float_tile_of(int tokens, const Element* panels, int64_t panel_stride, const Input* input,
                          int64_t input_stride, int64_t steps, const FloatOutput& output, int64_t first_row) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens)
      return float_tile_of<kFromMemory, kPanels, kTokens - 1>(tokens, panels, panel_stride, input, input_stride, steps,
                                                              output, first_row);
  }
  float_tile<kFromMemory, kPanels, kTokens>(panels, panel_stride, input, input_stride, steps, output, first_row);
}

// One panel or kFloatPanels of them by any number of tokens, in tiles of about the same size, at most kTile.
template <bool kFromMemory, int kTile, typename Element, typename Input>
inline void float_tiles(int panels_beside, const Element* panels, int64_t panel_stride, const Input* input,
                        int64_t input_stride, int64_t steps, FloatOutput output, int64_t num_tokens,
                        int64_t first_row) {
  const int64_t num_tiles = (num_tokens + kTile - 1) / kTile;
  float* const values = output.values;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = num_tokens * tile / num_tiles, end = num_tokens * (tile + 1) / num_tiles;
    output.values = values + first * output.stride;
    const Input* tokens = input + first * input_stride;
    const int size = static_cast<int>(end - first);
    if (panels_beside == kFloatPanels)
      float_tile_of<kFromMemory, kFloatPanels, kTile>(size, panels, panel_stride, tokens, input_stride, steps, output,
                                                      first_row);
    else
      float_tile_of<kFromMemory, 1, kTile>(size, panels, panel_stride, tokens, input_stride, steps, output, first_row);
  }
}

// A matrix stored as floats of the type Element.
template <typename Element>
struct FloatMatrix {
  const Element* values;
  int64_t columns;

  int64_t panel_size() const { return stored_columns<Element>(columns) * kPanel; }

  const Element* panel(int64_t number) const { return values + number * panel_size(); }

  // Whether tiles can read it as it lies: an input has no number for a last column of zeros.
  bool is_direct() const { return columns % kBeside<Element> == 0; }

  // Columns [first, end) of a panel, widened, to [columns, 16 rows]; with the one beside the last. first is even.
  void decode(float* to, int64_t number, int64_t first, int64_t end) const {
    const Element* from = panel(number) + first * kPanel;
    for (int64_t column = first; column < end; column += kBeside<Element>) {
      for (int part = 0; part < kParts; ++part) {
        store(to + part * kLanes, load_column<0>(from));
        if constexpr (kBeside<Element> == 2) store(to + kPanel + part * kLanes, load_column<1>(from));
        from += kLanes * kBeside<Element>;
      }
      to += kPanel * kBeside<Element>;
    }
  }
};

// A matrix of integers with scales, decoded to floats: for results free of the rounding of activations.
template <typename Format>
struct DecodedMatrix {
  const PackedMatrix& matrix;

  void decode(float* to, int64_t number, int64_t first, int64_t end) const {
    const Panel<Format> panel(matrix, number);
    for (int row = 0; row < kPanel; ++row) panel.decode_row(to + row, kPanel, row, first, end, 1.0f);
  }
};

// Calls each(panel, how many beside each other) for the panels [first, end) in order.
template <typename Each>
inline void for_panels(int64_t first, int64_t end, const Each& each) {
  for (int64_t panel = first; panel < end;) {
    const int beside = end - panel >= kFloatPanels ? kFloatPanels : 1;
    each(panel, beside);
    panel += beside;
  }
}

// Panels [first_panel, end_panel) by tokens that input and output begin with.
template <typename Element>
inline void float_block_direct(const FloatMatrix<Element>& matrix, int64_t first_panel, int64_t end_panel,
                               const float* input, int64_t num_tokens, FloatOutput output) {
  output.begins = output.ends = true;
  for_panels(first_panel, end_panel, [&](int64_t panel, int beside) {
    float_tiles<true, kFloatTile>(beside, matrix.panel(panel), matrix.panel_size(), input, matrix.columns,
                                  matrix.columns / kBeside<Element>, output, num_tokens, panel * kPanel);
  });
}

// The same, with pieces of the panels widened first.
template <typename Matrix>
inline void float_block_decoded(const Matrix& matrix, int64_t first_panel, int64_t end_panel, const float* input,
                                int64_t num_tokens, int64_t columns, FloatOutput output) {
  alignas(64) float piece[kFloatPanels * kPieceColumns * kPanel];
  for (int64_t first = 0; first < columns; first += kPieceColumns) {
    const int64_t end = std::min(columns, first + kPieceColumns);
    output.begins = first == 0;
    output.ends = end == columns;
    for_panels(first_panel, end_panel, [&](int64_t panel, int beside) {
      for (int index = 0; index < beside; ++index)
        matrix.decode(piece + index * kPieceColumns * kPanel, panel + index, first, end);
      float_tiles<false, kFloatTile>(beside, piece, kPieceColumns * kPanel, input + first, columns, end - first, output,
                                     num_tokens, panel * kPanel);
    });
  }
}

// Cuts a product with a matrix [rows, columns] into panels and blocks of tokens, and has
// block(first panel, end panel, first token, number of tokens, where their output goes) do each. Args: FloatArgs or
// PackedArgs, of which only what both have is read.
template <typename Args, typename Block>
inline void float_product(const Args& args, int64_t rows, int64_t columns, const Block& block) {
  const int64_t num_panels = (rows + kPanel - 1) / kPanel;
  const int64_t num_blocks = (args.num_tokens + kFloatBlockTokens - 1) / kFloatBlockTokens;
  const int64_t runs = num_runs(num_panels, num_blocks, columns, std::min(args.num_tokens, kFloatBlockTokens));
  pool().run(runs * num_blocks, [&](int64_t part) {
    const int64_t run = part % runs, first = part / runs * kFloatBlockTokens;
    block(num_panels * run / runs, num_panels * (run + 1) / runs, first,
          std::min(args.num_tokens - first, kFloatBlockTokens),
          FloatOutput{args.output + first * args.output_stride, args.output_stride, args.bias, rows, true, true});
  });
}

template <typename Element>
inline void float_matmul_of(const FloatArgs& args) {
  const FloatMatrix<Element> matrix{static_cast<const Element*>(args.values), args.columns};
  float_product(args, args.rows, args.columns,
                [&](int64_t first_panel, int64_t end_panel, int64_t first, int64_t count, const FloatOutput& output) {
                  const float* input = args.input + first * args.columns;
                  if (count <= 2 * kFloatTile && matrix.is_direct())
                    float_block_direct(matrix, first_panel, end_panel, input, count, output);
                  else
                    float_block_decoded(matrix, first_panel, end_panel, input, count, args.columns, output);
                });
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
  const FloatMatrix<Element> matrix{static_cast<const Element*>(args.values), args.columns};
  const int64_t step = rows_per_part(args.columns);
  pool().run((args.num_rows + step - 1) / step, [&](int64_t part) {
    for (int64_t index = part * step; index < std::min(args.num_rows, (part + 1) * step); ++index) {
      const int64_t row = args.row_ids[index];
      const Element* from = matrix.panel(row / kPanel) + row % kPanel * kBeside<Element>;
      float* to = args.output + index * args.columns;
      for (int64_t column = 0; column < args.columns; column += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, args.columns - column);
        Element some[kLanes] = {};
        for (int64_t lane = 0; lane < count; ++lane) {
          const int64_t place = column + lane, beside = place % kBeside<Element>;
          some[lane] = from[(place - beside) * kPanel + beside];
        }
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
  const int64_t columns = args.matrix.columns;
  with_format(args.matrix, [&](auto format) {
    const DecodedMatrix<decltype(format)> matrix{args.matrix};
    float_product(args, args.matrix.rows, columns,
                  [&](int64_t first_panel, int64_t end_panel, int64_t first, int64_t count, const FloatOutput& output) {
                    float_block_decoded(matrix, first_panel, end_panel, args.input + first * columns, count, columns,
                                        output);
                  });
  });
}
