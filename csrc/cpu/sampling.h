// Choosing tokens: the best one, or one drawn from what temperature, min_p, top_k and top_p leave; and truncation alone.
// Included inside the level's namespace.
//
// Nothing is sorted. A lower bound of what can remain comes cheaply: from min_p directly, for top_k from the largest
// logits of groups, for top_p from the sum of all weights. The few logits that reach it are collected, in the order of
// their tokens, and the exact ends of top_k and top_p are searched among them.

constexpr int64_t kNoToken = -1;
constexpr int64_t kWeightBlock = 1024;  // logits whose weights are summed up before a token is looked for in them

// A thread's memory, kept for the next row.
struct RowMemory {
  std::vector<float> maxima, partition, values;
  std::vector<int32_t> token_ids, positions;
  std::vector<uint64_t> weights;

  static RowMemory& of_size(int64_t size) {
    static thread_local RowMemory memory;
    if (static_cast<int64_t>(memory.values.size()) < size + kLanes) {
      memory.maxima.resize(num_groups(size));
      memory.values.resize(size + kLanes);
      memory.token_ids.resize(size + kLanes);
      memory.weights.resize(size + kLanes);
    }
    return memory;
  }
};

// Collects, in the order of their tokens, the logits whose scaled values reach the bound; returns how many.
inline int64_t collect(const float* row, int64_t size, float temperature, float bound, RowMemory& memory) {
  // Rounding must not hide a group: whether a logit counts is decided after the division.
  const float surely_below = bound * temperature - std::fabs(bound * temperature) * 1e-6f;
  int64_t count = 0;
  const auto reaches = [=](auto largest) { return largest >= surely_below; };
  visit_groups(memory.maxima.data(), num_groups(size), reaches, [&](int64_t group) {
    for (int64_t first = group * kGroup; first < std::min(size, (group + 1) * kGroup); first += kLanes) {
      const Vector values = SoftmaxWeights::load_row(row, first, size) / temperature;
      float lanes[kLanes];
      store(lanes, values);
      const uint32_t inside = (UINT32_C(1) << std::min<int64_t>(kLanes, size - first)) - 1;
      for (uint32_t bits = lane_bits(values >= bound) & inside; bits != 0; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        memory.values[count] = lanes[lane];
        memory.token_ids[count] = static_cast<int32_t>(first + lane);
        ++count;
      }
    }
  });
  return count;
}

// Keeps the first `count` collected ones for which keep(position) holds; returns how many.
template <typename Keep>
inline int64_t keep_some(int64_t count, RowMemory& memory, const Keep& keep) {
  int64_t kept = 0;
  for (int64_t position = 0; position < count; ++position) {
    const bool stays = keep(position);
    memory.values[kept] = memory.values[position];
    memory.token_ids[kept] = memory.token_ids[position];
    memory.weights[kept] = memory.weights[position];
    kept += stays;
  }
  return kept;
}

inline uint64_t sum_of_first(const std::vector<uint64_t>& weights, int64_t count) {
  uint64_t total = 0;
  for (int64_t position = 0; position < count; ++position) total += weights[position];
  return total;
}

inline float* row_of(const DrawArgs& args, int64_t index) { return args.logits + args.rows[index] * args.vocab_size; }

// One row and what is to be done with it.
struct RowDraw {
  const float* row;
  int64_t size;
  float temperature, log_min_p;
  int64_t top_k;
  double top_p;
  RowMemory& memory;
  RowScan scan;
  SoftmaxWeights softmax;

  // The row has been scanned into memory.maxima.
  RowDraw(const DrawArgs& args, int64_t index, RowMemory& memory, const RowScan& scan)
      : row(row_of(args, index)),
        size(args.vocab_size),
        temperature(args.temperature[index]),
        log_min_p(args.log_min_p[index]),
        top_k(args.top_k[index]),
        top_p(args.top_p[index]),
        memory(memory),
        scan(scan),
        softmax{temperature, scan.best / temperature} {}

  bool has_distribution() const { return scan.is_finite() && std::isfinite(softmax.best); }
  bool truncates() const { return top_k < size || top_p < 1.0 || std::isfinite(log_min_p); }

  // Leaves in memory the values, tokens and weights of what remains; returns how many.
  int64_t remaining() const {
    // What is below is impossible already.
    float bound = std::max(softmax.best + log_min_p, std::numeric_limits<float>::lowest());
    uint64_t total = 0;
    if (top_k < size) {
      const float kth = bound_of_kth(memory.maxima.data(), num_groups(size), top_k, memory.partition);
      bound = std::max(bound, kth / temperature);
    } else if (top_p < 1.0) {
      total = softmax.sum(row, size, bound);
      bound = std::max(bound, bound_of_top_p(total));
    }
    int64_t count = collect(row, size, temperature, bound, memory);
    const float* values = memory.values.data();
    if (top_k < count) {
      const float kth = values[last_of_best(values, count, top_k, [](int32_t) { return 1; }, memory.positions)];
      count = keep_some(count, memory, [&](int64_t position) { return values[position] >= kth; });
    }
    softmax.weigh(memory.weights.data(), values, count);
    if (top_p < 1.0) count = keep_top_p(count, total);
    return count;
  }

