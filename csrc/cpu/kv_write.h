// New keys and values to their slots in the cache. Included inside the level's namespace, by kernels.cpp.

// size: numbers of a token, num_kv_heads * head_dim. Slot i of a cache is its i-th row of that size.
inline void write_kv(float* key_cache, float* value_cache, const float* key, const float* value, const int64_t* slots,
                     int64_t num_tokens, int64_t size, int64_t key_stride, int64_t value_stride) {
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t offset = slots[token] * size;
    std::copy_n(key + token * key_stride, size, key_cache + offset);
    std::copy_n(value + token * value_stride, size, value_cache + offset);
  }
}
