// Softmax weights as whole numbers: e^(x / temperature - best) in units of 2^-44. Sums of whole numbers are exact, so
// they do not depend on their order, and a token whose weight is 0 can not be drawn. 2^19 tokens and more fit 64 bits.
// Included inside the level's namespace.

constexpr int kWeightBits = 44;

typedef float HalfVector __attribute__((vector_size(kLanes / 2 * sizeof(float))));
typedef double DoubleVector __attribute__((vector_size(kLanes / 2 * sizeof(double))));
typedef uint64_t LongVector __attribute__((vector_size(kLanes / 2 * sizeof(uint64_t))));
typedef std::make_index_sequence<kLanes / 2> HalfLanes;

inline DoubleVector widen(HalfVector x) {
#if defined(__AVX512F__)
  return (DoubleVector)_mm512_maskz_cvtps_pd(0xff, (__m256)x);  // the compiler would make two halves of it
#else
  return __builtin_convertvector(x, DoubleVector);
#endif
}

// Lanes kFirst ... of a vector.
template <size_t kFirst, size_t... kLane>
inline DoubleVector widen_half(Vector x, std::index_sequence<kLane...>) {
  return widen(__builtin_shufflevector(x, x, (kFirst + kLane)...));
}

// Lanes kFirst ... of floats in [0, 1] as whole numbers, each with kSurplus added. The last bit of 384 + x is worth
// 2^-44.
constexpr uint64_t kSurplus = UINT64_C(0x4078000000000000);  // the bits of 384

template <size_t kFirst>
inline LongVector whole_weights(Vector weights) {
  return (LongVector)(widen_half<kFirst>(weights, HalfLanes()) + 384.0);
}

struct SoftmaxWeights {
  float temperature;
  float best;  // the largest logit after division by the temperature

  Vector scale(Vector x) const { return x / temperature; }

  // Of scaled logits.
  void weigh(uint64_t* weights, Vector scaled) const {
    const Vector weight = exp(scaled - best);
    const LongVector low = whole_weights<0>(weight) - kSurplus;
    const LongVector high = whole_weights<kLanes / 2>(weight) - kSurplus;
    __builtin_memcpy(weights, &low, sizeof low);
    __builtin_memcpy(weights + kLanes / 2, &high, sizeof high);
  }

  // Of scaled logits; weights has room for a multiple of kLanes.
  void weigh(uint64_t* weights, const float* scaled, int64_t size) const {
    for (int64_t index = 0; index < size; index += kLanes) weigh(weights + index, load_row(scaled, index, size));
  }

  // The sum over logits that reach `floor` after scaling.
  uint64_t sum(const float* logits, int64_t size, float floor = -__builtin_inff()) const {
    // Division by 1 changes nothing and takes time.
    if (temperature == 1.0f) return sum_of(logits, size, floor, [](Vector x) { return x; });
    return sum_of(logits, size, floor, [&](Vector x) { return scale(x); });
  }

  // kLanes numbers from `index`; -infinity behind the end.
  static Vector load_row(const float* row, int64_t index, int64_t size) {
    if (index + kLanes <= size) return load(row + index);
    float lanes[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = index + lane < size ? row[index + lane] : -__builtin_inff();
    return load(lanes);
  }

 private:
  template <typename Scale>
  uint64_t sum_of(const float* logits, int64_t size, float floor, const Scale& scaled_of) const {
    LongVector sums[2] = {};
    const auto add = [&](Vector x) {
      const Vector scaled = scaled_of(x);
      const Vector weight = scaled >= floor ? exp(scaled - best) : Vector{};
      sums[0] += whole_weights<0>(weight);
      sums[1] += whole_weights<kLanes / 2>(weight);
    };
    int64_t index = 0;
    for (; index + kLanes <= size; index += kLanes) add(load(logits + index));
    if (index < size) add(load_row(logits, index, size));
    const LongVector both = sums[0] + sums[1];
    uint64_t total = -kSurplus * round_up_to_lanes(size);  // modulo 2^64, as the sums
    for (int lane = 0; lane < kLanes / 2; ++lane) total += both[lane];
    return total;
  }
};
