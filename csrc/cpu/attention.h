// Paged attention of any mix of prefills, chunks and decodes. Included inside the level's namespace, by kernels.cpp.
// attention_plan.h says how the work is cut.
//
// A segment is done in three passes, each over all of its rows: the products of queries and keys, tile by tile; the
// weights of a row's keys, all at once; the products of weights and values, tile by tile. Whether products read the
// cache's pages themselves or a copy in float32 decides only how fast.

constexpr int64_t kDirectRows = 16;                 // rows for which a copy of the keys and values would not pay
constexpr int64_t kFetchedByRow = 1024;             // bytes, while its weights are computed
constexpr int64_t kPackedStride = kTile + kLanes;  // of packed keys, from a dimension to the next

// Rows of a KV head that are multiplied at once, and the keys that at least one of them sees.
struct RowStep {
  int64_t row, count;
  KeySpan keys;
  KeySpan keys_in(int64_t tile) const { return {std::max(keys.first, tile), std::min(keys.end, tile + kTile)}; }
};

// A thread that does a part.
template <typename Stored>
class Attention {
 public:
  Attention(const AttentionJob& job, const Part& part) : job_(job), part_(part), ahead_(job, part.first, part.end) {
    take_memory();
  }

  void run() {
    for (int64_t index = part_.first; index < part_.end; ++index) {
      const int64_t range = job_.segments[index].range;
      if (index == part_.first || job_.segments[index].tile != job_.segments[index - 1].tile)
        start_tile(job_.tile_of(index));
      if (tile_->partials >= 0) {
        attend(index, job_.partial_states(*tile_, range));
        continue;
      }
      attend(index, range == tile_->first_range ? states_ : later_states_);
      if (range > tile_->first_range) job_.merge(*tile_, states_, later_states_);
      if (range + 1 == tile_->end_range) job_.finish(*tile_, states_);
    }
  }

 private:
  static constexpr bool kIsScaled = std::is_same_v<Stored, int8_t>;
  using Ahead = ReadAhead<Stored>;
  const AttentionArgs& args() const { return job_.args; }
  const KVCache& cache() const { return job_.args.cache; }

  void take_memory();
  void start_tile(const QueryTile& tile);
  void attend(int64_t segment, float* states);
  void cut_rows(int64_t range_start);
  template <typename Visit>
  void for_each_run(KeySpan span, const Visit& visit) const;
  void load_scales(KeySpan keys);
  void multiply_keys(KeySpan keys);
  template <typename Columns>
  void multiply_keys_of_tile(int64_t head, int64_t start, Columns columns);
  void weigh_rows(float* states);
  void multiply_values(KeySpan keys, float* states);
  template <typename Columns, typename From>
  void multiply_values_of_tile(int64_t head, int64_t start, float* states, const From& columns_from);
  void pack_keys(KeySpan keys, int64_t start, int64_t kv_head) const;
  void pack_values(KeySpan keys, int64_t start, int64_t kv_head) const;
  void locate_keys(KeySpan keys, int64_t start, int64_t kv_head, const Stored** vectors) const;
  void locate_values(KeySpan keys, int64_t start, int64_t kv_head, const Stored** rows) const;

  const AttentionJob& job_;
  const Part& part_;
  Ahead ahead_;
  const QueryTile* tile_ = nullptr;
  std::vector<RowStep>& steps_ = thread_steps();
  bool is_direct_ = false;
  int64_t range_start_ = 0;
  float *queries_, *scores_, *packed_, *scales_, *states_, *later_states_;

  static std::vector<RowStep>& thread_steps() {
    static thread_local std::vector<RowStep> steps;
    return steps;
  }
  float* scores_of(int64_t head, int64_t row) const {
    return scores_ + (head * job_.rows_per_kv_head(*tile_) + row) * kRange;
  }
  float* key_scales_of(int64_t head) const { return scales_ + 2 * head * kRange; }
  float* value_scales_of(int64_t head) const { return key_scales_of(head) + kRange; }
};

