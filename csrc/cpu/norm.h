// RMS norm of rows: output = input / sqrt(mean(input^2) + epsilon) * weight. Included inside the level's namespace.

inline float mean_square(const float* input, int64_t size) {
  Vector sums[4] = {};  // so that an addition need not wait for the one before it
  int64_t index = 0;
  for (; index + 4 * kLanes <= size; index += 4 * kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const Vector x = load(input + index + part * kLanes);
      sums[part] += x * x;
    }
  }
  for (; index + kLanes <= size; index += kLanes) {
    const Vector x = load(input + index);
    sums[0] += x * x;
  }
  float sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; index < size; ++index) sum += input[index] * input[index];
  return sum / static_cast<float>(size);
}

inline void normalise(float* output, const float* input, const float* weight, int64_t size, float epsilon) {
  const float factor = 1.0f / std::sqrt(mean_square(input, size) + epsilon);
  for (int64_t index = 0; index < size; ++index) output[index] = input[index] * factor * weight[index];
}

// Rows that make a part worth handing to another thread.
inline int64_t rows_per_part(int64_t size) { return std::max<int64_t>(1, 16384 / size); }

inline void rms_norm(float* output, const float* input, const float* weight, int64_t rows, int64_t size,
                     float epsilon) {
  const int64_t step = rows_per_part(size);
  pool().run((rows + step - 1) / step, [&](int64_t part) {
    for (int64_t row = part * step; row < std::min(rows, (part + 1) * step); ++row)
      normalise(output + row * size, input + row * size, weight, size, epsilon);
  });
}

inline void add_rms_norm(float* output, float* sum, const float* input, const float* residual, const float* weight,
                         int64_t rows, int64_t size, float epsilon) {
  const int64_t step = rows_per_part(size);
  pool().run((rows + step - 1) / step, [&](int64_t part) {
    for (int64_t row = part * step; row < std::min(rows, (part + 1) * step); ++row) {
      const int64_t start = row * size;
      for (int64_t index = start; index < start + size; ++index) sum[index] = input[index] + residual[index];
      normalise(output + start, sum + start, weight, size, epsilon);
    }
  });
}
