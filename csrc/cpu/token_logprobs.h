// Scores of chosen tokens and of the best ones, in two passes over a row. Included inside the level's namespace.

// A value and its token as one number: greater for a larger value, and of equal ones for the lower token.
inline uint64_t ordered(float value, int64_t token) {
  const float positive_zero = value + 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &positive_zero, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | UINT32_C(0x80000000);
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~token);
}

inline int64_t token_of(uint64_t ordered) { return static_cast<uint32_t>(~ordered); }

inline int32_t rank_of(const float* row, int64_t size, float value) {
  IntVector above = {};
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes) above -= load(row + index) > value;
  int32_t rank = 1;
  for (int lane = 0; lane < kLanes; ++lane) rank += above[lane];
  for (; index < size; ++index) rank += row[index] > value;
  return rank;
}

// The k best tokens, best first: [k] of memory.weights, as ordered() gives them.
inline void find_best_tokens(const float* row, int64_t size, int64_t k, RowMemory& memory) {
  const float bound = bound_of_kth(memory.maxima.data(), num_groups(size), k, memory.partition);
  int64_t count = collect(row, size, 1.0f, bound, memory);
  uint64_t worst = 0;
  if (k < count) {
    const int64_t last = last_of_best(memory.values.data(), count, k, [](int32_t) { return 1; }, memory.positions);
    worst = ordered(memory.values[last], memory.token_ids[last]);
  }
  int64_t kept = 0;
  for (int64_t position = 0; position < count; ++position) {
    const uint64_t candidate = ordered(memory.values[position], memory.token_ids[position]);
    memory.weights[kept] = candidate;
    kept += candidate >= worst;
  }
  std::sort(memory.weights.begin(), memory.weights.begin() + k, std::greater<uint64_t>());
}

inline void score_row(const LogprobsArgs& args, int64_t index) {
  RowMemory& memory = RowMemory::of_size(args.vocab_size);
  const float* row = args.logits + args.rows[index] * args.vocab_size;
  int32_t* token_ids = args.token_ids + index * (1 + args.k);
  float* scores = args.scores + index * (1 + args.k);
  token_ids[0] = static_cast<int32_t>(args.targets[index]);
  const RowScan scan = scan_row(row, args.vocab_size, memory.maxima.data());
  if (!scan.is_finite()) {  // no score is a number, and no token better than another
    for (int64_t place = 0; place < args.k; ++place) token_ids[1 + place] = static_cast<int32_t>(place);
    std::fill_n(scores, 1 + args.k, __builtin_nanf(""));
    args.ranks[index] = 1;
    return;
  }
  args.ranks[index] = rank_of(row, args.vocab_size, row[token_ids[0]]);
  if (args.k > 0) find_best_tokens(row, args.vocab_size, args.k, memory);
  for (int64_t place = 0; place < args.k; ++place) token_ids[1 + place] = token_of(memory.weights[place]);
  for (int64_t place = 0; place < 1 + args.k; ++place) scores[place] = row[token_ids[place]];
  if (!args.normalised) return;
  const SoftmaxWeights softmax{1.0f, scan.best};
  const double total = std::ldexp(static_cast<double>(softmax.sum(row, args.vocab_size)), -kWeightBits);
  const float log_total = static_cast<float>(std::log(total));
  for (int64_t place = 0; place < 1 + args.k; ++place) scores[place] = scores[place] - scan.best - log_total;
}

inline void token_logprobs(const LogprobsArgs& args) {
  pool().run(args.num_rows, [&](int64_t index) { score_row(args, index); });
}
