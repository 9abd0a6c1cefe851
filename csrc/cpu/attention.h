// Paged attention of any mix of prefills, chunks and decodes. Included inside the level's namespace, by kernels.cpp.
// attention_plan.h says how the work is cut.
//
// A segment is done in three passes: the products of queries and keys, tile by tile; the weights of a row's keys, all at
// once; the products of weights and values. For few rows each pass goes over all of them and products read the cache's
// pages themselves. For many rows keys and values are copied as factors first, and then some rows at a time go through
// all three passes, so that their scores stay in the first cache. Which way it is decides only how fast.

constexpr int64_t kDirectRows = 16;                 // rows for which a copy of the keys and values would not pay
constexpr int64_t kFetchedByHead = 1024;            // bytes, while the weights of its rows are computed
constexpr int64_t kPackedStride = kTile + kLanes;  // of packed keys, from a dimension to the next
static_assert(kRange * 127 * static_cast<int64_t>(kLargestInteger) < int64_t{1} << 31);  // sums of weights and values

// Rows of a KV head that are multiplied at once, and the keys that at least one of them sees.
struct RowStep {
  int64_t row, count;
  KeySpan keys;
  KeySpan keys_in(int64_t tile) const { return keys.within(tile); }
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
  using Numbers = Factors<Stored>;
  using Factor = typename Numbers::Factor;
  static constexpr int64_t kTogether = Numbers::kTogether;
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
  void complete(int64_t head, const RowStep& step, float* states) const;
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
  const int64_t num_key_rows_ = (cache().head_dim + kTogether - 1) / kTogether;  // of factors
  Factor *queries_, *packed_keys_, *packed_values_;
  float *scores_, *scales_, *states_, *later_states_;
  float *query_steps_, *value_factors_;  // of each row, where factors are integers

  static std::vector<RowStep>& thread_steps() {
    static thread_local std::vector<RowStep> steps;
    return steps;
  }
  Matrix<const Factor> queries_of(int64_t head, int64_t row) const {
    const int64_t stride = job_.padded_dim / kTogether;
    return {queries_ + (head * job_.rows_per_kv_head(*tile_) + row) * stride, stride};
  }
  float* scores_of(int64_t head, int64_t row) const {
    return scores_ + (head * job_.rows_per_kv_head(*tile_) + row) * kRange;
  }
  State state_of(float* states, int64_t head, int64_t row) const {
    return job_.state(states, head * job_.rows_per_kv_head(*tile_) + row);
  }
  float* query_step_of(int64_t head, int64_t row) const { return query_steps_ + head * job_.rows_per_kv_head(*tile_) + row; }
  float* value_factor_of(int64_t head, int64_t row) const {
    return value_factors_ + head * job_.rows_per_kv_head(*tile_) + row;
  }
  // Of rows of scores that have become weights, from the factor `first` on.
  static Matrix<const Factor> weights_of(const float* scores, int64_t first) {
    return {reinterpret_cast<const Factor*>(scores) + first, kRange};
  }
  Factor* packed_tile(int64_t start) const { return packed_keys_ + start / kTile * num_key_rows_ * kPackedStride; }
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
  const int64_t steps_size = Numbers::kAreIntegers ? rows : 0;
  const int64_t sizes[] = {rows * job_.padded_dim / kTogether, kRange / kTile * num_key_rows_ * kPackedStride,
                           kRange / kTogether * job_.padded_dim, rows * kRange, scales_size, rows * job_.state_size,
                           rows * job_.state_size, steps_size, steps_size};
  static_assert(sizeof(Factor) == sizeof(float));
  float* places[std::size(sizes)];
  float* next = scratch(memory, std::accumulate(std::begin(sizes), std::end(sizes), int64_t{0}));
  for (size_t index = 0; index < std::size(sizes); next += sizes[index], ++index) places[index] = next;
  queries_ = reinterpret_cast<Factor*>(places[0]);
  packed_keys_ = reinterpret_cast<Factor*>(places[1]);
  packed_values_ = reinterpret_cast<Factor*>(places[2]);
  scores_ = places[3], scales_ = places[4], states_ = places[5], later_states_ = places[6];
  query_steps_ = places[7], value_factors_ = places[8];
}

