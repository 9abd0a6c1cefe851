// One pass over a row of logits: its largest, whether it is a number, and the largest of every 16, which later passes
// use to skip what cannot matter. Included inside the level's namespace.

constexpr int64_t kGroup = 16;

inline int64_t num_groups(int64_t size) { return (size + kGroup - 1) / kGroup; }

struct RowScan {
  float best;    // meaningless with NaN
  bool has_nan;

  // No NaN, no +infinity, and not all of it -infinity.
  bool is_finite() const { return !has_nan && std::isfinite(best); }
};

// Lane l of rows[0] becomes the largest lane of rows[l]; the others are used up.
template <size_t kDistance = kLanes / 2>
inline void largest_of_each(Vector (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (size_t row = 0; row < kDistance; ++row) {
    exchange_quarters<kDistance>(rows[row], rows[row + kDistance], Lanes());
    rows[row] = largest_of(rows[row], rows[row + kDistance]);
  }
  if constexpr (kDistance > 1) largest_of_each<kDistance / 2>(rows);
}

// maxima: [num_groups(size)].
inline RowScan scan_row(const float* row, int64_t size, float* maxima) {
  constexpr int64_t kBlock = kLanes * kGroup;
  Vector best = broadcast(-__builtin_inff());
  IntVector largest_magnitude = {};  // as bits: above infinity's for NaN
  int64_t index = 0;
  for (; index + kBlock <= size; index += kBlock) {
    Vector groups[kLanes];
#pragma GCC unroll 16
    for (int group = 0; group < kLanes; ++group) {
      groups[group] = broadcast(-__builtin_inff());
#pragma GCC unroll 4
      for (int part = 0; part < kGroup / kLanes; ++part) {
        const Vector x = load(row + index + group * kGroup + part * kLanes);
        const IntVector magnitude = (IntVector)x & 0x7fffffff;
        largest_magnitude = magnitude > largest_magnitude ? magnitude : largest_magnitude;
        groups[group] = largest_of(x, groups[group]);
      }
    }
    largest_of_each(groups);
    store(maxima + index / kGroup, groups[0]);
    best = largest_of(groups[0], best);
  }
  RowScan scan{max_lanes(best)[0], false};
  for (int lane = 0; lane < kLanes; ++lane) scan.has_nan |= largest_magnitude[lane] > 0x7f800000;
  for (; index < size; index += kGroup) {
    float largest = -__builtin_inff();
    for (int64_t at = index; at < std::min(size, index + kGroup); ++at) {
      scan.has_nan |= std::isnan(row[at]);
      largest = std::max(largest, row[at]);
    }
    maxima[index / kGroup] = largest;
    scan.best = std::max(scan.best, largest);
  }
  return scan;
}

// visit(group) for each group whose largest logit passes the test, in order. test: of a Vector, and of a float.
template <typename Test, typename Visit>
inline void visit_groups(const float* maxima, int64_t count, const Test& test, const Visit& visit) {
  int64_t group = 0;
  for (; group + kLanes <= count; group += kLanes)
    for (uint32_t bits = lane_bits(test(load(maxima + group))); bits != 0; bits &= bits - 1)
      visit(group + __builtin_ctz(bits));
  for (; group < count; ++group)
    if (test(maxima[group])) visit(group);
}

// The first token with the row's largest logit.
inline int64_t find_best(const float* row, int64_t size, const float* maxima, float best) {
  int64_t group = 0;
  while (group + kLanes <= num_groups(size) && lane_bits(load(maxima + group) == best) == 0) group += kLanes;
  while (maxima[group] != best) ++group;
  int64_t token = group * kGroup;
  while (row[token] != best) ++token;
  return token;
}

// A lower bound of the k-th largest logit, near it: k different logits reach it. -infinity if there are not that many
// groups.
inline float bound_of_kth(const float* maxima, int64_t count, int64_t k, std::vector<float>& memory) {
  if (k > count) return -__builtin_inff();
  memory.assign(maxima, maxima + count);
  // Any partition of the row will do; a coarser one is faster to look through.
  while (count >= 4 * k) {
    const int64_t half = (count + 1) / 2;
    for (int64_t index = 0; index + half < count; ++index) memory[index] = std::max(memory[index], memory[index + half]);
    count = half;
  }
  const auto kth = memory.begin() + (k - 1);
  std::nth_element(memory.begin(), kth, memory.begin() + count, std::greater<float>());
  return *kth;
}
