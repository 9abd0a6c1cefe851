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

template <typename Format>
inline void unpack_row(const PackedRowsArgs& args, int64_t index) {
  const int64_t row = args.row_ids[index], columns = args.matrix.columns;
  const Panel<Format> panel(args.matrix, row / kPanel);
  panel.decode_row(args.output + index * columns, 1, row % kPanel, 0, columns, args.factor);
}

inline void unpack_rows(const PackedRowsArgs& args) {
  const int64_t step = rows_per_part(args.matrix.columns);
  with_format(args.matrix, [&](auto format) {
    pool().run((args.num_rows + step - 1) / step, [&](int64_t part) {
      for (int64_t index = part * step; index < std::min(args.num_rows, (part + 1) * step); ++index)
        unpack_row<decltype(format)>(args, index);
    });
  });
}