// The tile's queries, in units that make their products with keys the exponents of weights, unless scores are capped first.
template <typename Stored>
inline void Attention<Stored>::start_tile(const QueryTile& tile) {
  tile_ = &tile;
  const bool is_aligned = cache().block_size % kLanes == 0 && cache().head_dim % kLanes == 0;
  is_direct_ = is_aligned && (job_.rows_per_kv_head(tile) <= kDirectRows || std::is_same_v<Stored, float>);
  const int64_t dim = cache().head_dim;
  const float unit = args().softcap > 0 ? args().scale : args().scale * kLog2e;
  for (int64_t row = 0; row < job_.num_rows(tile); ++row) {
    const auto place = job_.place_of(tile, row);
    const float* query = args().query + place.token * args().query_stride + place.head * dim;
    float factor = unit;
    if constexpr (Numbers::kAreIntegers) {
      const float step = integer_step(bits_of_largest(query, dim), std::min(kLargestInteger, 0x1p24f / dim));
      query_steps_[row] = step * unit;
      factor = 1 / step;
    }
    Factor* to = queries_ + row * job_.padded_dim / kTogether;
    for (int64_t d = 0; d < dim; d += kLanes)
      store_factors(to + d / kTogether, load_some(query + d, dim - d) * factor);
  }
}

// The states of the tile's rows after the keys of one range.
template <typename Stored>
inline void Attention<Stored>::attend(int64_t segment, float* states) {
  const KeyBounds bounds = job_.bounds_of(segment);
  range_start_ = job_.segments[segment].range * kRange;
  const KeySpan keys = {bounds.first - range_start_, bounds.end - range_start_};
  cut_rows(range_start_);
  if (!is_direct_) {
    if constexpr (kIsScaled) load_scales(keys);
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) attend_packed(head, keys, states);
    return;
  }
  multiply_keys(keys);
  if constexpr (kIsScaled) load_scales(keys);  // which have been fetched with the keys
  for (int64_t head = 0; head < tile_->num_kv_heads; ++head)
    for (const RowStep& step : steps_) weigh(head, step, scores_of(head, step.row), states);
  multiply_values(keys, states);
  for (int64_t head = 0; head < tile_->num_kv_heads; ++head)
    for (const RowStep& step : steps_) complete(head, step, states);
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
      copy(key_scales_of(head) + key, pages.key_scales(block, kv_head) + offset, count);
      copy(value_scales_of(head) + key, pages.value_scales(block, kv_head) + offset, count);
    }
  });
}

template <typename Stored>
inline void Attention<Stored>::multiply_keys(KeySpan keys) {
  const Stored* vectors[kTileVectors];
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = keys.within(start);
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      locate_keys(in_tile, start, tile_->first_kv_head + head, vectors);
      KeyColumns<Stored, Ahead> columns = {vectors, cache().block_size, &ahead_};
      for (const RowStep& step : steps_) {
        const KeySpan seen = step.keys_in(start);
        if (seen.is_empty()) continue;
        multiply(step.count, {scores_of(head, step.row) + start, kRange}, queries_of(head, step.row),
                 columns, num_key_rows_, seen.first_vector() - start / kLanes, seen.end_vector() - start / kLanes);
        columns.ahead = nullptr;
      }
    }
  }
}

// Turns the scores of some rows, kRange apart, into weights.
template <typename Stored>
inline void Attention<Stored>::weigh(int64_t head, const RowStep& step, float* scores, float* states) {
  Scales scales = {key_scales_of(head), value_scales_of(head), 1};
  for (int64_t row = step.row; row < step.row + step.count; ++row, scores += kRange) {
    const int64_t position = tile_->first_position + row / job_.group - range_start_;
    const KeySpan visible = {job_.oldest_visible(position + range_start_) - range_start_, position + 1};
    const State state = state_of(states, head, row);
    if constexpr (Numbers::kAreIntegers) scales.query = *query_step_of(head, row);
    float factor = 1;
    if (step.keys.is_empty()) state.clear();
    else if (args().softcap > 0) factor = weigh_row<Stored, true>(scores, step.keys, visible, scales, args().softcap, state);
    else factor = weigh_row<Stored, false>(scores, step.keys, visible, scales, 0, state);
    if constexpr (Numbers::kAreIntegers) *value_factor_of(head, row) = factor;
    if (is_direct_) ahead_.fetch(std::max(kLine, kFetchedByHead / job_.rows_per_kv_head(*tile_)));
  }
}

