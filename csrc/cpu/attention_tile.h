// One tile of keys and values, and what it adds to the attention of some query rows. Included inside the level's
// namespace, by kernels.cpp.
//
// Every number is one chain of operations in the order of dimensions or of positions, so it does not matter how
// many rows or columns are computed side by side, nor how many masked keys, whose weight is exactly 0, are beside it.

constexpr int64_t kTile = 64;  // keys of a tile, which starts at a multiple of kTile
constexpr int kTileVectors = kTile / kLanes;
constexpr int kMaxRows = 6;  // rows of a product at once

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

// Columns of a product: load_at(k, v) is vector v of row k. fetch_ahead(k, v) has the processor fetch what lies there in
// the tile that comes next, so that memory is read while products are computed.

constexpr int64_t kLine = 64;

template <typename Number>
inline bool starts_line(int64_t index) {
  return index * sizeof(Number) % kLine == 0;
}

// A tile's keys of one KV head: a row for each dimension, a column for each key.
template <typename Number>
struct KeyColumns {
  const Number* const* vectors;
  const Number* const* next_vectors;
  int64_t stride;
  Vector load_at(int64_t k, int64_t v) const { return load(vectors[v] + k * stride); }
  void fetch_ahead(int64_t k, int64_t first, int count) const {
    if (starts_line<Number>(k * stride))
      for (int v = 0; v < count; ++v) __builtin_prefetch(next_vectors[first + v] + k * stride);
  }
};

// A tile's values of one KV head: a row for each key, a column for each dimension.
template <typename Number>
struct ValueColumns {
  const Number* const* rows;
  const Number* const* next_rows;
  Vector load_at(int64_t k, int64_t v) const { return load(rows[k] + v * kLanes); }
  void fetch_ahead(int64_t k, int64_t first, int count) const {
#pragma GCC unroll 8
    for (int v = 0; v < count; ++v)
      if (starts_line<Number>(v * kLanes)) __builtin_prefetch(next_rows[k] + (first + v) * kLanes);
  }
};

