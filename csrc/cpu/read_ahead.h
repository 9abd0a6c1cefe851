// ReadAhead: has the processor fetch the pages that a thread will soon read, in the order in which it reads them. Included
// inside the level's namespace, by kernels.cpp.
//
// A decode reads each key and value once, for few operations, and the blocks of a request lie anywhere. Left to itself
// the processor waits at the start of every block; here it is told which lines come, kAhead bytes before they are needed,
// over the borders of blocks, ranges and requests.

constexpr int64_t kAhead = 1 << 14;  // a third of a first cache

template <typename Stored>
class ReadAhead {
 public:
  // Of the segments first ... end - 1 of the job.
  ReadAhead(const AttentionJob& job, int64_t first, int64_t end) : job_(job), segment_(first), end_(end) {
    open_segment();
    fetch(kAhead);
  }

  // Fetches the next `bytes`.
  void fetch(int64_t bytes) {
    for (int64_t wanted = bytes / kLine; wanted > 0;) {
      if (lines_left_ == 0 && !open_run()) return;
      const int64_t count = std::min(wanted, lines_left_);
      for (int64_t line = 0; line < count; ++line) __builtin_prefetch(next_ + line * kLine);
      next_ += count * kLine;
      lines_left_ -= count;
      wanted -= count;
    }
  }

 private:
  void open_segment() {
    if (segment_ == end_) return;
    bounds_ = job_.bounds_of(segment_);
    key_ = bounds_.first;
    head_ = 0;
    of_values_ = false;
  }

  // Goes on to the next KV head of a block, block, side of the cache, or segment. Heads that lie together are one run.
  bool open_run() {
    if (segment_ == end_) return false;
    const QueryTile& tile = job_.tile_of(segment_);
    const KVCache& cache = job_.args.cache;
    const Pages<Stored> pages = {cache};
    const int64_t offset = key_ % cache.block_size, kv_head = tile.first_kv_head + head_;
    const int64_t count = std::min(cache.block_size - offset, bounds_.end - key_);
    const int64_t block = job_.blocks_of(tile)[key_ / cache.block_size];
    const int64_t heads = of_values_ && count < cache.block_size ? 1 : tile.num_kv_heads;
    if (of_values_) {
      open(pages.values(block, kv_head) + offset * cache.head_dim, heads * count * cache.head_dim);
    } else {
      open(pages.keys(block, kv_head), heads * cache.block_size * cache.head_dim);
      if constexpr (std::is_same_v<Stored, int8_t>) fetch_scales(pages, block, kv_head, heads);
    }
    head_ += heads;
    if (head_ < tile.num_kv_heads) return true;
    head_ = 0;
    key_ += count;
    if (key_ < bounds_.end) return true;
    key_ = bounds_.first;
    if (of_values_) ++segment_, open_segment();
    else of_values_ = true;
    return true;
  }

  // Of keys and values, since both are needed when the keys have been read.
  static void fetch_scales(const Pages<Stored>& pages, int64_t block, int64_t kv_head, int64_t heads) {
    for (int64_t offset = 0; offset < heads * pages.cache.block_size; offset += kLine / sizeof(float)) {
      __builtin_prefetch(pages.key_scales(block, kv_head) + offset);
      __builtin_prefetch(pages.value_scales(block, kv_head) + offset);
    }
  }

  void open(const Stored* from, int64_t count) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(from) / kLine * kLine;
    next_ = reinterpret_cast<const char*>(start);
    lines_left_ = (reinterpret_cast<uintptr_t>(from + count) - start + kLine - 1) / kLine;
  }

  const AttentionJob& job_;
  int64_t segment_, end_;
  KeyBounds bounds_ = {};
  int64_t key_ = 0, head_ = 0;
  bool of_values_ = false;
  const char* next_ = nullptr;
  int64_t lines_left_ = 0;
};