template <typename Stored>
inline void Attention<Stored>::take_memory() {
  static thread_local std::vector<float> memory;
  int64_t rows = 0, heads = 0;
  for (int64_t index = part_.first; index < part_.end; ++index) {
    rows = std::max(rows, job_.num_rows(job_.tile_of(index)));
    heads = std::max(heads, job_.tile_of(index).num_kv_heads);
  }
  const int64_t packed_size = std::max(cache().head_dim * kPackedStride, kTile * job_.padded_dim);
  const int64_t scales_size = kIsScaled ? 2 * heads * kRange : 0;
  const int64_t sizes[] = {rows * job_.padded_dim, rows * kRange, packed_size, scales_size, rows * job_.state_size,
                           rows * job_.state_size};
  float** const places[] = {&queries_, &scores_, &packed_, &scales_, &states_, &later_states_};
  float* next = scratch(memory, std::accumulate(std::begin(sizes), std::end(sizes), int64_t{0}));
  for (size_t index = 0; index < std::size(sizes); next += sizes[index], ++index) *places[index] = next;
}

// The tile's queries, in units that make their products with keys the exponents of weights, unless scores are capped first.
template <typename Stored>
inline void Attention<Stored>::start_tile(const QueryTile& tile) {
  tile_ = &tile;
  const bool is_aligned = cache().block_size % kLanes == 0 && cache().head_dim % kLanes == 0;
  is_direct_ = is_aligned && (job_.rows_per_kv_head(tile) <= kDirectRows || std::is_same_v<Stored, float>);
  const float factor = args().softcap > 0 ? args().scale : args().scale * kLog2e;
  for (int64_t row = 0; row < job_.num_rows(tile); ++row) {
    const auto place = job_.place_of(tile, row);
    const float* query = args().query + place.token * args().query_stride + place.head * cache().head_dim;
    float* to = queries_ + row * job_.padded_dim;
    for (int64_t d = 0; d < cache().head_dim; ++d) to[d] = query[d] * factor;
  }
}

// The states of the tile's rows after the keys of one range.
template <typename Stored>
inline void Attention<Stored>::attend(int64_t segment, float* states) {
  const KeyBounds bounds = job_.bounds_of(segment);
  range_start_ = job_.segments[segment].range * kRange;
  const KeySpan keys = {bounds.first - range_start_, bounds.end - range_start_};
  cut_rows(range_start_);
  if constexpr (kIsScaled) load_scales(keys);
  multiply_keys(keys);
  weigh_rows(states);
  multiply_values(keys, states);
}

template <typename Stored>
inline void Attention<Stored>::cut_rows(int64_t range_start) {
  const int64_t rows = job_.rows_per_kv_head(*tile_), most = rows <= kFewRows ? kFewRows : kManyRows;
  const int64_t num_steps = (rows + most - 1) / most, size = (rows + num_steps - 1) / num_steps;
  steps_.clear();
  for (int64_t row = 0; row < rows; row += size) {
    const int64_t count = std::min(size, rows - row);
    const int64_t first_position = tile_->first_position + row / job_.group;
    const int64_t last_position = tile_->first_position + (row + count - 1) / job_.group;
    steps_.push_back({row, count, {std::max<int64_t>(0, job_.oldest_visible(first_position) - range_start),
                                   std::min(kRange, last_position + 1 - range_start)}});
  }
}

// Calls visit(block, offset, key, count) for the keys of each block: where in the block and in the range they start.
template <typename Stored>
template <typename Visit>
inline void Attention<Stored>::for_each_run(KeySpan keys, const Visit& visit) const {
  const int32_t* blocks = job_.blocks_of(*tile_);
  const int64_t block_size = cache().block_size;
  for (int64_t key = keys.first, count; key < keys.end; key += count) {
    const int64_t position = range_start_ + key, offset = position % block_size;
    count = std::min(block_size - offset, keys.end - key);
    visit(blocks[position / block_size], offset, key, count);
  }
}

