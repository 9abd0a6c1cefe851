// What lies between the query-key-value product and attention. Included inside the level's namespace, by kernels.cpp.

// kMix: of both halves their sum and difference, the first step of hadamard_half's transform.
template <bool kMix>
inline void rotate_head(float* output, const float* input, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vector a = load(input + i), b = load(input + half + i), c = load(cos + i), s = load(sin + i);
    const Vector first = a * c - b * s, second = b * c + a * s;
    store(output + i, kMix ? first + second : first);
    store(output + half + i, kMix ? first - second : second);
  }
  for (; i < half; ++i) {
    const float a = input[i], b = input[half + i];
    const float first = a * cos[i] - b * sin[i], second = b * cos[i] + a * sin[i];
    output[i] = kMix ? first + second : first;
    output[half + i] = kMix ? first - second : second;
  }
}

// One token of a step; `memory` has room for two heads.
template <typename Stored>
inline void rotate_and_store_token(const RotateAndStoreArgs& args, int64_t token, float* memory) {
  constexpr bool kIsScaled = std::is_same_v<Stored, int8_t>;
  const KVCache& cache = args.cache;
  const Pages<Stored> pages = {cache};
  const int64_t dim = cache.head_dim, half = dim / 2;
  const float* cos = args.cos + args.positions[token] * half;
  const float* sin = args.sin + args.positions[token] * half;
  const float* head = args.qkv + token * args.qkv_stride;
  float* rotated = memory + dim;
  const auto normalise_and_rotate = [&](float* output, const float* weight) {
    if (weight != nullptr) normalise(memory, head, weight, dim, args.epsilon);
    rotate_head<kIsScaled>(output, weight != nullptr ? memory : head, cos, sin, half);
    if constexpr (kIsScaled)
      for (float* part : {output, output + half}) hadamard_half(part, half);
  };

  float* query = args.query + token * args.num_heads * dim;
  for (int64_t index = 0; index < args.num_heads; ++index, head += dim)
    normalise_and_rotate(query + index * dim, args.query_norm);

  const int64_t block = args.slots[token] / cache.block_size, offset = args.slots[token] % cache.block_size;
  for (int64_t index = 0; index < cache.num_kv_heads; ++index, head += dim) {
    normalise_and_rotate(rotated, args.key_norm);
    [[maybe_unused]] const float scale = narrow_row(rotated, dim, pages.keys(block, index) + offset, cache.block_size);
    if constexpr (kIsScaled) pages.key_scales(block, index)[offset] = scale;
  }
  for (int64_t index = 0; index < cache.num_kv_heads; ++index, head += dim) {
    [[maybe_unused]] const float scale = narrow_row(head, dim, pages.values(block, index) + offset * dim, 1);
    if constexpr (kIsScaled) pages.value_scales(block, index)[offset] = scale;
  }
}

// The first token from `token` on that does not go to the same block as the one before it. Threads that write to one
// block would wait for each other's cache lines.
inline int64_t next_block_start(const RotateAndStoreArgs& args, int64_t token) {
  const auto block_of = [&](int64_t index) { return args.slots[index] / args.cache.block_size; };
  if (token == 0) return 0;
  while (token < args.num_tokens && block_of(token) == block_of(token - 1)) ++token;
  return std::min(token, args.num_tokens);
}

inline void rotate_and_store(const RotateAndStoreArgs& args) {
  const int64_t row_size = (args.num_heads + 2 * args.cache.num_kv_heads) * args.cache.head_dim;
  const int64_t step = rows_per_part(4 * row_size);  // keys are written number by number
  with_stored_type(args.cache.format, [&](auto stored) {
    pool().run((args.num_tokens + step - 1) / step, [&](int64_t part) {
      static thread_local std::vector<float> memory;
      float* heads = scratch(memory, 2 * args.cache.head_dim);
      const int64_t end = next_block_start(args, (part + 1) * step);
      for (int64_t token = next_block_start(args, part * step); token < end; ++token)
        rotate_and_store_token<decltype(stored)>(args, token, heads);
    });
  });
}
