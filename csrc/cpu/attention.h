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
// its prompt was chunked. Which ranges and heads are parts of their own decides only who does the work and when.

constexpr int64_t kRange = 256;
constexpr int64_t kQueryTileRows = 96;  // rows that share the cost of packing a tile of keys
constexpr int64_t kMaxPartials = 8192;  // rows * ranges of a query tile whose ranges become parts
constexpr int64_t kSmallJob = 300000;   // multiply-adds that are done before another thread is awake

// Memory of a thread, kept for the next call. One array at a time.
inline float* scratch(std::vector<float>& memory, int64_t size) {
  constexpr size_t kAlignment = 64 / sizeof(float);
  if (memory.size() < size + kAlignment) memory.resize(size + kAlignment);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (-address / sizeof(float)) % kAlignment;
}

// Queries of one request that are attended to together. A decode takes all heads in one go, and so reads whole rows
// of the cache; a prefill takes one at a time.
struct QueryTile {
  int64_t request;
  int64_t first_token;  // in the batch
  int64_t num_queries, first_position;
  int64_t first_kv_head, num_kv_heads;
  int64_t first_range = 0, end_range = 0;
  int64_t partials = -1;  // where the states of its ranges are, in the job's memory; -1: the ranges are not parts
};

struct AttentionPart {
  QueryTile tile;
  int64_t first_range, end_range;
};

struct AttentionJob {
  const AttentionArgs& args;
  std::vector<QueryTile>& split_tiles;
  std::vector<AttentionPart>& parts;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t padded_dim = round_up_to_lanes(args.head_dim);
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
  void plan_tile(QueryTile tile, bool is_only_one);
  void run(const AttentionPart& part) const;
  void attend_range(const QueryTile& tile, int64_t range, float* states, float* memory) const;
  void locate(const QueryTile& tile, int64_t first_key, TileRows& rows, const float* zeros) const;
  void attend_tile(const QueryTile& tile, int64_t first_key, Matrix<const float> queries, const Tile& packed,
                   float* states, float* scores) const;
  void merge(const QueryTile& tile, float* states, float* later_states) const;
  void finish(const QueryTile& tile, float* states) const;

  // Numbers of memory that attend_range needs for a query tile.
  int64_t memory_size(const QueryTile& tile) const {
    return num_rows(tile) * padded_dim + kMaxRows * kTile + 2 * kTile * padded_dim + args.num_kv_heads * args.head_dim;
  }
};

inline void AttentionJob::plan() {
  const int64_t tile_queries = std::max<int64_t>(1, kQueryTileRows / group);
  for (int64_t request = 0; request < args.num_requests; ++request) {
    const int64_t start = args.query_start_loc[request];
    const int64_t num_queries = args.query_start_loc[request + 1] - start;
    const int64_t first_position = args.seq_lens[request] - num_queries;
    const int64_t kv_heads = num_queries * args.num_heads <= kQueryTileRows ? args.num_kv_heads : 1;
    const int64_t num_tiles = (num_queries + tile_queries - 1) / tile_queries;
    // The last tiles see the most keys: they come first, so that no thread is left with a large part at the end.
    for (int64_t index = num_tiles - 1; index >= 0; --index) {
      const int64_t first = index * tile_queries, count = std::min(tile_queries, num_queries - first);
      for (int64_t kv_head = 0; kv_head < args.num_kv_heads; kv_head += kv_heads)
        plan_tile({request, start + first, count, first_position + first, kv_head, kv_heads}, num_tiles == 1);
    }
  }
}

inline void AttentionJob::plan_tile(QueryTile tile, bool is_only_one) {
  const int64_t oldest = oldest_visible(tile.first_position), end = tile.first_position + tile.num_queries;
  tile.first_range = oldest / kRange;
  tile.end_range = (end + kRange - 1) / kRange;
  const int64_t num_ranges = tile.end_range - tile.first_range;
  multiply_adds += 2 * num_rows(tile) * (end - oldest) * args.head_dim;
  if (!is_only_one || num_ranges == 1 || num_rows(tile) * num_ranges > kMaxPartials) {
    parts.push_back({tile, tile.first_range, tile.end_range});
    return;
  }
  tile.partials = num_partials;
  num_partials += num_rows(tile) * num_ranges;
  split_tiles.push_back(tile);
  for (int64_t range = tile.first_range; range < tile.end_range; ++range) parts.push_back({tile, range, range + 1});
}

// Where the keys and values of a tile lie. Those before the window count as zeros: their blocks may be gone.
inline void AttentionJob::locate(const QueryTile& tile, int64_t first_key, TileRows& rows, const float* zeros) const {
  const int64_t oldest = oldest_visible(tile.first_position), end = tile.first_position + tile.num_queries;
  const int32_t* blocks = args.block_table + tile.request * args.block_table_stride;
  rows.count = std::min(kTile, end - first_key);
  for (int64_t key = 0; key < rows.count; ++key) {
    const int64_t position = first_key + key;
    rows.keys[key] = rows.values[key] = zeros;
    if (position < oldest) continue;
    const int64_t slot = blocks[position / args.block_size] * args.block_size + position % args.block_size;
    rows.keys[key] = args.key_cache + slot * args.num_kv_heads * args.head_dim;
    rows.values[key] = args.value_cache + slot * args.num_kv_heads * args.head_dim;
  }
}