template <typename Stored>
inline void Attention<Stored>::load_scales(KeySpan keys) {
  const Pages<Stored> pages = {cache()};
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      const int64_t kv_head = tile_->first_kv_head + head;
      std::copy_n(pages.key_scales(block, kv_head) + offset, count, key_scales_of(head) + key);
      std::copy_n(pages.value_scales(block, kv_head) + offset, count, value_scales_of(head) + key);
    }
  });
}

template <typename Stored>
inline void Attention<Stored>::multiply_keys(KeySpan keys) {
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = {std::max(keys.first, start), std::min(keys.end, start + kTile)};
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      if (is_direct_) {
        const Stored* vectors[kTileVectors];
        locate_keys(in_tile, start, tile_->first_kv_head + head, vectors);
        multiply_keys_of_tile(head, start, KeyColumns<Stored, Ahead>{vectors, cache().block_size, &ahead_});
      } else {
        pack_keys(in_tile, start, tile_->first_kv_head + head);
        multiply_keys_of_tile(head, start, PackedColumns<true>{packed_, kPackedStride});
      }
    }
  }
}

// Products of one KV head's rows with the tile of keys at `start`.
template <typename Stored>
template <typename Columns>
inline void Attention<Stored>::multiply_keys_of_tile(int64_t head, int64_t start, Columns columns) {
  const int64_t rows = job_.rows_per_kv_head(*tile_), dim = cache().head_dim;
  for (const RowStep& step : steps_) {
    const KeySpan keys = step.keys_in(start);
    if (keys.is_empty()) continue;
    const float* queries = queries_ + (head * rows + step.row) * job_.padded_dim;
    multiply(step.count, {scores_of(head, step.row) + start, kRange}, {queries, job_.padded_dim}, columns, dim,
             keys.first_vector() - start / kLanes, keys.end_vector() - start / kLanes);
    if constexpr (requires { columns.ahead; }) columns.ahead = nullptr;
    else ahead_.fetch(kTile * dim * sizeof(Stored) / steps_.size());
  }
}

template <typename Stored>
inline void Attention<Stored>::weigh_rows(float* states) {
  const int64_t rows = job_.rows_per_kv_head(*tile_);
  for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
    const Scales scales = {key_scales_of(head), value_scales_of(head)};
    for (const RowStep& step : steps_) {
      for (int64_t row = step.row; row < step.row + step.count; ++row) {
        const int64_t position = tile_->first_position + row / job_.group - range_start_;
        const KeySpan visible = {job_.oldest_visible(position + range_start_) - range_start_, position + 1};
        const State state = job_.state(states, head * rows + row);
        if (step.keys.is_empty()) state.clear();
        else if (args().softcap > 0)
          weigh<kIsScaled, true>(scores_of(head, row), step.keys, visible, scales, args().softcap, state);
        else weigh<kIsScaled, false>(scores_of(head, row), step.keys, visible, scales, 0, state);
        if (is_direct_) ahead_.fetch(kFetchedByRow);
      }
    }
  }
}

template <typename Stored>
inline void Attention<Stored>::multiply_values(KeySpan keys, float* states) {
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = {std::max(keys.first, start), std::min(keys.end, start + kTile)};
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      if (is_direct_) {
        const Stored* rows[kTile];
        locate_values(in_tile, start, tile_->first_kv_head + head, rows);
        multiply_values_of_tile<ValueColumns<Stored, Ahead>>(head, start, states, [&](int64_t first, bool is_new) {
          return ValueColumns<Stored, Ahead>{rows + first, is_new ? &ahead_ : nullptr};
        });
      } else {
        pack_values(in_tile, start, tile_->first_kv_head + head);
        multiply_values_of_tile<PackedColumns<false>>(head, start, states, [&](int64_t first, bool) {
          return PackedColumns<false>{packed_ + first * job_.padded_dim, job_.padded_dim};
        });
      }
    }
  }
}

