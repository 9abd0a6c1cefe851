// Products of some query rows with a tile of keys, and of their weights with a tile of values. Included inside the
// level's namespace, by kernels.cpp.
//
// Every number is one chain of operations in the order of dimensions or of positions, so it does not matter how
// many rows or columns are computed side by side, nor how many masked keys, whose weight is exactly 0, are beside it.
// Rows and columns are of factors (attention_factors.h): depth counts them.

constexpr int64_t kLine = 64;  // bytes that are fetched at once
constexpr int64_t kTile = 64;  // keys of a tile, which starts at a multiple of kTile
constexpr int kTileVectors = kTile / kLanes;
constexpr int kFewRows = 8;    // at most these rows are multiplied at once,
constexpr int kManyRows = 6;   // or of many, these: twice as many columns beside them fit into the registers
constexpr int64_t kStretch = 16;  // numbers of a column that are multiplied before more is fetched

// Vectors of a row that are computed at once: as many as there are registers for.
constexpr int vectors_at_once(int rows) {
  const int registers = kLanes == 16 ? 24 : 12;
  int vectors = 8;
  while (vectors > 1 && vectors * rows > registers) vectors /= 2;
  return vectors;
}

// A matrix of rows, `stride` numbers apart.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
  T* row(int64_t index) const { return data + index * stride; }
};

// Columns of a product: load_at(k, v) is vector v of row k. A product of keys starts from 0, one of values from what is
// there. Before kRowsFetched rows of kVectors vectors are read, fetch_ahead has as many bytes fetched that come later.

// A tile's keys or values of one KV head, copied together.
template <typename Factor, bool kStartsFrom0>
struct PackedColumns {
  static constexpr bool kFrom0 = kStartsFrom0;
  static constexpr int64_t kVectorBytes = 0;
  static constexpr int64_t kRowsFetched = kStretch;
  const Factor* data;
  int64_t stride;
  auto load_at(int64_t k, int64_t v) const { return load(data + k * stride + v * kLanes); }
  void fetch_ahead(int64_t) const {}
};

// A tile's keys of one KV head, where they lie: a row for each dimension, a column for each key.
template <typename Number, typename Ahead>
struct KeyColumns {
  using Numbers = Factors<Number>;
  static constexpr bool kFrom0 = true;
  static constexpr int64_t kVectorBytes = Numbers::kTogether * kLanes * sizeof(Number);
  static constexpr int64_t kRowsFetched = kStretch / Numbers::kTogether;
  const Number* const* vectors;
  int64_t stride;
  Ahead* ahead;  // null: it has fetched something for these keys before
  auto load_at(int64_t k, int64_t v) const {
    const Number* first = vectors[v] + k * Numbers::kTogether * stride;
    return Numbers::join(first, first + stride);
  }
  void fetch_ahead(int64_t bytes) const {
    if (ahead != nullptr) ahead->fetch(bytes);
  }
};

// A tile's values of one KV head, where they lie: a row for each key, a column for each dimension.
template <typename Number, typename Ahead>
struct ValueColumns {
  using Numbers = Factors<Number>;
  static constexpr bool kFrom0 = false;
  static constexpr int64_t kVectorBytes = Numbers::kTogether * kLanes * sizeof(Number);
  static constexpr int64_t kRowsFetched = kStretch / Numbers::kTogether;
  const Number* const* rows;
  Ahead* ahead;
  auto load_at(int64_t k, int64_t v) const {
    const Number* const* joined = rows + k * Numbers::kTogether;
    return Numbers::join(joined[0] + v * kLanes, joined[Numbers::kTogether - 1] + v * kLanes);
  }
  void fetch_ahead(int64_t bytes) const {
    if (ahead != nullptr) ahead->fetch(bytes);
  }
};

template <int kRows, int kVectors, typename Factor, typename Columns>
inline void multiply_block(Matrix<float> c, Matrix<const Factor> a, const Columns& b, int64_t first_vector,
                           int64_t depth) {
  using Sum = SumOf<Factor>;
  Sum sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = Columns::kFrom0 ? Sum{} : load_sums<Sum>(c.row(row) + (first_vector + v) * kLanes);
  int64_t k = 0;
  do {  // at least once, and so below: else the compiler keeps a copy of the sums in memory
    const int64_t end = std::min(depth, k + Columns::kRowsFetched);
    b.fetch_ahead((end - k) * kVectors * Columns::kVectorBytes);
    do {
      decltype(b.load_at(0, 0)) columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) columns[v] = b.load_at(k, first_vector + v);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const auto factor = broadcast(a.row(row)[k]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row][v] = add_product(sums[row][v], factor, columns[v]);
      }
    } while (++k < end);
  } while (k < depth);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store_sums(c.row(row) + (first_vector + v) * kLanes, sums[row][v]);
}

template <int kRows, int kVectors = vectors_at_once(kRows), typename Factor, typename Columns>
inline void multiply_rows(Matrix<float> c, Matrix<const Factor> a, const Columns& b, int64_t depth,
                          int64_t first_vector, int64_t num_vectors) {
  for (; first_vector + kVectors <= num_vectors; first_vector += kVectors)
    multiply_block<kRows, kVectors>(c, a, b, first_vector, depth);
  if constexpr (kVectors > 1)
    if (first_vector < num_vectors) multiply_rows<kRows, kVectors / 2>(c, a, b, depth, first_vector, num_vectors);
}

// c[rows][...] = or += a[rows][depth] * b[depth][...] for columns of the vectors first_vector ... num_vectors - 1, and
// at most kFewRows rows.
template <typename Factor, typename Columns>
inline void multiply(int64_t rows, Matrix<float> c, Matrix<const Factor> a, const Columns& b, int64_t depth,
                     int64_t first_vector, int64_t num_vectors) {
  switch (rows) {
    case 1: return multiply_rows<1>(c, a, b, depth, first_vector, num_vectors);
    case 2: return multiply_rows<2>(c, a, b, depth, first_vector, num_vectors);
    case 3: return multiply_rows<3>(c, a, b, depth, first_vector, num_vectors);
    case 4: return multiply_rows<4>(c, a, b, depth, first_vector, num_vectors);
    case 5: return multiply_rows<5>(c, a, b, depth, first_vector, num_vectors);
    case 6: return multiply_rows<6>(c, a, b, depth, first_vector, num_vectors);
    case 7: return multiply_rows<7>(c, a, b, depth, first_vector, num_vectors);
    case 8: return multiply_rows<8>(c, a, b, depth, first_vector, num_vectors);
  }
}
