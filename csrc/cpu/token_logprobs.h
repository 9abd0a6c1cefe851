// Scores of chosen tokens and of the best ones, in one pass over a row: what follows looks only into groups of logits
// whose largest says that it must. Included inside the level's namespace.

// A value and its token as one number: greater for a larger value, and of equal ones for the lower token.
inline uint64_t ordered(float value, int64_t token) {
  const float positive_zero = value + 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &positive_zero, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | UINT32_C(0x80000000);
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~token);
}

inline int64_t token_of(uint64_t ordered) { return static_cast<uint32_t>(~ordered); }

// 1 + the number of logits above the value; the row has been scanned into `maxima`.
inline int32_t rank_of(const float* row, int64_t size, const float* maxima, float value) {
  int64_t rank = 1;
  IntVector above = {};
  visit_groups(maxima, num_groups(size), [=](auto largest) { return largest > value; }, [&](int64_t group) {
    for (int64_t first = group * kGroup; first < std::min(size, (group + 1) * kGroup); first += kLanes)
      above -= SoftmaxWeights::load_row(row, first, size) > value;  // -infinity, behind the end, is above nothing
  });
  for (int lane = 0; lane < kLanes; ++lane) rank += above[lane];
  return static_cast<int32_t>(rank);
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

// Writes the scores of a row that has been scanned into memory.maxima. log_total: 0 for scores that are logits.
inline void score_row(const ScoreArgs& to, int64_t place, const float* row, int64_t size, int64_t target,
                      const RowScan& scan, float log_total, RowMemory& memory) {
  int32_t* token_ids = to.token_ids + place * (1 + to.k);
  float* scores = to.scores + place * (1 + to.k);
  token_ids[0] = static_cast<int32_t>(target);
  if (!scan.is_finite()) {  // no score is a number, and no token better than another
    for (int64_t rank = 0; rank < to.k; ++rank) token_ids[1 + rank] = static_cast<int32_t>(rank);
    std::fill_n(scores, 1 + to.k, __builtin_nanf(""));
    to.ranks[place] = 1;
    return;
  }
  to.ranks[place] = rank_of(row, size, memory.maxima.data(), row[target]);
  if (to.k > 0) find_best_tokens(row, size, to.k, memory);
  for (int64_t rank = 0; rank < to.k; ++rank) token_ids[1 + rank] = token_of(memory.weights[rank]);
  for (int64_t rank = 0; rank < 1 + to.k; ++rank) {
    const float logit = row[token_ids[rank]];
    scores[rank] = to.normalised ? logit - scan.best - log_total : logit;
  }
}

// What score_row needs to know of a row.
inline RowScan scan_for_scores(const ScoreArgs& to, const float* row, int64_t size, RowMemory& memory,
                               float& log_total) {
  return to.normalised ? scan_and_sum(row, size, memory.maxima.data(), log_total)
                       : scan_row(row, size, memory.maxima.data());
}

inline void token_logprobs(const LogprobsArgs& args) {
  pool().run(args.num_rows, [&](int64_t index) {
    RowMemory& memory = RowMemory::of_size(args.vocab_size);
    const float* row = args.logits + args.rows[index] * args.vocab_size;
    float log_total = 0;
    const RowScan scan = scan_for_scores(args.to, row, args.vocab_size, memory, log_total);
    score_row(args.to, index, row, args.vocab_size, args.targets[index], scan, log_total, memory);
  });
}

// Chooses a token for each row, and scores it while the row is near.
inline void choose_tokens(int64_t* token_ids, const double* uniforms, const bool* is_random, const DrawArgs& args,
                          const ScoreArgs* to, const int64_t* places) {
  pool().run(args.num_rows, [&](int64_t index) {
    RowMemory& memory = RowMemory::of_size(args.vocab_size);
    const float* row = row_of(args, index);
    const bool is_scored = to != nullptr && places[index] >= 0;
    float log_total = 0;
    const RowScan scan = is_scored ? scan_for_scores(*to, row, args.vocab_size, memory, log_total)
                                   : scan_row(row, args.vocab_size, memory.maxima.data());
    const int64_t token = is_random[index] ? RowDraw(args, index, memory, scan).draw(uniforms[index])
                                           : best_token(row, args.vocab_size, memory, scan);
    token_ids[index] = token;
    if (is_scored)
      score_row(*to, places[index], row, args.vocab_size, std::max<int64_t>(token, 0), scan, log_total, memory);
  });
}
