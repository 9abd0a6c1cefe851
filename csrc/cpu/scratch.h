// Memory of a thread, kept for the next call. Included inside the level's namespace, by kernels.cpp.

// Room for `size` numbers, aligned to cache lines. One array at a time.
template <typename Number>
inline Number* scratch(std::vector<Number>& memory, int64_t size) {
  constexpr size_t kAlignment = 64 / sizeof(Number);
  if (memory.size() < size + kAlignment) memory.resize(size + kAlignment);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (-address / sizeof(Number)) % kAlignment;
}