template <typename Stored>
inline void Attention<Stored>::multiply_values(KeySpan keys, float* states) {
  const Stored* rows[kTile];
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = keys.within(start);
    for (int64_t head = 0; head < tile_->num_kv_heads; ++head) {
      locate_values(in_tile, start, tile_->first_kv_head + head, rows);
      Ahead* ahead = &ahead_;
      for (const RowStep& step : steps_) {
        const KeySpan seen = step.keys_in(start);
        if (seen.is_empty()) continue;
        const int64_t first = seen.first / kTogether, end = (seen.end + kTogether - 1) / kTogether;
        multiply(step.count, {state_of(states, head, step.row).values, job_.state_size},
                 weights_of(scores_of(head, step.row), first),
                 ValueColumns<Stored, Ahead>{rows + first * kTogether - start, ahead}, end - first, 0,
                 job_.padded_dim / kLanes);
        ahead = nullptr;
      }
    }
  }
}

// Makes the values of states from sums of products, where those are integers.
template <typename Stored>
inline void Attention<Stored>::complete(int64_t head, const RowStep& step, float* states) const {
  if constexpr (Numbers::kAreIntegers)
    for (int64_t row = step.row; row < step.row + step.count; ++row)
      state_of(states, head, row).complete(*value_factor_of(head, row));
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
    multiply(step.count, {scores_ + start, kRange}, queries_of(head, step.row),
             PackedColumns<Factor, true>{packed_tile(start), kPackedStride}, num_key_rows_,
             seen.first_vector() - start / kLanes, seen.end_vector() - start / kLanes);
  }
  weigh(head, step, scores_, states);
  if (keys.is_empty()) return;
  const int64_t first = keys.first / kTogether, end = (keys.end + kTogether - 1) / kTogether;
  multiply(step.count, {state_of(states, head, step.row).values, job_.state_size}, weights_of(scores_, first),
           PackedColumns<Factor, false>{packed_values_ + first * job_.padded_dim, job_.padded_dim}, end - first, 0,
           job_.padded_dim / kLanes);
  complete(head, step, states);
}

// Keys copied as factors, tile by tile, completed to whole vectors with numbers that count for nothing.
template <typename Stored>
inline void Attention<Stored>::pack_keys(KeySpan keys, int64_t kv_head) const {
  const int64_t block_size = cache().block_size;
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = keys.within(start);
    for_each_run(in_tile, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
      const Stored* from = Pages<Stored>{cache()}.keys(block, kv_head) + offset;
      Factor* to = packed_tile(start) + key - start;
      for (int64_t d = 0; d < cache().head_dim; d += kTogether, from += kTogether * block_size, to += kPackedStride) {
        const Stored* second = d + 1 < cache().head_dim ? from + block_size : from;  // of a pair, times 0 if none is left
        for (int64_t index = 0; index < count; index += kLanes)
          store(to + index, Numbers::join_some(from + index, second + index, count - index));
      }
    });
  }
}

template <typename Stored>
inline void Attention<Stored>::pack_values(KeySpan keys, int64_t kv_head) const {
  const int64_t dim = cache().head_dim;
  const Stored* rows[kTile];
  for (int64_t start = keys.first / kTile * kTile; start < keys.end; start += kTile) {
    const KeySpan in_tile = keys.within(start);
    locate_values(in_tile, start, kv_head, rows);
    for (int64_t key = in_tile.first / kTogether * kTogether; key < in_tile.end; key += kTogether) {
      const Stored *first = rows[key - start], *second = rows[key - start + kTogether - 1];
      Factor* to = packed_values_ + key / kTogether * job_.padded_dim;
      for (int64_t d = 0; d < dim; d += kLanes) store(to + d, Numbers::join_some(first + d, second + d, dim - d));
    }
  }
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

// Where the first dimension of each value is. One that has no partner among the keys becomes its own, times 0.
template <typename Stored>
inline void Attention<Stored>::locate_values(KeySpan keys, int64_t start, int64_t kv_head, const Stored** rows) const {
  const int64_t dim = cache().head_dim;
  for_each_run(keys, [&](int64_t block, int64_t offset, int64_t key, int64_t count) {
    const Stored* from = Pages<Stored>{cache()}.values(block, kv_head) + offset * dim;
    for (int64_t index = 0; index < count; ++index) rows[key - start + index] = from + index * dim;
  });
  if constexpr (kTogether == 2) {
    if (keys.first % 2 == 1) rows[keys.first - start - 1] = rows[keys.first - start];
    if (keys.end % 2 == 1) rows[keys.end - start] = rows[keys.end - start - 1];
  }
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
