// Paged attention of any mix of prefills, chunks and decodes. Included inside the level's namespace, by kernels.cpp.
//
// A request's queries are cut into query tiles. The rows of a KV head (each query times the query heads that share the
// KV head) meet its keys together, so that keys and values are read once for all of them. The keys are cut into ranges
// of kRange, at multiples of kRange, each attended to by itself; their results are merged in ascending order:
//
//     positions        0        256       512       768
//     ranges           |---------|---------|----           a long decode: each range a part of its own
//     tiles            |.|.|.|.|.|.|.|.|.|.|.|.
//
// The cuts of the keys stand at fixed positions whatever the step, so a query's result is the same to the bit however
// its prompt was chunked. Which ranges and heads are parts of their own decides only who does the work and when; whether
// products read the cache's pages themselves or a copy in float32 decides only how fast.

constexpr int64_t kRange = 256;
constexpr int64_t kQueryTileRows = 96;  // rows that share the cost of packing a tile of keys
constexpr int64_t kMaxPartials = 8192;  // rows * ranges of a query tile whose ranges become parts
constexpr int64_t kSmallJob = 300000;   // multiply-adds that are done before another thread is awake
constexpr int64_t kManyParts = 16;      // parts that keep all threads busy to the end
constexpr int64_t kDirectRows = 16;     // rows for which a copy of the keys and values would not pay

// Queries of one request that are attended to together. A decode takes all heads in one go if there are other parts
// for the other threads, and so reads whole pages of the cache; a prefill takes one at a time.
struct QueryTile {
  int64_t request;
  int64_t first_token;  // in the batch
  int64_t num_queries, first_position;
  int64_t first_kv_head, num_kv_heads;
  int64_t first_range = 0, end_range = 0;
  int64_t partials = -1;  // where the states of its ranges are, in the job's memory; -1: the ranges are not parts
};

// The keys first ... end - 1 of the tile that starts at position tile_start; those before `first` are out of sight.
struct KeySpan {
  int64_t tile_start, first, end;
};

constexpr int64_t kPackedStride = kTile + kLanes;  // of packed keys, from a dimension to the next

struct AttentionPart {
  QueryTile tile;
  int64_t first_range, end_range;
};

struct AttentionJob {
  const AttentionArgs& args;
  std::vector<QueryTile>& split_tiles;
  std::vector<AttentionPart>& parts;
  const int64_t group = args.num_heads / args.cache.num_kv_heads;
  const int64_t padded_dim = round_up_to_lanes(args.cache.head_dim);
  const bool is_aligned = args.cache.block_size % kLanes == 0 && args.cache.head_dim % kLanes == 0;
  const int64_t state_size = State::size(padded_dim);
  float* partials = nullptr;
  int64_t num_partials = 0;
  int64_t multiply_adds = 0;

  int64_t oldest_visible(int64_t position) const {
    return args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
  }
  int64_t rows_per_kv_head(const QueryTile& tile) const { return tile.num_queries * group; }
  int64_t num_rows(const QueryTile& tile) const { return rows_per_kv_head(tile) * tile.num_kv_heads; }
  State state(float* states, int64_t row) const { return {states + row * state_size, padded_dim}; }

  float* partial_states(const QueryTile& tile, int64_t range) const {
    return partials + (tile.partials + (range - tile.first_range) * num_rows(tile)) * state_size;
  }

  // The numbers of token and head of a tile's row: those of one KV head follow each other, by token and then by head.
  struct Place {
    int64_t token, head;
  };
  Place place_of(const QueryTile& tile, int64_t row) const {
    const int64_t kv_head = tile.first_kv_head + row / rows_per_kv_head(tile), in_head = row % rows_per_kv_head(tile);
    return {tile.first_token + in_head / group, kv_head * group + in_head % group};
  }

