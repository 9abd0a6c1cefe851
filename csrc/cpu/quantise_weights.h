// Weights rounded to integers of 4 or 8 bits with a scale for each group of 32 columns, when a model is loaded.
// fathom/kernels/quantise_weights has the rules. Included inside the level's namespace.
//
// Scales and minimums are rounded to float16 before the codes are, so that what is stored is what the codes were for.

constexpr int kWeightGroup = 32;
constexpr int kGroupVectors = kWeightGroup / kLanes;
constexpr float kCodes4 = 15.0f;  // the largest code of 4 bits

// A group's numbers, and integers for them.
typedef Vector GroupVectors[kGroupVectors];

inline float limit_of_group(const GroupVectors& numbers, bool largest) {
  float lanes[kWeightGroup];
  for (int part = 0; part < kGroupVectors; ++part) store(lanes + part * kLanes, numbers[part]);
  float found = lanes[0];
  for (float number : lanes) found = largest ? std::max(found, number) : std::min(found, number);
  return found;
}

inline float sum_of_group(const GroupVectors& numbers) {
  Vector sum = numbers[0];
  for (int part = 1; part < kGroupVectors; ++part) sum += numbers[part];
  return sum_lanes(sum);
}

// Half to even.
inline Vector round_vector(Vector value) {
  const Vector rounder = broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves no bits below 1
  return (value + rounder) - rounder;
}

// scale * code + minimum for each number of a group, and the sum of the squares of what that misses.
struct Fit {
  float scale, minimum, error;
  GroupVectors codes;
};

inline Half to_half(float value) {
  Half half;
  narrow(value, &half);
  return half;
}

inline void round_to(Fit& fit, const GroupVectors& numbers) {
  fit.scale = widen(to_half(fit.scale));
  fit.minimum = widen(to_half(fit.minimum));
  const float inverse = fit.scale > 0.0f ? 1.0f / fit.scale : 0.0f;
  GroupVectors squares;
  for (int part = 0; part < kGroupVectors; ++part) {
    const Vector code = round_vector((numbers[part] - fit.minimum) * inverse);
    fit.codes[part] = code > kCodes4 ? broadcast(kCodes4) : code > 0.0f ? code : Vector{};
    const Vector missed = numbers[part] - (fit.scale * fit.codes[part] + fit.minimum);
    squares[part] = missed * missed;
  }
  fit.error = sum_of_group(squares);
}

// The scale and minimum that are best for the codes, by least squares; false if the codes are all the same.
inline bool refit(Fit& fit, const GroupVectors& numbers, float total) {
  GroupVectors squares, products;
  for (int part = 0; part < kGroupVectors; ++part) {
    squares[part] = fit.codes[part] * fit.codes[part];
    products[part] = fit.codes[part] * numbers[part];
  }
  const float sum = sum_of_group(fit.codes);
  const float determinant = kWeightGroup * sum_of_group(squares) - sum * sum;
  if (determinant <= 0.0f) return false;
  fit.scale = (kWeightGroup * sum_of_group(products) - sum * total) / determinant;
  fit.minimum = (total - fit.scale * sum) / kWeightGroup;
  return fit.scale > 0.0f;
}

// From the numbers' range, and from one cut at both ends, codes and factors are fitted to each
// other in turns; the best of all is kept. More starts and turns lower the error by less than 1 %.
inline Fit fit_4_bits(const GroupVectors& numbers) {
  constexpr float kCuts[] = {0.0f, 0.05f};
  constexpr int kTurns = 2;
  const float low = limit_of_group(numbers, false), high = limit_of_group(numbers, true);
  const float total = sum_of_group(numbers);
  Fit best;
  for (float cut : kCuts) {
    const float margin = cut * (high - low);
    Fit fit;
    fit.scale = (high - low - 2.0f * margin) / kCodes4;
    fit.minimum = low + margin;
    round_to(fit, numbers);
    if (cut == 0.0f || fit.error < best.error) best = fit;
    for (int turn = 0; turn < kTurns && refit(fit, numbers, total); ++turn) {
      round_to(fit, numbers);
      if (fit.error < best.error) best = fit;
    }
  }
  return best;
}

// The float16 next to largest / 127; the one above where that would bring the largest number to a code beyond 127.
inline float scale_of_8_bits(float largest) {
  Half scale = to_half(largest / 127.0f);
  if (widen(scale) * 127.5f < largest) ++scale.bits;
  return widen(scale);
}

inline Fit fit_8_bits(const GroupVectors& numbers) {
  const float low = limit_of_group(numbers, false), high = limit_of_group(numbers, true);
  Fit fit;
  fit.scale = scale_of_8_bits(std::max(-low, high));
  for (int part = 0; part < kGroupVectors; ++part)
    fit.codes[part] = fit.scale == 0.0f ? broadcast(128.0f) : round_vector(numbers[part] / fit.scale) + 128.0f;
  return fit;
}

inline void quantise_weights(uint8_t* codes, uint16_t* scales, uint16_t* minimums, const float* matrix, int64_t rows,
                             int64_t columns) {
  const int64_t num_groups = columns / kWeightGroup;
  pool().run(rows, [&](int64_t row) {
    for (int64_t group = row * num_groups; group < (row + 1) * num_groups; ++group) {
      GroupVectors numbers;
      for (int part = 0; part < kGroupVectors; ++part)
        numbers[part] = load(matrix + group * kWeightGroup + part * kLanes);
      const Fit fit = minimums == nullptr ? fit_8_bits(numbers) : fit_4_bits(numbers);
      scales[group] = to_half(fit.scale).bits;
      if (minimums != nullptr) minimums[group] = to_half(fit.minimum).bits;
      float lanes[kWeightGroup];
      for (int part = 0; part < kGroupVectors; ++part) store(lanes + part * kLanes, fit.codes[part]);
      for (int index = 0; index < kWeightGroup; ++index)
        codes[group * kWeightGroup + index] = static_cast<uint8_t>(static_cast<int32_t>(lanes[index]));
    }
  });
}
