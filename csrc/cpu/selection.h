// Finding where the best few of many numbers end, without sorting them: a histogram of the values tells which of its
// buckets the end is in; that bucket alone is looked at again. Included inside the level's namespace.

constexpr int kBuckets = 1024;
constexpr int64_t kFewEnough = 32;  // to be sorted

// Which bucket a value is in: equal widths from the largest value to the smallest finite one, and one for -infinity.
struct ValueBuckets {
  double highest = -__builtin_inf(), lowest = __builtin_inf();
  bool has_infinite = false;
  double per_unit = 0;

  void include(float value) {
    if (value == -__builtin_inff()) {
      has_infinite = true;
      return;
    }
    highest = std::max<double>(highest, value);
    lowest = std::min<double>(lowest, value);
  }

  // To be called after the last include; whether there are two different values.
  bool divide() {
    if (!(highest > lowest)) return has_infinite && highest == lowest;
    per_unit = (kBuckets - 2) / (highest - lowest);
    return true;
  }

  int bucket(float value) const {
    return value == -__builtin_inff() ? kBuckets - 1 : static_cast<int>((highest - value) * per_unit);
  }
};

// The position of the last of the best values whose weights together reach `limit`: larger values are better, and of
// equal ones those that come first. weight(position) is a whole number; all together reach the limit, which is not 0.
template <typename Weight>
inline int64_t last_of_best(const float* values, int64_t size, uint64_t limit, const Weight& weight,
                            std::vector<int32_t>& positions) {
  positions.resize(size);
  for (int64_t index = 0; index < size; ++index) positions[index] = static_cast<int32_t>(index);
  uint64_t weights[kBuckets];
  while (size > kFewEnough) {
    ValueBuckets buckets;
    for (int64_t index = 0; index < size; ++index) buckets.include(values[positions[index]]);
    if (!buckets.divide()) break;
    std::fill_n(weights, kBuckets, 0);
    for (int64_t index = 0; index < size; ++index)
      weights[buckets.bucket(values[positions[index]])] += weight(positions[index]);
    int chosen = 0;
    for (; weights[chosen] < limit; ++chosen) limit -= weights[chosen];
    int64_t count = 0;
    for (int64_t index = 0; index < size; ++index) {
      const int32_t position = positions[index];
      positions[count] = position;
      count += buckets.bucket(values[position]) == chosen;
    }
    size = count;
  }
  if (size <= kFewEnough)
    std::stable_sort(positions.begin(), positions.begin() + size,
                     [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  int64_t last = 0;
  for (uint64_t own; (own = weight(positions[last])) < limit; ++last) limit -= own;
  return positions[last];
}
