#include "dispatch.h"

#include <stdexcept>

namespace fathom {

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vnni;

namespace {

std::vector<const Kernels*> find_levels() {
  std::vector<const Kernels*> levels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if defined(FATHOM_HAS_avx512vnni)
  if (avx512 && __builtin_cpu_supports("avx512vnni")) levels.push_back(&kernels_avx512vnni);
#endif
#if defined(FATHOM_HAS_avx512)
  if (avx512) levels.push_back(&kernels_avx512);
#endif
#if defined(FATHOM_HAS_avx2)
  if (avx2) levels.push_back(&kernels_avx2);
#endif
#endif
  levels.push_back(&kernels_portable);
  return levels;
}

const Kernels*& current() {
  static const Kernels* level = usable_levels().front();
  return level;
}

}  // namespace

const std::vector<const Kernels*>& usable_levels() {
  static const std::vector<const Kernels*> levels = find_levels();
  return levels;
}

const Kernels& kernels() { return *current(); }

void use_level(const std::string& name) {
  for (const Kernels* level : usable_levels()) {
    if (name == level->name) {
      current() = level;
      return;
    }
  }
  throw std::invalid_argument("no level " + name + " on this processor");
}

}  // namespace fathom