template <int kRows, int kVectors, typename Columns>
inline void multiply_block(Matrix<float> c, Matrix<const float> a, const Columns& b, int64_t first_vector,
                           int64_t depth) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(c.row(row) + (first_vector + v) * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = b.load_at(k, first_vector + v);
    b.fetch_ahead(k, first_vector, kVectors);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Vector factor = broadcast(a.row(row)[k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c.row(row) + (first_vector + v) * kLanes, sums[row][v]);
}

template <int kRows, int kVectors = vectors_at_once(kRows), typename Columns>
inline void multiply_rows(Matrix<float> c, Matrix<const float> a, const Columns& b, int64_t depth,
                          int64_t first_vector, int64_t num_vectors) {
  for (; first_vector + kVectors <= num_vectors; first_vector += kVectors)
    multiply_block<kRows, kVectors>(c, a, b, first_vector, depth);
  if constexpr (kVectors > 1)
    if (first_vector < num_vectors) multiply_rows<kRows, kVectors / 2>(c, a, b, depth, first_vector, num_vectors);
}

// c[rows][...] += a[rows][depth] * b[depth][...] for columns of the vectors first_vector ... num_vectors - 1, and at
// most kMaxRows rows.
template <typename Columns>
inline void multiply(int64_t rows, Matrix<float> c, Matrix<const float> a, const Columns& b, int64_t depth,
                     int64_t first_vector, int64_t num_vectors) {
  switch (rows) {
    case 1: return multiply_rows<1>(c, a, b, depth, first_vector, num_vectors);
    case 2: return multiply_rows<2>(c, a, b, depth, first_vector, num_vectors);
    case 3: return multiply_rows<3>(c, a, b, depth, first_vector, num_vectors);
    case 4: return multiply_rows<4>(c, a, b, depth, first_vector, num_vectors);
    case 5: return multiply_rows<5>(c, a, b, depth, first_vector, num_vectors);
    case 6: return multiply_rows<6>(c, a, b, depth, first_vector, num_vectors);
  }
}

// One KV head of a tile. Numbers of 8 bits have a scale for each key and one for each value.
template <typename Number, bool kIsScaled>
struct Tile {
  const Number* key_vectors[kTileVectors];  // where the first dimension of each vector of keys is
  int64_t key_stride;                       // from a dimension to the next
  const Number* values[kTile];              // where the first dimension of each value is
  const float* key_scales[kIsScaled ? kTileVectors : 1];  // where those of each vector of keys are
  const float* value_scales[kIsScaled ? kTileVectors : 1];
};

// Reads `count` numbers as one vector whose other lanes may be anything.
template <typename Stored>
inline Vector load_some(const Stored* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Stored lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return load(lanes);
}

// The attention of a query row so far, an online softmax: the sum of weight * value, [padded_dim], then the sum of
// the weights, one sum a lane, then the largest score, in every lane. A weight is e^(score - largest score).
struct State {
  float* values;
  int64_t padded_dim;

  static int64_t size(int64_t padded_dim) { return padded_dim + 2 * kLanes; }
  float* weight_sums() const { return values + padded_dim; }
  float* largest() const { return values + padded_dim + kLanes; }

  void clear() const {
    std::fill(values, values + padded_dim + kLanes, 0.0f);
    store(largest(), broadcast(-std::numeric_limits<float>::infinity()));
  }

  bool is_empty() const { return *largest() == -std::numeric_limits<float>::infinity(); }

  void scale(Vector factor) const {
    for (int64_t d = 0; d < padded_dim + kLanes; d += kLanes) store(values + d, load(values + d) * factor);
  }

  // Takes in the attention to later keys.
  void merge(const State& later) const {
    if (later.is_empty()) return;
    const Vector new_largest = largest_of(load(largest()), load(later.largest()));
    const Vector factor = exp(load(largest()) - new_largest);
    const Vector later_factor = exp(load(later.largest()) - new_largest);
    for (int64_t d = 0; d < padded_dim + kLanes; d += kLanes)
      store(values + d, load(values + d) * factor + load(later.values + d) * later_factor);
    store(largest(), new_largest);
  }

  void finish(float* output, int64_t dim) const {
    const Vector factor = broadcast(1.0f / sum_lanes(load(weight_sums())));
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vector value = load(values + d) * factor;
      if (d + kLanes <= dim) store(output + d, value);
      else store_first(output + d, value, dim - d);
    }
  }
};

// Turns a row of products of query and key into weights, of which those outside [first, end) are 0, and brings `state`
// to the new scale. The weights come out multiplied by the values' scales.
template <typename Number, bool kIsScaled>
inline void weigh(float* scores, const Tile<Number, kIsScaled>& tile, int64_t num_vectors, int64_t first, int64_t end,
                  float softcap, const State& state) {
  const Vector nothing = broadcast(-std::numeric_limits<float>::infinity());
  const bool all_visible = first <= 0 && end >= num_vectors * kLanes;
  const IntVector lanes = lane_numbers(Lanes());
  Vector largest = nothing;
  for (int64_t v = 0; v < num_vectors; ++v) {
    Vector score = load(scores + v * kLanes);
    if constexpr (kIsScaled) score *= load(tile.key_scales[v]);
    if (softcap > 0) score = softcap * tanh(score / softcap);
    if (!all_visible) {
      const IntVector key = lanes + static_cast<int32_t>(v * kLanes);
      score = ((key >= static_cast<int32_t>(first)) & (key < static_cast<int32_t>(end))) ? score : nothing;
    }
    store(scores + v * kLanes, score);
    largest = largest_of(largest, score);
  }
  largest = largest_of(load(state.largest()), max_lanes(largest));
  if (largest[0] == nothing[0]) {
    std::fill(scores, scores + num_vectors * kLanes, 0.0f);
    return;
  }
  state.scale(exp(load(state.largest()) - largest));
  store(state.largest(), largest);
  Vector sums = load(state.weight_sums());
  for (int64_t v = 0; v < num_vectors; ++v) {
    const Vector weight = exp(load(scores + v * kLanes) - largest);
    sums += weight;
    if constexpr (kIsScaled) store(scores + v * kLanes, weight * load(tile.value_scales[v]));
    else store(scores + v * kLanes, weight);
  }
  store(state.weight_sums(), sums);
}
