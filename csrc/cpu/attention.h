// Paged attention of any mix of prefills, chunks and decodes. Included inside the level's namespace, by kernels.cpp.
// attention_plan.h says how the work is cut.
//
// A segment is done in three passes: the products of queries and keys, tile by tile; the weights of a row's keys, all at
// once; the products of weights and values. For few rows each pass goes over all of them and products read the cache's
// pages themselves. For many rows keys and values are copied in float32 first, and then some rows at a time go through
// all three passes, so that their scores stay in the first cache. Which way it is decides only how fast.

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
  void weigh(int64_t head, const RowStep& step, float* scores, float* states);
  void multiply_values(KeySpan keys, float* states);
  void attend_packed(int64_t head, KeySpan keys, float* states);
  void attend_packed(int64_t head, const RowStep& step, float* states);
  void pack_keys(KeySpan keys, int64_t kv_head) const;
  void pack_values(KeySpan keys, int64_t kv_head) const;
  void locate_keys(KeySpan keys, int64_t start, int64_t kv_head, const Stored** vectors) const;
  void locate_values(KeySpan keys, int64_t start, int64_t kv_head, const Stored** rows) const;

  const AttentionJob& job_;
  const Part& part_;
  Ahead ahead_;
  const QueryTile* tile_ = nullptr;
  std::vector<RowStep>& steps_ = thread_steps();
  bool is_direct_ = false;
  int64_t range_start_ = 0;
  float *queries_, *scores_, *packed_keys_, *packed_values_, *scales_, *states_, *later_states_;

  static std::vector<RowStep>& thread_steps() {
    static thread_local std::vector<RowStep> steps;
    return steps;
  }
  const float* queries_of(int64_t head, int64_t row) const {
    return queries_ + (head * job_.rows_per_kv_head(*tile_) + row) * job_.padded_dim;
  }
  float* scores_of(int64_t head, int64_t row) const {
    return scores_ + (head * job_.rows_per_kv_head(*tile_) + row) * kRange;
  }
  State state_of(float* states, int64_t head, int64_t row) const {
    return job_.state(states, head * job_.rows_per_kv_head(*tile_) + row);
  }
  float* packed_tile(int64_t start) const { return packed_keys_ + start / kTile * cache().head_dim * kPackedStride; }
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
  const int64_t scales_size = kIsScaled ? 2 * heads * kRange : 0;
  const int64_t sizes[] = {rows * job_.padded_dim,  rows * kRange, kRange / kTile * cache().head_dim * kPackedStride,
                           kRange * job_.padded_dim, scales_size,   rows * job_.state_size,
                           rows * job_.state_size};
  float** const places[] = {&queries_, &scores_, &packed_keys_, &packed_values_, &scales_, &states_, &later_states_};
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
  if (!is_direct_) {
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) attend_packed(head, keys, states);
    return;
  }
  multiply_keys(keys);
  for (int64_t head = 0; head < tile_->num_kv_heads; ++head)
    for (const RowStep& step : steps_) weigh(head, step, scores_of(head, step.row), states);
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
  const Stored* vectors[kTileVectors];
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = {std::max(keys.first, start), std::min(keys.end, start + kTile)};
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      locate_keys(in_tile, start, tile_->first_kv_head + head, vectors);
      KeyColumns<Stored, Ahead> columns = {vectors, cache().block_size, &ahead_};
      for (const RowStep& step : steps_) {
        const KeySpan seen = step.keys_in(start);
        if (seen.is_empty()) continue;
        multiply(step.count, {scores_of(head, step.row) + start, kRange}, {queries_of(head, step.row), job_.padded_dim},
                 columns, cache().head_dim, seen.first_vector() - start / kLanes, seen.end_vector() - start / kLanes);
        columns.ahead = nullptr;
      }
    }
  }
}

