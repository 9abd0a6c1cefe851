// Where a token's numbers lie in the pages of the KV cache. Included inside the level's namespace, by kernels.cpp.
//
// A block's page holds, for each KV head, its keys [head_dim][block_size] and its values [block_size][head_dim]:
//
//     keys     d0: t0 t1 t2 ..      values   t0: d0 d1 d2 ..      A vector holds one dimension of neighbouring
//              d1: t0 t1 t2 ..               t1: d0 d1 d2 ..      tokens' keys, or neighbouring dimensions of one
//              ..                            ..                   token's value, and products need no transposing.

template <typename Stored>
struct Pages {
  const KVCache& cache;

  // Of the numbers of all tokens of a block.
  int64_t head_offset(int64_t kv_head) const { return kv_head * cache.block_size * cache.head_dim; }

  Stored* keys(int64_t block, int64_t kv_head) const {
    return reinterpret_cast<Stored*>(cache.keys + block * cache.page_bytes) + head_offset(kv_head);
  }
  Stored* values(int64_t block, int64_t kv_head) const {
    return reinterpret_cast<Stored*>(cache.values + block * cache.page_bytes) + head_offset(kv_head);
  }
  // One for each token of the block.
  float* key_scales(int64_t block, int64_t kv_head) const { return scales(block, kv_head); }
  float* value_scales(int64_t block, int64_t kv_head) const { return scales(block, cache.num_kv_heads + kv_head); }

 private:
  float* scales(int64_t block, int64_t row) const {
    return reinterpret_cast<float*>(cache.scales + block * cache.page_bytes) + row * cache.block_size;
  }
};

// Calls function(Stored()) with the type in which a cache stores its numbers.
template <typename Function>
inline void with_stored_type(KVFormat format, const Function& function) {
  switch (format) {
    case KVFormat::kFloat32: return function(float());
    case KVFormat::kFloat16: return function(Half());
    case KVFormat::kBFloat16: return function(BFloat16());
    case KVFormat::kInt8: return function(int8_t());
  }
}
