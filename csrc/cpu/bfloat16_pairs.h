// Pairs of bfloat16, where the processor multiplies two such pairs and adds both products to a float by one instruction.
// Included inside the level's namespace, by kernels.cpp.

#if defined(__AVX512BF16__)

struct Pair {
  BFloat16 first, second;
};

typedef int32_t PairVector __attribute__((vector_size(64)));  // kLanes pairs

inline PairVector load(const Pair* from) {
  PairVector pairs;
  __builtin_memcpy(&pairs, from, sizeof pairs);
  return pairs;
}

inline void store(Pair* to, PairVector pairs) { __builtin_memcpy(to, &pairs, sizeof pairs); }

inline PairVector broadcast(const Pair& pair) {
  int32_t bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits - PairVector{};
}

inline Vector add_product(Vector sum, PairVector a, PairVector b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#endif