// Turns the scores of some rows, kRange apart, into weights.
template <typename Stored>
inline void Attention<Stored>::weigh(int64_t head, const RowStep& step, float* scores, float* states) {
  const Scales scales = {key_scales_of(head), value_scales_of(head)};
  for (int64_t row = step.row; row < step.row + step.count; ++row, scores += kRange) {
    const int64_t position = tile_->first_position + row / job_.group - range_start_;
    const KeySpan visible = {job_.oldest_visible(position + range_start_) - range_start_, position + 1};
    const State state = state_of(states, head, row);
    if (step.keys.is_empty()) state.clear();
    else if (args().softcap > 0) weigh_row<kIsScaled, true>(scores, step.keys, visible, scales, args().softcap, state);
    else weigh_row<kIsScaled, false>(scores, step.keys, visible, scales, 0, state);
    if (is_direct_) ahead_.fetch(kFetchedByRow);
  }
}

template <typename Stored>
inline void Attention<Stored>::multiply_values(KeySpan keys, float* states) {
  const Stored* rows[kTile];
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = {std::max(keys.first, start), std::min(keys.end, start + kTile)};
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      locate_values(in_tile, start, tile_->first_kv_head + head, rows);
      Ahead* ahead = &ahead_;
      for (const RowStep& step : steps_) {
        const KeySpan seen = step.keys_in(start);
        if (seen.is_empty()) continue;
        multiply(step.count, {state_of(states, head, step.row).values, job_.state_size},
                 {scores_of(head, step.row) + seen.first, kRange},
                 ValueColumns<Stored, Ahead>{rows + seen.first - start, ahead}, seen.end - seen.first, 0,
                 job_.padded_dim / kLanes);
        ahead = nullptr;
      }
    }
  }
}

template <typename Stored>
inline void Attention<Stored>::attend_packed(int64_t head, KeySpan keys, float* states) {
  pack_keys(keys, tile_->first_kv_head + head);
  pack_values(keys, tile_->first_kv_head + head);
  const int64_t bytes = 2 * (keys.end - keys.first) * cache().head_dim * sizeof(Stored);
  for (const RowStep& step : steps_) {
    attend_packed(head, step, states);
    ahead_.fetch(bytes / steps_.size());
  }
}

template <typename Stored>
inline void Attention<Stored>::attend_packed(int64_t head, const RowStep& step, float* states) {
  const KeySpan keys = step.keys;
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan seen = step.keys_in(start);
    multiply(step.count, {scores_ + start, kRange}, {queries_of(head, step.row), job_.padded_dim},
             PackedColumns<true>{packed_tile(start), kPackedStride}, cache().head_dim,
             seen.first_vector() - start / kLanes, seen.end_vector() - start / kLanes);
  }
  weigh(head, step, scores_, states);
  if (keys.is_empty()) return;
  multiply(step.count, {state_of(states, head, step.row).values, job_.state_size}, {scores_ + keys.first, kRange},
           PackedColumns<false>{packed_values_ + keys.first * job_.padded_dim, job_.padded_dim},
           keys.end - keys.first, 0, job_.padded_dim / kLanes);
}

// Keys copied in float32, tile by tile, completed to whole vectors with numbers that count for nothing.
template <typename Stored>
inline void Attention<Stored>::pack_keys(KeySpan keys, int64_t kv_head) const {
  const int64_t block_size = cache().block_size;
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = {std::max(keys.first, start), std::min(keys.end, start + kTile)};
    for_each_run(in_tile, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
      const Stored* from = Pages<Stored>{cache()}.keys(block, kv_head) + offset;
      float* to = packed_tile(start) + key - start;
      for (int64_t d = 0; d < cache().head_dim; ++d, from += block_size, to += kPackedStride)
        for (int64_t index = 0; index < count; index += kLanes)
          store(to + index, load_some(from + index, count - index));
    });
  }
}

template <typename Stored>
inline void Attention<Stored>::pack_values(KeySpan keys, int64_t kv_head) const {
  const int64_t dim = cache().head_dim;
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.values(block, kv_head) + offset * dim;
    float* to = packed_values_ + key * job_.padded_dim;
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
      pool().run_in_order(static_cast<int64_t>(parts.size()), run_part);
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