  void plan();
  int64_t kv_heads_at_once(int64_t num_queries, int64_t first_position) const;
  void plan_tile(QueryTile tile, bool is_only_one);
  template <typename Stored>
  void run(const AttentionPart& part) const;
  template <typename Stored>
  void attend_range(const QueryTile& tile, int64_t range, float* states, float* memory) const;
  template <typename Number, bool kIsScaled>
  void attend_tile(const QueryTile& tile, const KeySpan& span, Matrix<const float> queries,
                   const Tile<Number, kIsScaled>& cached, const Tile<Number, kIsScaled>& next, float* states,
                   float* scores) const;
  template <typename Visit>
  void for_each_run(const QueryTile& tile, const KeySpan& span, const Visit& visit) const;
  template <typename Number, bool kIsScaled>
  void locate(const QueryTile& tile, const KeySpan& span, int64_t kv_head, Tile<Number, kIsScaled>& found) const;
  template <typename Number, bool kIsScaled>
  void fetch(const Tile<Number, kIsScaled>& tile) const;
  template <typename Stored, bool kIsScaled>
  void pack(const QueryTile& tile, const KeySpan& span, int64_t kv_head, Tile<float, kIsScaled>& packed,
            float* memory) const;
  void merge(const QueryTile& tile, float* states, float* later_states) const;
  void finish(const QueryTile& tile, float* states) const;

  // Numbers of memory that attend_range needs for a query tile.
  int64_t memory_size(const QueryTile& tile) const {
    const int64_t packed_size = args.cache.head_dim * kPackedStride + kTile * padded_dim + 2 * kTile;
    return num_rows(tile) * padded_dim + kMaxRows * kTile + packed_size;
  }
};

inline void AttentionJob::plan() {
  const int64_t tile_queries = std::max<int64_t>(1, kQueryTileRows / group);
  for (int64_t request = 0; request < args.num_requests; ++request) {
    const int64_t start = args.query_start_loc[request];
    const int64_t num_queries = args.query_start_loc[request + 1] - start;
    const int64_t first_position = args.seq_lens[request] - num_queries;
    const int64_t kv_heads = kv_heads_at_once(num_queries, first_position);
    const int64_t num_tiles = (num_queries + tile_queries - 1) / tile_queries;
    // The last tiles see the most keys: they come first, so that no thread is left with a large part at the end.
    for (int64_t index = num_tiles - 1; index >= 0; --index) {
      const int64_t first = index * tile_queries, count = std::min(tile_queries, num_queries - first);
      for (int64_t kv_head = 0; kv_head < args.cache.num_kv_heads; kv_head += kv_heads)
        plan_tile({request, start + first, count, first_position + first, kv_head, kv_heads}, num_tiles == 1);
    }
  }
}

inline int64_t AttentionJob::kv_heads_at_once(int64_t num_queries, int64_t first_position) const {
  const int64_t num_keys = first_position + num_queries - oldest_visible(first_position);
  const bool are_many = args.num_requests * num_keys >= kManyParts * kRange;
  return are_many && num_queries * args.num_heads <= kQueryTileRows ? args.cache.num_kv_heads : 1;
}

inline void AttentionJob::plan_tile(QueryTile tile, bool is_only_one) {
  const int64_t oldest = oldest_visible(tile.first_position), end = tile.first_position + tile.num_queries;
  tile.first_range = oldest / kRange;
  tile.end_range = (end + kRange - 1) / kRange;
  const int64_t num_ranges = tile.end_range - tile.first_range;
  multiply_adds += 2 * num_rows(tile) * (end - oldest) * args.cache.head_dim;
  if (!is_only_one || num_ranges == 1 || num_rows(tile) * num_ranges > kMaxPartials) {
    parts.push_back({tile, tile.first_range, tile.end_range});
    return;
  }
  tile.partials = num_partials;
  num_partials += num_rows(tile) * num_ranges;
  split_tiles.push_back(tile);
  for (int64_t range = tile.first_range; range < tile.end_range; ++range) parts.push_back({tile, range, range + 1});
}