  // Logits below are so unlikely that, were they all there are, they would not make up 1 - top_p of the total.
  float bound_of_top_p(uint64_t total) const {
    const double weight = (1.0 - top_p) * std::ldexp(static_cast<double>(total), -kWeightBits) / size;
    // Smaller weights are not exact enough; the sixteenth is for the rounding of the others.
    return weight < 0x1p-40 ? -__builtin_inff() : softmax.best + static_cast<float>(std::log(weight)) - 0.0625f;
  }

  // total: of all that top_p looks at; 0 means of the first `count`.
  int64_t keep_top_p(int64_t count, uint64_t total) const {
    const uint64_t collected = sum_of_first(memory.weights, count);
    const double share = top_p * static_cast<double>(total == 0 ? collected : total);
    const uint64_t limit = std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(share)), 1, collected);
    const float* values = memory.values.data();
    const uint64_t* weights = memory.weights.data();
    const int64_t last =
        last_of_best(values, count, limit, [=](int32_t position) { return weights[position]; }, memory.positions);
    const float lowest = values[last];
    return keep_some(count, memory, [=](int64_t position) {
      return values[position] > lowest || (values[position] == lowest && position <= last);
    });
  }

  // The first token, in the order of ids, at which the sum of weights exceeds uniform * total.
  int64_t draw(double uniform) const {
    if (!has_distribution()) return kNoToken;
    if (!truncates()) return draw_from_all(uniform);
    const int64_t count = remaining();
    uint64_t target = share_of(sum_of_first(memory.weights, count), uniform);
    return memory.token_ids[position_of(memory.weights.data(), target)];
  }

  // The same without collecting: sums of blocks, then the block that the token is in.
  int64_t draw_from_all(double uniform) const {
    const int64_t num_blocks = (size + kWeightBlock - 1) / kWeightBlock;
    const auto begin_of = [&](int64_t block) { return row + block * kWeightBlock; };
    const auto size_of = [&](int64_t block) { return std::min(kWeightBlock, size - block * kWeightBlock); };
    uint64_t* sums = memory.weights.data();
    for (int64_t block = 0; block < num_blocks; ++block) sums[block] = softmax.sum(begin_of(block), size_of(block));
    uint64_t target = share_of(sum_of_first(memory.weights, num_blocks), uniform);
    const int64_t block = position_of(sums, target);
    uint64_t weights[kWeightBlock];
    for (int64_t index = 0; index < size_of(block); index += kLanes)
      softmax.weigh(weights + index, softmax.scale(SoftmaxWeights::load_row(begin_of(block), index, size_of(block))));
    return block * kWeightBlock + position_of(weights, target);
  }

  // floor(uniform * total), exactly: a uniform number has 53 bits.
  static uint64_t share_of(uint64_t total, double uniform) {
    const auto numerator = static_cast<uint64_t>(uniform * 0x1p53);
    return static_cast<uint64_t>(static_cast<unsigned __int128>(numerator) * total >> 53);
  }

  // Where the sum exceeds the target, from which the weights before it are taken. The sum of all does exceed it.
  static int64_t position_of(const uint64_t* weights, uint64_t& target) {
    int64_t position = 0;
    for (; weights[position] <= target; ++position) target -= weights[position];
    return position;
  }
};

inline int64_t best_token(const float* row, int64_t size, const RowMemory& memory, const RowScan& scan) {
  return scan.is_finite() ? find_best(row, size, memory.maxima.data(), scan.best) : kNoToken;
}

inline void best_tokens(int64_t* token_ids, const float* logits, const int64_t* rows, int64_t num_rows,
                        int64_t vocab_size) {
  pool().run(num_rows, [&](int64_t index) {
    const float* row = logits + rows[index] * vocab_size;
    RowMemory& memory = RowMemory::of_size(vocab_size);
    const RowScan scan = scan_row(row, vocab_size, memory.maxima.data());
    token_ids[index] = best_token(row, vocab_size, memory, scan);
  });
}

inline void draw_tokens(int64_t* token_ids, const double* uniforms, const DrawArgs& args) {
  pool().run(args.num_rows, [&](int64_t index) {
    RowMemory& memory = RowMemory::of_size(args.vocab_size);
    const RowScan scan = scan_row(row_of(args, index), args.vocab_size, memory.maxima.data());
    token_ids[index] = RowDraw(args, index, memory, scan).draw(uniforms[index]);
  });
}

inline void truncate_logits(const DrawArgs& args) {
  pool().run(args.num_rows, [&](int64_t index) {
    RowMemory& memory = RowMemory::of_size(args.vocab_size);
    float* row = row_of(args, index);
    const RowDraw draw(args, index, memory, scan_row(row, args.vocab_size, memory.maxima.data()));
    if (draw.has_distribution() && draw.truncates()) {
      const int64_t count = draw.remaining();
      std::fill_n(row, args.vocab_size, -__builtin_inff());
      for (int64_t position = 0; position < count; ++position)
        row[memory.token_ids[position]] = memory.values[position];
    } else if (draw.temperature != 1.0f) {
      for (int64_t token = 0; token < args.vocab_size; ++token) row[token] /= draw.temperature;
    }
  });
}