// Products of the weights of one KV head's rows with the tile of values at `start`; columns_from(i, ...) has those from
// the tile's value i on.
template <typename Stored>
template <typename Columns, typename From>
inline void Attention<Stored>::multiply_values_of_tile(int64_t head, int64_t start, float* states,
                                                       const From& columns_from) {
  const int64_t rows = job_.rows_per_kv_head(*tile_);
  bool is_new = true;
  for (const RowStep& step : steps_) {
    const KeySpan keys = step.keys_in(start);
    if (keys.is_empty()) continue;
    float* values = job_.state(states, head * rows + step.row).values;
    multiply(step.count, {values, job_.state_size}, {scores_of(head, step.row) + keys.first, kRange},
             columns_from(keys.first - start, is_new), keys.end - keys.first, 0, job_.padded_dim / kLanes);
    if (!is_direct_) ahead_.fetch(kTile * cache().head_dim * sizeof(Stored) / steps_.size());
    is_new = false;
  }
}

// Keys copied in float32, completed to whole vectors with numbers that count for nothing.
template <typename Stored>
inline void Attention<Stored>::pack_keys(KeySpan keys, int64_t start, int64_t kv_head) const {
  const int64_t block_size = cache().block_size;
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.keys(block, kv_head) + offset;
    float* to = packed_ + key - start;
    for (int64_t d = 0; d < cache().head_dim; ++d, from += block_size, to += kPackedStride)
      for (int64_t index = 0; index < count; index += kLanes) store(to + index, load_some(from + index, count - index));
  });
}

template <typename Stored>
inline void Attention<Stored>::pack_values(KeySpan keys, int64_t start, int64_t kv_head) const {
  const int64_t dim = cache().head_dim;
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.values(block, kv_head) + offset * dim;
    float* to = packed_ + (key - start) * job_.padded_dim;
    for (int64_t index = 0; index < count; ++index, from += dim, to += job_.padded_dim)
      for (int64_t d = 0; d < dim; d += kLanes) store(to + d, load_some(from + d, dim - d));
  });
}

// Where the first dimension of each vector of keys is.
template <typename Stored>
inline void Attention<Stored>::locate_keys(KeySpan keys, int64_t start, int64_t kv_head, const Stored** vectors) const {
  const KeySpan whole = {keys.first_vector() * kLanes, keys.end};
  for_each_run(whole, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.keys(block, kv_head) + offset;
    for (int64_t index = 0; index < count; index += kLanes) vectors[(key - start + index) / kLanes] = from + index;
  });
}

// Where the first dimension of each value is.
template <typename Stored>
inline void Attention<Stored>::locate_values(KeySpan keys, int64_t start, int64_t kv_head, const Stored** rows) const {
  const int64_t dim = cache().head_dim;
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.values(block, kv_head) + offset * dim;
    for (int64_t index = 0; index < count; ++index) rows[key - start + index] = from + index * dim;
  });
}

inline void paged_attention(const AttentionArgs& args) {
  static thread_local std::vector<QueryTile> tiles;
  static thread_local std::vector<Segment> segments;
  static thread_local std::vector<Part> parts;
  static thread_local std::vector<float> memory;
  tiles.clear();
  segments.clear();
  parts.clear();
  AttentionJob job{.args = args, .tiles = tiles, .segments = segments, .parts = parts};
  job.plan();
  job.partials = scratch(memory, job.num_partials * job.state_size);
  with_stored_type(args.cache.format, [&](auto stored) {
    using Stored = decltype(stored);
    if (job.multiply_adds < kSmallJob) {
      for (const Part& part : parts) Attention<Stored>(job, part).run();
    } else {
      const auto run_part = [&](int64_t index) { Attention<Stored>(job, job.parts[index]).run(); };
      pool().run(static_cast<int64_t>(parts.size()), run_part);
    }
  });
  for (const QueryTile& tile : tiles) {
    if (tile.partials < 0) continue;
    float* states = job.partial_states(tile, tile.first_range);
    for (int64_t range = tile.first_range + 1; range < tile.end_range; ++range)
      job.merge(tile, states, job.partial_states(tile, range));
    job.finish(tile, states);
  }
}
