// Rows of a matrix by their numbers, times a factor. Included inside the level's namespace, by kernels.cpp.

inline void gather_rows(float* output, const float* table, const int64_t* row_ids, int64_t num_rows, int64_t columns,
                        float factor) {
  const int64_t step = rows_per_part(columns);
  pool().run((num_rows + step - 1) / step, [&](int64_t part) {
    for (int64_t index = part * step; index < std::min(num_rows, (part + 1) * step); ++index) {
      const float* row = table + row_ids[index] * columns;
      for (int64_t column = 0; column < columns; ++column) output[index * columns + column] = row[column] * factor;
    }
  });
}

// The code of one column of a panel's row; fathom/quant/packed.py has the layout. Args: a packed weight's.
template <typename Args>
inline int code_at(const Args& args, int64_t panel, int64_t lane, int64_t column) {
  if (args.bits == 8) return args.quants[panel * kPanel * args.columns + column / 4 * kPanel * 4 + lane * 4 + column % 4];
  const int64_t step = panel * kPanel * args.columns / 2 + column / 8 * kPanel * 4;
  const int byte = args.quants[step + lane * 4 + column % 4];
  return column % 8 < 4 ? byte & 15 : byte >> 4;
}

inline void unpack_row(const PackedRowsArgs& args, float* output, int64_t row) {
  const int64_t panel = row / kPanel, lane = row % kPanel, num_groups = args.columns / args.group;
  const int shift = args.minimums == nullptr ? 128 : 0;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t factors = (panel * num_groups + group) * kPanel + lane;
    const float minimum = args.minimums == nullptr ? 0.0f : args.minimums[factors];
    for (int64_t column = group * args.group; column < (group + 1) * args.group; ++column) {
      const auto integer = static_cast<float>(code_at(args, panel, lane, column) - shift);
      output[column] = (integer * args.scales[factors] + minimum) * args.factor;
    }
  }
}

inline void unpack_rows(const PackedRowsArgs& args) {
  const int64_t step = rows_per_part(args.columns);
  pool().run((args.num_rows + step - 1) / step, [&](int64_t part) {
    for (int64_t index = part * step; index < std::min(args.num_rows, (part + 1) * step); ++index)
      unpack_row(args, args.output + index * args.columns, args.row_ids[index]);
  });
}
