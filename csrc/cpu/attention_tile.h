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

template <int kRows, int kVectors>
inline void multiply_block(Matrix<float> c, Matrix<const float> a, Matrix<const float> b, int64_t depth) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(c.row(row) + v * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load(b.row(k) + v * kLanes);
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
    for (int v = 0; v < kVectors; ++v) store(c.row(row) + v * kLanes, sums[row][v]);
}

template <int kRows, int kVectors = vectors_at_once(kRows)>
inline void multiply_rows(Matrix<float> c, Matrix<const float> a, Matrix<const float> b, int64_t depth,
                          int64_t num_vectors) {
  for (; num_vectors >= kVectors; num_vectors -= kVectors) {
    multiply_block<kRows, kVectors>(c, a, b, depth);
    c.data += kVectors * kLanes;
    b.data += kVectors * kLanes;
  }
  if constexpr (kVectors > 1)
    if (num_vectors > 0) multiply_rows<kRows, kVectors / 2>(c, a, b, depth, num_vectors);
}

// c[rows][num_vectors * kLanes] += a[rows][depth] * b[depth][...], for at most kMaxRows rows.
inline void multiply(int64_t rows, Matrix<float> c, Matrix<const float> a, Matrix<const float> b, int64_t depth,
                     int64_t num_vectors) {
  switch (rows) {
    case 1: return multiply_rows<1>(c, a, b, depth, num_vectors);
    case 2: return multiply_rows<2>(c, a, b, depth, num_vectors);
    case 3: return multiply_rows<3>(c, a, b, depth, num_vectors);
    case 4: return multiply_rows<4>(c, a, b, depth, num_vectors);
    case 5: return multiply_rows<5>(c, a, b, depth, num_vectors);
    case 6: return multiply_rows<6>(c, a, b, depth, num_vectors);
  }
}

// The keys of a tile, transposed to [dim][kTile], and its values, [kTile][dim], dim rounded up to whole vectors.
struct Tile {
  Matrix<float> keys, values;
};

// Where a tile's tokens lie in the caches: the first number of each, of which there are `size`.
struct TileRows {
  const float* keys[kTile];
  const float* values[kTile];
  int64_t count;

  // Reads one number of every cache line, in the order of addresses: the processor's prefetcher follows such a sweep
  // far better than the reads of one KV head at a time, and runs ahead of it at the memory's full speed.
  void sweep(int64_t size) const {
    constexpr int64_t kLine = 64 / sizeof(float);
    for (const auto& rows : {keys, values})
      for (int64_t key = 0; key < count; ++key)
        for (int64_t i = 0; i < size; i += kLine) {
          const volatile float* line = rows[key] + i;
          static_cast<void>(*line);
        }
  }
};

inline void copy_row(float* to, const float* from, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, load(from + i));
  if (i < size) store(to + i, load_first(from + i, size - i));
}

// Copies one KV head of a tile from the caches, and completes it with zeros to whole vectors of keys.
inline void pack_tile(const Tile& tile, const TileRows& rows, int64_t kv_head, int64_t dim) {
  for (int64_t first = 0; first < rows.count; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, rows.count - first);
    // The keys wait in the values' place for their transposition, so that the caches are read row by row.
    const Matrix<float> staged = {tile.values.row(first), tile.values.stride};
    for (int64_t key = 0; key < count; ++key) copy_row(staged.row(key), rows.keys[first + key] + kv_head * dim, dim);
    for (int64_t d = 0; d < dim; d += kLanes) {
      Vector square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) square[lane] = lane < count ? load(staged.row(lane) + d) : Vector{};
      transpose(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) store(tile.keys.row(d + lane) + first, square[lane]);
    }
    for (int64_t key = 0; key < count; ++key) copy_row(staged.row(key), rows.values[first + key] + kv_head * dim, dim);
  }
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

// Turns a row of scores into weights, of which those outside [first, end) are 0, and brings `state` to the new scale.
inline void weigh(float* scores, int64_t num_vectors, int64_t first, int64_t end, float softcap, const State& state) {
  const Vector nothing = broadcast(-std::numeric_limits<float>::infinity());
  const bool all_visible = first <= 0 && end >= num_vectors * kLanes;
  const IntVector lanes = lane_numbers(Lanes());
  Vector largest = nothing;
  for (int64_t v = 0; v < num_vectors; ++v) {
    Vector score = load(scores + v * kLanes);
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
    store(scores + v * kLanes, weight);
    sums += weight;
  }
  store(state.weight_sums(), sums);
}