// Calls visit(block, offset, index, count) for the keys of each block: where in the block and in the tile they start.
template <typename Visit>
inline void AttentionJob::for_each_run(const QueryTile& tile, const KeySpan& span, const Visit& visit) const {
  const int32_t* blocks = args.block_table + tile.request * args.block_table_stride;
  const int64_t block_size = args.cache.block_size;
  for (int64_t key = span.first, count; key < span.end; key += count) {
    const int64_t offset = key % block_size;
    count = std::min(block_size - offset, span.end - key);
    visit(blocks[key / block_size], offset, key - span.tile_start, count);
  }
}

// The keys and values as they lie in the pages, of which vectors can be read.
template <typename Number, bool kIsScaled>
inline void AttentionJob::locate(const QueryTile& tile, const KeySpan& span, int64_t kv_head,
                                 Tile<Number, kIsScaled>& found) const {
  const Pages<Number> pages = {args.cache};
  const int64_t dim = args.cache.head_dim;
  found.key_stride = args.cache.block_size;
  if (span.end - span.tile_start < kTile || span.first > span.tile_start) {  // anywhere, lest something is fetched
    std::fill_n(found.key_vectors, kTileVectors, pages.keys(0, 0));
    std::fill_n(found.values, kTile, pages.values(0, 0));
    if constexpr (kIsScaled) {
      std::fill_n(found.key_scales, kTileVectors, pages.key_scales(0, 0));
      std::fill_n(found.value_scales, kTileVectors, pages.value_scales(0, 0));
    }
  }
  for_each_run(tile, span, [&](int64_t block, int64_t offset, int64_t index, int64_t count) {
    const Number* keys = pages.keys(block, kv_head) + offset - index;
    const Number* values = pages.values(block, kv_head) + (offset - index) * dim;
    for (int64_t key = index; key < index + count; ++key) found.values[key] = values + key * dim;
    for (int64_t v = index / kLanes; v * kLanes < index + count; ++v) {
      found.key_vectors[v] = keys + v * kLanes;
      if constexpr (kIsScaled) {
        found.key_scales[v] = pages.key_scales(block, kv_head) + offset - index + v * kLanes;
        found.value_scales[v] = pages.value_scales(block, kv_head) + offset - index + v * kLanes;
        __builtin_prefetch(found.key_scales[v]);
        __builtin_prefetch(found.value_scales[v]);
      }
    }
  });
}

// Has the processor fetch what the first tile of a range holds; later ones are fetched during the one before.
template <typename Number, bool kIsScaled>
inline void AttentionJob::fetch(const Tile<Number, kIsScaled>& tile) const {
  const KeyColumns<Number> keys = {tile.key_vectors, tile.key_vectors, tile.key_stride};
  const ValueColumns<Number> values = {tile.values, tile.values};
  for (int64_t d = 0; d < args.cache.head_dim; ++d) keys.fetch_ahead(d, 0, kTileVectors);
  for (int64_t key = 0; key < kTile; ++key) values.fetch_ahead(key, 0, static_cast<int>(padded_dim / kLanes));
}

// The keys and values copied to memory in float32, completed to whole vectors with numbers that count for nothing.
template <typename Stored, bool kIsScaled>
inline void AttentionJob::pack(const QueryTile& tile, const KeySpan& span, int64_t kv_head,
                               Tile<float, kIsScaled>& packed, float* memory) const {
  const Pages<Stored> pages = {args.cache};
  const int64_t dim = args.cache.head_dim, block_size = args.cache.block_size;
  float* packed_values = memory + dim * kPackedStride;
  float *key_scales = packed_values + kTile * padded_dim, *value_scales = key_scales + kTile;
  packed.key_stride = kPackedStride;
  for (int v = 0; v < kTileVectors; ++v) {
    packed.key_vectors[v] = memory + v * kLanes;
    if constexpr (kIsScaled) {
      packed.key_scales[v] = key_scales + v * kLanes;
      packed.value_scales[v] = value_scales + v * kLanes;
    }
  }
  for_each_run(tile, span, [&](int64_t block, int64_t offset, int64_t index, int64_t count) {
    const Stored* keys = pages.keys(block, kv_head) + offset;
    const Stored* values = pages.values(block, kv_head) + offset * dim;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t key = 0; key < count; key += kLanes)
        store(memory + d * kPackedStride + index + key, load_some(keys + d * block_size + key, count - key));
    for (int64_t key = 0; key < count; ++key) {
      float* row = packed_values + (index + key) * padded_dim;
      for (int64_t d = 0; d < dim; d += kLanes) store(row + d, load_some(values + key * dim + d, dim - d));
      packed.values[index + key] = row;
    }
    if constexpr (kIsScaled) {
      std::copy_n(pages.key_scales(block, kv_head) + offset, count, key_scales + index);
      std::copy_n(pages.value_scales(block, kv_head) + offset, count, value_scales + index);
    }
  });
}

