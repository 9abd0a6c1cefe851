// What a range of keys adds to the attention of a query row: scores become weights, and ranges are merged. Included
// inside the level's namespace, by kernels.cpp.

constexpr int64_t kRange = 256;  // keys that are attended to by themselves, from a multiple of kRange
constexpr float kLog2e = 1.44269504f;

// The attention of a query row to some ranges: the sum of weight * value, [padded_dim], then the sum of the weights, one
// sum a lane, then the largest score, in every lane. A weight is 2^(score - largest score); scores count in units of
// ln 2, so that it is e^(...) of what the model calls a score.
struct State {
  float* values;
  int64_t padded_dim;

  static int64_t size(int64_t padded_dim) { return padded_dim + 2 * kLanes; }
  float* weight_sums() const { return values + padded_dim; }
  float* largest() const { return values + padded_dim + kLanes; }

  void clear() const {
    for (int64_t d = 0; d < padded_dim + kLanes; d += kLanes) store(values + d, Vector{});
    store(largest(), broadcast(-std::numeric_limits<float>::infinity()));
  }

  // Makes the values from sums of products of integers.
  void complete(float factor) const {
    for (int64_t d = 0; d < padded_dim; d += kLanes)
      store(values + d, __builtin_convertvector(load_sums<IntVector>(values + d), Vector) * factor);
  }

  bool is_empty() const { return *largest() == -std::numeric_limits<float>::infinity(); }

  // Takes in the attention to later keys.
  void merge(const State& later) const {
    if (later.is_empty()) return;
    const Vector new_largest = largest_of(load(largest()), load(later.largest()));
    const Vector factor = exp2(load(largest()) - new_largest);
    const Vector later_factor = exp2(load(later.largest()) - new_largest);
    for (int64_t d = 0; d < padded_dim + kLanes; d += kLanes)
      store(values + d, load(values + d) * factor + load(later.values + d) * later_factor);
    store(largest(), new_largest);
  }

  void finish(float* output, int64_t dim) const {
    const Vector factor = broadcast(1.0f / sum_lanes(load(weight_sums())));
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vector value = load(values + d) * factor;
      if (d + kLanes <= dim) store(output + d, value);
      else store_first(output + d, value, dim - d);
    }
  }
};

// Keys of a range, counted from its start.
struct KeySpan {
  int64_t first, end;
  bool is_empty() const { return first >= end; }
  KeySpan within(int64_t tile) const { return {std::max(first, tile), std::min(end, tile + kTile)}; }
  int64_t first_vector() const { return first / kLanes; }
  int64_t end_vector() const { return (end + kLanes - 1) / kLanes; }
};

// The scales of one KV head's keys and values in a range, [kRange] each, and the step of a row's query; those that
// numbers do not have are not read.
struct Scales {
  const float *keys, *values;
  float query;
};

// The scores of the vectors of `computed` made what the model calls for, and the largest one that is in sight, in every
// lane. Those out of sight become -infinity.
template <typename Stored, bool kIsCapped>
inline Vector complete_scores(float* scores, KeySpan computed, KeySpan visible, Scales scales, float softcap) {
  constexpr bool kIsScaled = std::is_same_v<Stored, int8_t>;
  const Vector nothing = broadcast(-std::numeric_limits<float>::infinity());
  Vector largest = nothing;
  for (int64_t v = computed.first_vector(); v < computed.end_vector(); ++v) {
    const int64_t start = v * kLanes;
    const bool is_cut = start < visible.first || start + kLanes > visible.end;
    Vector score;
    if constexpr (Factors<Stored>::kAreIntegers)
      score = __builtin_convertvector(load_sums<IntVector>(scores + start), Vector) * scales.query;
    else score = load(scores + start);
    if constexpr (kIsScaled) score *= load(scales.keys + start);
    if constexpr (kIsCapped) score = softcap * kLog2e * tanh(score / softcap);
    if (is_cut) {
      const IntVector key = lane_numbers(Lanes()) + static_cast<int32_t>(start);
      const auto is_visible = (key >= static_cast<int32_t>(visible.first)) & (key < static_cast<int32_t>(visible.end));
      score = is_visible ? score : nothing;
    }
    if (kIsScaled || kIsCapped || is_cut) store(scores + start, score);
    largest = largest_of(largest, score);
  }
  return max_lanes(largest);
}

// Turns a row of products of query and key into weights, of which those out of sight are 0, and starts the row's state
// with their sum. The weights come out as factors in the place of the scores, multiplied by the values' scales; of
// rounded ones the sum is taken, so that they add up to 1 in the end. Returns what their products with values are to be
// multiplied by.
template <typename Stored, bool kIsCapped>
inline float weigh_row(float* scores, KeySpan computed, KeySpan visible, Scales scales, float softcap, const State& state) {
  using Numbers = Factors<Stored>;
  // Each vector of scores has been read when its weights are written, which take no more room.
  const auto weights = [&](int64_t v) {
    return reinterpret_cast<typename Numbers::Factor*>(scores) + v * kLanes / Numbers::kTogether;
  };
  const Vector largest = complete_scores<Stored, kIsCapped>(scores, computed, visible, scales, softcap);
  state.clear();
  if (largest[0] == -std::numeric_limits<float>::infinity()) {
    for (int64_t v = computed.first_vector(); v < computed.end_vector(); ++v) store_factors(weights(v), Vector{});
    return 1;
  }
  store(state.largest(), largest);
  Vector sums = {};
  IntVector bits_of_largest = {};
  for (int64_t v = computed.first_vector(); v < computed.end_vector(); ++v) {
    const Vector weight = exp2(load(scores + v * kLanes) - largest);
    if constexpr (Numbers::kAreIntegers) {
      sums += weight;
      const Vector scaled = weight > 0.0f ? weight * load(scales.values + v * kLanes) : Vector{};
      const IntVector bits = (IntVector)scaled;
      bits_of_largest = bits > bits_of_largest ? bits : bits_of_largest;
      store(scores + v * kLanes, scaled);
    } else if constexpr (std::is_same_v<Stored, int8_t>) {
      sums += weight;
      store_factors(weights(v), weight * load(scales.values + v * kLanes));
    } else {
      sums += store_factors(weights(v), weight);
    }
  }
  store(state.weight_sums(), sums);
  if constexpr (!Numbers::kAreIntegers) return 1;
  else {
    const auto larger = [](IntVector a, IntVector b) { return a > b ? a : b; };
    const float step = integer_step(reduce_lanes(bits_of_largest, larger)[0]);
    for (int64_t v = computed.first_vector(); v < computed.end_vector(); ++v)
      store_factors(weights(v), load(scores + v * kLanes) * (1 / step));
    return step;
  }
}