// Adds the keys of one KV head of the tile that starts at position `first_key` to the states of the head's rows.
inline void AttentionJob::attend_tile(const QueryTile& tile, int64_t first_key, Matrix<const float> queries,
                                      const Tile& packed, float* states, float* scores) const {
  const int64_t rows = rows_per_kv_head(tile);
  const int64_t num_steps = (rows + kMaxRows - 1) / kMaxRows, step = (rows + num_steps - 1) / num_steps;
  const auto position_of = [&](int64_t row) { return tile.first_position + row / group; };
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const int64_t num_visible = std::min(kTile, position_of(row + count - 1) + 1 - first_key);
    if (num_visible <= 0 || oldest_visible(position_of(row)) >= first_key + kTile) continue;
    const int64_t num_vectors = (num_visible + kLanes - 1) / kLanes;
    std::fill(scores, scores + count * kTile, 0.0f);
    multiply(count, {scores, kTile}, {queries.row(row), queries.stride}, {packed.keys.data, kTile}, args.head_dim,
             num_vectors);
    for (int64_t index = 0; index < count; ++index) {
      const int64_t position = position_of(row + index);
      weigh(scores + index * kTile, num_vectors, oldest_visible(position) - first_key, position + 1 - first_key,
            args.softcap, state(states, row + index));
    }
    multiply(count, {states + row * state_size, state_size}, {scores, kTile}, {packed.values.data, padded_dim},
             num_visible, padded_dim / kLanes);
  }
}

// The states of the tile's rows after the keys of one range.
inline void AttentionJob::attend_range(const QueryTile& tile, int64_t range, float* states, float* memory) const {
  const Matrix<float> queries = {memory, padded_dim};
  for (int64_t row = 0; row < num_rows(tile); ++row) {
    const Place place = place_of(tile, row);
    const float* query = args.query + place.token * args.query_stride + place.head * args.head_dim;
    for (int64_t d = 0; d < args.head_dim; ++d) queries.row(row)[d] = query[d] * args.scale;
    state(states, row).clear();
  }
  float* scores = queries.row(num_rows(tile));
  float* tile_memory = scores + kMaxRows * kTile;
  const Tile packed = {{tile_memory, kTile}, {tile_memory + kTile * padded_dim, padded_dim}};
  float* zeros = packed.values.row(kTile);
  std::fill(zeros, zeros + args.num_kv_heads * args.head_dim, 0.0f);

  const int64_t end = std::min((range + 1) * kRange, tile.first_position + tile.num_queries);
  int64_t first_key = std::max(range * kRange, oldest_visible(tile.first_position) / kTile * kTile);
  for (; first_key < end; first_key += kTile) {
    TileRows rows;
    locate(tile, first_key, rows, zeros);
    if (tile.num_kv_heads == args.num_kv_heads) rows.sweep(args.num_kv_heads * args.head_dim);
    for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
      pack_tile(packed, rows, tile.first_kv_head + head, args.head_dim);
      const int64_t row = head * rows_per_kv_head(tile);
      attend_tile(tile, first_key, {queries.row(row), padded_dim}, packed, states + row * state_size, scores);
    }
  }
}

inline void AttentionJob::merge(const QueryTile& tile, float* states, float* later_states) const {
  for (int64_t row = 0; row < num_rows(tile); ++row) state(states, row).merge(state(later_states, row));
}

inline void AttentionJob::finish(const QueryTile& tile, float* states) const {
  for (int64_t row = 0; row < num_rows(tile); ++row) {
    const Place place = place_of(tile, row);
    float* output = args.output + (place.token * args.num_heads + place.head) * args.head_dim;
    state(states, row).finish(output, args.head_dim);
  }
}

inline void AttentionJob::run(const AttentionPart& part) const {
  static thread_local std::vector<float> memory;
  const QueryTile& tile = part.tile;
  const int64_t states_size = num_rows(tile) * state_size;
  float* states = scratch(memory, 2 * states_size + memory_size(tile));
  float* later_states = states + states_size;
  float* work = later_states + states_size;
  if (tile.partials >= 0) return attend_range(tile, part.first_range, partial_states(tile, part.first_range), work);
  attend_range(tile, part.first_range, states, work);
  for (int64_t range = part.first_range + 1; range < part.end_range; ++range) {
    attend_range(tile, range, later_states, work);
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
  if (job.multiply_adds < kSmallJob) {
    for (const AttentionPart& part : parts) job.run(part);
  } else {
    pool().run(static_cast<int64_t>(parts.size()), [&](int64_t index) { job.run(job.parts[index]); });
  }
  for (const QueryTile& tile : split_tiles) {
    float* states = job.partial_states(tile, tile.first_range);
    for (int64_t range = tile.first_range + 1; range < tile.end_range; ++range)
      job.merge(tile, states, job.partial_states(tile, range));
    job.finish(tile, states);
  }
}