// Adds the keys of one KV head of a tile to the states of the head's rows.
template <typename Number, bool kIsScaled>
inline void AttentionJob::attend_tile(const QueryTile& tile, const KeySpan& span, Matrix<const float> queries,
                                      const Tile<Number, kIsScaled>& cached, const Tile<Number, kIsScaled>& next,
                                      float* states, float* scores) const {
  const int64_t rows = rows_per_kv_head(tile), first = span.first - span.tile_start;
  const int64_t num_steps = (rows + kMaxRows - 1) / kMaxRows, step = (rows + num_steps - 1) / num_steps;
  const auto position_of = [&](int64_t row) { return tile.first_position + row / group; };
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const int64_t num_visible = std::min(kTile, position_of(row + count - 1) + 1 - span.tile_start);
    if (num_visible <= first || oldest_visible(position_of(row)) >= span.tile_start + kTile) continue;
    const int64_t num_vectors = (num_visible + kLanes - 1) / kLanes;
    const Tile<Number, kIsScaled>& ahead = row == 0 ? next : cached;
    std::fill(scores, scores + count * kTile, 0.0f);
    multiply(count, {scores, kTile}, {queries.row(row), queries.stride},
             KeyColumns<Number>{cached.key_vectors, ahead.key_vectors, cached.key_stride}, args.cache.head_dim,
             first / kLanes, num_vectors);
    for (int64_t index = 0; index < count; ++index) {
      const int64_t position = position_of(row + index);
      weigh(scores + index * kTile, cached, num_vectors, oldest_visible(position) - span.tile_start,
            position + 1 - span.tile_start, args.softcap, state(states, row + index));
    }
    multiply(count, {states + row * state_size, state_size}, {scores + first, kTile},
             ValueColumns<Number>{cached.values + first, ahead.values + first}, num_visible - first, 0, padded_dim / kLanes);
  }
}

