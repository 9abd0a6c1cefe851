// The fast Walsh-Hadamard transform of half a head, whose other half has been mixed with it. Included inside the level's
// namespace, by kernels.cpp.
//
// A step of distance h makes of two numbers that lie h apart their sum and their difference. All steps below a power of
// two make each of so many numbers a sum of all of them, with signs.

// -1 in the second lane of two that are kDistance apart.
template <size_t kDistance, size_t... kLane>
inline Vector difference_signs(std::index_sequence<kLane...>) {
  return Vector{(kLane & kDistance ? -1.0f : 1.0f)...};
}

// The steps of distances below `size` within a vector.
template <size_t kDistance = kLanes / 2>
inline Vector mix_lanes(Vector x, int64_t size) {
  if (static_cast<int64_t>(kDistance) < size)
    x = x * difference_signs<kDistance>(Lanes()) + exchange_lanes<kDistance>(x, Lanes());
  if constexpr (kDistance > 1) x = mix_lanes<kDistance / 2>(x, size);
  return x;
}

inline void mix(Vector& a, Vector& b) {
  const Vector sum = a + b;
  b = a - b;
  a = sum;
}

// kVectors * kLanes numbers, all steps.
template <int kVectors>
inline void hadamard_vectors(float* x, float factor) {
  Vector vectors[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) vectors[v] = load(x + v * kLanes);
#pragma GCC unroll 8
  for (int distance = kVectors / 2; distance > 0; distance /= 2)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      if (!(v & distance)) mix(vectors[v], vectors[v + distance]);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store(x + v * kLanes, mix_lanes(vectors[v], kLanes) * factor);
}

// Blocks of the largest power of two that divides `half` are transformed, each by itself. The factor makes it, with the
// step between both halves, a rotation: lengths and products of vectors stay.
inline void hadamard_half(float* x, int64_t half) {
  constexpr int64_t kAtOnce = 8 * kLanes;
  const int64_t block = half & -half;
  const float factor = 1.0f / std::sqrt(2.0f * static_cast<float>(block));
  if (block < kLanes) {
    for (int64_t index = 0; index < half; index += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, half - index);
      store_first(x + index, mix_lanes(load_first(x + index, count), block) * factor, count);
    }
    return;
  }
  for (int64_t distance = block / 2; distance >= kAtOnce; distance /= 2) {
    for (int64_t index = 0; index < half; index += kLanes) {
      if (index & distance) continue;
      Vector a = load(x + index), b = load(x + index + distance);
      mix(a, b);
      store(x + index, a);
      store(x + index + distance, b);
    }
  }
  const int64_t size = std::min(block, kAtOnce);
  for (int64_t index = 0; index < half; index += size) {
    switch (size / kLanes) {
      case 1: hadamard_vectors<1>(x + index, factor); break;
      case 2: hadamard_vectors<2>(x + index, factor); break;
      case 4: hadamard_vectors<4>(x + index, factor); break;
      case 8: hadamard_vectors<8>(x + index, factor); break;
    }
  }
}
