// Gated activations: output = act(gate) * up, rows [gate | up]. Included inside the level's namespace, by kernels.cpp.

struct Silu {
  static Vector apply(Vector x) { return x / (1.0f + exp(-x)); }
};

// x * (1 + tanh(u)) / 2 = x / (1 + e^(-2u)), u = sqrt(2 / pi) * (x + 0.044715 * x^3).
struct GeluTanh {
  static Vector apply(Vector x) {
    const Vector minus_2u = -1.59576912f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp(minus_2u));
  }
};

template <typename Activation>
inline void activate_row(float* output, const float* gate, const float* up, int64_t size) {
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes)
    store(output + index, Activation::apply(load(gate + index)) * load(up + index));
  if (const int64_t rest = size - index; rest > 0)
    store_first(output + index, Activation::apply(load_first(gate + index, rest)) * load_first(up + index, rest), rest);
}

template <typename Activation>
inline void activate_and_mul(float* output, const float* gate_up, int64_t rows, int64_t size) {
  const int64_t step = rows_per_part(size);
  pool().run((rows + step - 1) / step, [&](int64_t part) {
    for (int64_t row = part * step; row < std::min(rows, (part + 1) * step); ++row)
      activate_row<Activation>(output + row * size, gate_up + 2 * row * size, gate_up + (2 * row + 1) * size, size);
  });
}
