// Rotary embedding, halves layout. Included inside the level's namespace, by kernels.cpp.

inline void rotate_head(float* output, const float* input, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vector a = load(input + i), b = load(input + half + i), c = load(cos + i), s = load(sin + i);
    store(output + i, a * c - b * s);
    store(output + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = input[i], b = input[half + i];
    output[i] = a * cos[i] - b * sin[i];
    output[half + i] = b * cos[i] + a * sin[i];
  }
}

inline void apply_rotary(float* output, const float* input, const float* cos, const float* sin, int64_t num_tokens,
                         int64_t num_heads, int64_t head_dim, int64_t input_stride) {
  const int64_t size = num_heads * head_dim, half = head_dim / 2, step = rows_per_part(size);
  pool().run((num_tokens + step - 1) / step, [&](int64_t part) {
    for (int64_t token = part * step; token < std::min(num_tokens, (part + 1) * step); ++token)
      for (int64_t head = 0; head < num_heads; ++head)
        rotate_head(output + token * size + head * head_dim, input + token * input_stride + head * head_dim,
                    cos + token * half, sin + token * half, half);
  });
}