// The states of the tile's rows after the keys of one range.
template <typename Stored>
inline void AttentionJob::attend_range(const QueryTile& tile, int64_t range, float* states, float* memory) const {
  constexpr bool kIsScaled = std::is_same_v<Stored, int8_t>;
  const Matrix<float> queries = {memory, padded_dim};
  const int64_t dim = args.cache.head_dim;
  for (int64_t row = 0; row < num_rows(tile); ++row) {
    const Place place = place_of(tile, row);
    const float* query = args.query + place.token * args.query_stride + place.head * dim;
    for (int64_t d = 0; d < dim; ++d) queries.row(row)[d] = query[d] * args.scale;
    state(states, row).clear();
  }
  float* scores = queries.row(num_rows(tile));
  float* packed_memory = scores + kMaxRows * kTile;
  const bool is_direct = is_aligned && (rows_per_kv_head(tile) <= kDirectRows || std::is_same_v<Stored, float>);

  const int64_t end = std::min((range + 1) * kRange, tile.first_position + tile.num_queries);
  const int64_t oldest = oldest_visible(tile.first_position);
  const int64_t first_start = std::max(range * kRange, oldest / kTile * kTile);
  const int64_t num_units = (end - first_start + kTile - 1) / kTile * tile.num_kv_heads;
  const auto span_of = [&](int64_t unit) -> KeySpan {
    const int64_t start = first_start + unit / tile.num_kv_heads * kTile;
    return {start, std::max(start, oldest), std::min(start + kTile, end)};
  };
  Tile<Stored, kIsScaled> cached[2];
  if (is_direct) {
    locate(tile, span_of(0), tile.first_kv_head, cached[0]);
    fetch(cached[0]);
  }
  for (int64_t unit = 0; unit < num_units; ++unit) {
    const int64_t head = unit % tile.num_kv_heads, row = head * rows_per_kv_head(tile);
    const Matrix<const float> head_queries = {queries.row(row), padded_dim};
    float* head_states = states + row * state_size;
    if (is_direct) {
      Tile<Stored, kIsScaled>&current = cached[unit % 2], &next = cached[(unit + 1) % 2];
      const int64_t next_unit = std::min(unit + 1, num_units - 1);
      locate(tile, span_of(next_unit), tile.first_kv_head + next_unit % tile.num_kv_heads, next);
      attend_tile(tile, span_of(unit), head_queries, current, next, head_states, scores);
    } else {
      Tile<float, kIsScaled> packed;
      pack<Stored>(tile, span_of(unit), tile.first_kv_head + head, packed, packed_memory);
      attend_tile(tile, span_of(unit), head_queries, packed, packed, head_states, scores);
    }
  }
}

inline void AttentionJob::merge(const QueryTile& tile, float* states, float* later_states) const {
  for (int64_t row = 0; row < num_rows(tile); ++row) state(states, row).merge(state(later_states, row));
}

inline void AttentionJob::finish(const QueryTile& tile, float* states) const {
  for (int64_t row = 0; row < num_rows(tile); ++row) {
    const Place place = place_of(tile, row);
    float* output = args.output + (place.token * args.num_heads + place.head) * args.cache.head_dim;
    state(states, row).finish(output, args.cache.head_dim);
  }
}

template <typename Stored>
inline void AttentionJob::run(const AttentionPart& part) const {
  static thread_local std::vector<float> memory;
  const QueryTile& tile = part.tile;
  const int64_t states_size = num_rows(tile) * state_size;
  float* states = scratch(memory, 2 * states_size + memory_size(tile));
  float* later_states = states + states_size;
  float* work = later_states + states_size;
  if (tile.partials >= 0) return attend_range<Stored>(tile, part.first_range, partial_states(tile, part.first_range), work);
  attend_range<Stored>(tile, part.first_range, states, work);
  for (int64_t range = part.first_range + 1; range < part.end_range; ++range) {
    attend_range<Stored>(tile, range, later_states, work);
    merge(tile, states, later_states);
  }
  finish(tile, states);
}

inline void paged_attention(const AttentionArgs& args) {
  static thread_local std::vector<QueryTile> split_tiles;
  static thread_local std::vector<AttentionPart> parts;
  static thread_local std::vector<float> memory;
  split_tiles.clear();
  parts.clear();
  AttentionJob job{.args = args, .split_tiles = split_tiles, .parts = parts};
  job.plan();
  job.partials = scratch(memory, job.num_partials * job.state_size);
  with_stored_type(args.cache.format, [&](auto stored) {
    using Stored = decltype(stored);
    if (job.multiply_adds < kSmallJob) {
      for (const AttentionPart& part : parts) job.run<Stored>(part);
    } else {
      pool().run(static_cast<int64_t>(parts.size()), [&](int64_t index) { job.run<Stored>(job.parts[index]); });
    }
  });
  for (const QueryTile& tile : split_tiles) {
    float* states = job.partial_states(tile, tile.first_range);
    for (int64_t range = tile.first_range + 1; range < tile.end_range; ++range)
      job.merge(tile, states, job.partial_states(tile, range));
    job.finish(tile, states);
  }
}
