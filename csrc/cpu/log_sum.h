// The logarithm of a row's sum of e^x, found in the pass that scans the row. Included inside the level's namespace.
//
// A block is scanned and summed while it is in the nearest cache. Sums are of e^(x - the largest logit so far), and are
// scaled when a larger one comes, so that nothing overflows and the best token's share is exact.

constexpr int64_t kSumBlock = 4096;  // a multiple of what scan_row takes at once

constexpr int kTogether = 8;  // vectors that are summed up as floats, before doubles take their sum

// The sum of e^(x - best). Its order depends on the place in the block alone.
inline double sum_of_exp(const float* logits, int64_t size, float best) {
  DoubleVector sums[2] = {};
  const auto add = [&](Vector weights) {
    sums[0] += widen_half<0>(weights, HalfLanes());
    sums[1] += widen_half<kLanes / 2>(weights, HalfLanes());
  };
  const auto weigh = [=](Vector x) { return exp2((x - best) * 1.44269504f); };
  int64_t index = 0;
  for (; index + kTogether * kLanes <= size; index += kTogether * kLanes) {
    Vector weights[kTogether];
#pragma GCC unroll 8
    for (int part = 0; part < kTogether; ++part) weights[part] = weigh(load(logits + index + part * kLanes));
    add(((weights[0] + weights[1]) + (weights[2] + weights[3])) + ((weights[4] + weights[5]) + (weights[6] + weights[7])));
  }
  for (; index < size; index += kLanes) add(weigh(SoftmaxWeights::load_row(logits, index, size)));
  const DoubleVector both = sums[0] + sums[1];
  double total = 0;
  for (int lane = 0; lane < kLanes / 2; ++lane) total += both[lane];
  return total;
}

// scan_row, and log(sum of e^(x - scan.best)): meaningless unless the scan is finite.
inline RowScan scan_and_sum(const float* row, int64_t size, float* maxima, float& log_total) {
  RowScan scan{-__builtin_inff(), false};
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t length = std::min(kSumBlock, size - begin);
    const RowScan block = scan_row(row + begin, length, maxima + begin / kGroup);
    scan.has_nan |= block.has_nan;
    if (block.best > scan.best) {
      total *= std::exp(static_cast<double>(scan.best) - block.best);
      scan.best = block.best;
    }
    if (scan.best > -__builtin_inff()) total += sum_of_exp(row + begin, length, scan.best);
  }
  log_total = static_cast<float>(std::log(total));
  return scan;
}
