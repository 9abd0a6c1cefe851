// Vectors of float at the width of the level being compiled, by the compiler's own vector types: +, *, comparisons
// and a ? b : c work on them as on numbers. Included inside the level's namespace, once.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntVector __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vector load(const float* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Vector value) { __builtin_memcpy(to, &value, sizeof value); }

inline Vector broadcast(float value) { return value - Vector{}; }

// The sum of the lanes, always in the same order.
inline float sum_lanes(Vector value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// The first `count` of a vector's numbers, the rest 0.
inline Vector load_first(const float* from, int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = from[lane];
  return load(lanes);
}

inline void store_first(float* to, Vector value, int64_t count) {
  for (int64_t lane = 0; lane < count; ++lane) to[lane] = value[lane];
}

inline void copy(float* to, const float* from, int64_t count) {
  for (; count >= kLanes; count -= kLanes, to += kLanes, from += kLanes) store(to, load(from));
  for (int64_t index = 0; index < count; ++index) to[index] = from[index];
}

inline int64_t round_up_to_lanes(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// a > b ? a : b, in the one instruction that does it: the compiler makes two of it at AVX-512.
inline Vector largest_of(Vector a, Vector b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

typedef std::make_index_sequence<kLanes> Lanes;

template <size_t kDistance, typename V, size_t... kLane>
inline V exchange_lanes(V value, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(value, value, (kLane ^ kDistance)...);
}

// All lanes combined two by two, in every lane.
template <size_t kDistance = kLanes / 2, typename V, typename Combine>
inline V reduce_lanes(V value, Combine combine) {
  value = combine(value, exchange_lanes<kDistance>(value, Lanes()));
  if constexpr (kDistance > 1) value = reduce_lanes<kDistance / 2>(value, combine);
  return value;
}

template <size_t kFirst, typename V, size_t... kLane>
inline V every_other_lane(V a, V b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(a, b, ((kLane & 2 ? kLanes : 0) + (kLane & ~size_t{3}) + kFirst + kLane % 2 * 2)...);
}

// In each four lanes one lane of each vector: all of its own, combined.
template <typename V, typename Combine>
inline V reduce_four(const V (&values)[4], Combine combine) {
  const auto halve = [&](V a, V b) {
    return combine(every_other_lane<0>(a, b, Lanes()), every_other_lane<1>(a, b, Lanes()));
  };
  V result = halve(halve(values[0], values[1]), halve(values[2], values[3]));
  if constexpr (kLanes >= 8) result = combine(result, exchange_lanes<4>(result, Lanes()));
  if constexpr (kLanes >= 16) result = combine(result, exchange_lanes<8>(result, Lanes()));
  return result;
}

// Of each four lanes one, in all of them.
template <size_t kOne, typename V, size_t... kLane>
inline V repeat_lane(V value, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(value, value, ((kLane & ~size_t{3}) + kOne)...);
}

// Bit l says whether a comparison holds in lane l.
inline uint32_t lane_bits(IntVector holds) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds);
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)holds);
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (holds[lane] & 1u) << lane;
  return bits;
#endif
}

// The largest lane, in every lane.
inline Vector max_lanes(Vector value) { return reduce_lanes(value, largest_of); }

template <size_t... kLane>
inline IntVector lane_numbers(std::index_sequence<kLane...>) {
  return IntVector{static_cast<int32_t>(kLane)...};
}

// One step of a transposition: in each square of 2 * kDistance, the upper right and lower left quarters change places.
template <size_t kDistance, size_t... kLane>
inline void exchange_quarters(Vector& upper, Vector& lower, std::index_sequence<kLane...>) {
  const Vector a = upper, b = lower;
  upper = __builtin_shufflevector(a, b, (kLane & kDistance ? kLanes + kLane - kDistance : kLane)...);
  lower = __builtin_shufflevector(a, b, (kLane & kDistance ? kLanes + kLane : kLane + kDistance)...);
}

template <size_t kDistance = kLanes / 2>
inline void transpose(Vector (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (size_t row = 0; row < kLanes; ++row)
    if (!(row & kDistance)) exchange_quarters<kDistance>(rows[row], rows[row + kDistance], Lanes());
  if constexpr (kDistance > 1) transpose<kDistance / 2>(rows);
}

// e^x with a relative error below 3e-7; 0 below -87 and infinite above 88. exp(0) is 1 exactly.
inline Vector exp(Vector x) {
  // x = n * ln 2 + r. Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits of the sum.
  const Vector shifted = x * 1.44269504f + 12582912.0f;
  const Vector n = shifted - 12582912.0f;
  const Vector r = x - n * 0.693145752f - n * 1.42860677e-6f;
  Vector p = r * 0.00138131f + 0.00836942f;
  p = p * r + 0.04166846f;
  p = p * r + 0.16666515f;
  p = p * r + 0.49999993f;
  p = p * r * r + r + 1.0f;
  const Vector power_of_two = (Vector)(((IntVector)shifted + 127) << 23);
  const Vector result = p * power_of_two;
  return x < -87.0f ? Vector{} : x > 88.0f ? broadcast(__builtin_inff()) : result;
}

// 2^x with a relative error below 2e-7, for x below 128; 0 below -127. exp2(0) is 1 exactly. Cheaper than exp, since the
// rest of x beside an integer is exact without more ado.
inline Vector exp2(Vector x) {
  constexpr float kRounder = 12582912.0f + 127.0f;  // 1.5 * 2^23 and the bias of exponents
  x = largest_of(broadcast(-127.0f), x);
  const Vector shifted = x + kRounder;
  const Vector r = x - (shifted - kRounder);
  Vector p = r * 0.0013274633f + 0.009671962f;
  p = p * r + 0.055506784f;
  p = p * r + 0.24022235f;
  p = p * r + 0.69314706f;
  p = p * r + 1.0f;
  return p * (Vector)((IntVector)shifted << 23);
}

// tanh with a relative error below 3e-7.
inline Vector tanh(Vector x) {
  const Vector square = x * x;
  Vector p = square * -0.00570491f + 0.02063902f;
  p = p * square - 0.0537397f;
  p = p * square + 0.13331442f;
  p = p * square - 0.33333282f;
  const Vector near_zero = p * square * x + x;
  const Vector elsewhere = 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
  return ((x < 0.625f) & (x > -0.625f)) ? near_zero : elsewhere;
}
