// How the work of a call of paged attention is cut, and who gets what. Included inside the level's namespace, by
// kernels.cpp.
//
// A request's queries are cut into query tiles. The rows of a KV head (each query times the query heads that share the
// KV head) meet its keys together, so that keys and values are read once for all of them. The keys are cut into ranges
// of kRange, at multiples of kRange, each attended to by itself; their results are merged in ascending order. A query
// tile and a range of its keys are a segment:
//
//     positions        0        256       512       768
//     ranges           |---------|---------|----           a long decode: its segments may be done by several threads
//
// The cuts of the keys stand at fixed positions whatever the step, so a query's result is the same to the bit however
// its prompt was chunked. Which heads are done together and which segments by whom decides only when it is done.

constexpr int64_t kQueryTileRows = 192;  // rows that share the cost of packing a tile of keys
constexpr int64_t kMaxPartials = 8192;  // rows * ranges of a query tile whose segments may be anybody's
constexpr int64_t kSmallJob = 300000;   // multiply-adds that are done before another thread is awake
constexpr int64_t kManyParts = 16;      // pieces of work that keep all threads busy to the end

// Queries of one request that are attended to together. A decode takes all heads in one go if there is other work
// for the other threads, and so reads whole pages of the cache; a prefill takes one at a time.
struct QueryTile {
  int64_t request;
  int64_t first_token;  // in the batch
  int64_t num_queries, first_position;
  int64_t first_kv_head, num_kv_heads;
  int64_t first_range = 0, end_range = 0;
  int64_t partials = -1;  // where the states of its ranges are, in the job's memory; -1: one thread does all of them
};

struct Segment {
  int64_t tile, range;
};

// The segments first ... end - 1, which one thread does.
struct Part {
  int64_t first, end;
};

// Positions of keys.
struct KeyBounds {
  int64_t first, end;
};

struct AttentionJob {
  const AttentionArgs& args;
  std::vector<QueryTile>& tiles;
  std::vector<Segment>& segments;
  std::vector<Part>& parts;
  const int64_t group = args.num_heads / args.cache.num_kv_heads;
  const int64_t padded_dim = round_up_to_lanes(args.cache.head_dim);
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
  const int32_t* blocks_of(const QueryTile& tile) const {
    return args.block_table + tile.request * args.block_table_stride;
  }
  const QueryTile& tile_of(int64_t segment) const { return tiles[segments[segment].tile]; }

  // The keys that a segment's queries see, some of them or all.
  KeyBounds bounds_of(int64_t segment) const {
    const QueryTile& tile = tile_of(segment);
    const int64_t start = segments[segment].range * kRange;
    return {std::max(start, oldest_visible(tile.first_position)),
            std::min(start + kRange, tile.first_position + tile.num_queries)};
  }

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

  void merge(const QueryTile& tile, float* states, float* later_states) const {
    for (int64_t row = 0; row < num_rows(tile); ++row) state(states, row).merge(state(later_states, row));
  }

  void finish(const QueryTile& tile, float* states) const {
    for (int64_t row = 0; row < num_rows(tile); ++row) {
      const Place place = place_of(tile, row);
      float* output = args.output + (place.token * args.num_heads + place.head) * args.cache.head_dim;
      state(states, row).finish(output, args.cache.head_dim);
    }
  }

  void plan();
  int64_t kv_heads_at_once(int64_t num_queries, int64_t first_position) const;
  void plan_tile(QueryTile tile, bool is_only_one);
  void share_out();
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
  share_out();
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
  if (is_only_one && num_ranges > 1 && num_rows(tile) * num_ranges <= kMaxPartials) {
    tile.partials = num_partials;
    num_partials += num_rows(tile) * num_ranges;
  }
  for (int64_t range = tile.first_range; range < tile.end_range; ++range)
    segments.push_back({static_cast<int64_t>(tiles.size()), range});
  tiles.push_back(tile);
}

// Each part is a third of a thread's share of what is left: large ones first, for what follows to be fetched in time, and
// small ones last, for all threads to end together.
inline void AttentionJob::share_out() {
  const int64_t num_segments = static_cast<int64_t>(segments.size()), shares = 3 * pool().num_threads();
  int64_t left = multiply_adds, first = 0, work = 0;
  for (int64_t index = 0; index < num_segments; ++index) {
    const QueryTile& tile = tile_of(index);
    const KeyBounds keys = bounds_of(index);
    work += 2 * num_rows(tile) * (keys.end - keys.first) * args.cache.head_dim;
    const bool is_last = index + 1 == num_segments;
    const bool can_end = is_last || tile.partials >= 0 || segments[index + 1].tile != segments[index].tile;
    if (!is_last && (!can_end || work * shares < left)) continue;
    parts.push_back({first, index + 1});
    first = index + 1;
    left -= work;
    work = 0;
  }
}
