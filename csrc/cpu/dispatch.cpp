#include "dispatch.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace fathom {

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx2vnni;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vnni;
extern const Kernels kernels_avx512bf16;
extern const Kernels kernels_neon;
extern const Kernels kernels_neondot;

namespace {

using Levels = std::vector<const Kernels*>;

#if defined(__x86_64__)

// VNNI on 256-bit registers, without AVX-512. Asked of the processor itself, since not every compiler knows the name.
[[maybe_unused]] bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

Levels find_levels() {
  Levels levels;
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  [[maybe_unused]] const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                                       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                       __builtin_cpu_supports("avx512vl");
  [[maybe_unused]] const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#if defined(FATHOM_HAS_avx512bf16)
  if (vnni && __builtin_cpu_supports("avx512bf16")) levels.push_back(&kernels_avx512bf16);
#endif
#if defined(FATHOM_HAS_avx512vnni)
  if (vnni) levels.push_back(&kernels_avx512vnni);
#endif
#if defined(FATHOM_HAS_avx512)
  if (avx512) levels.push_back(&kernels_avx512);
#endif
#if defined(FATHOM_HAS_avx2vnni)
  if (avx2 && has_avx_vnni()) levels.push_back(&kernels_avx2vnni);
#endif
#if defined(FATHOM_HAS_avx2)
  if (avx2) levels.push_back(&kernels_avx2);
#endif
  levels.push_back(&kernels_portable);
  return levels;
}

#elif defined(__aarch64__)

// The dot products of four bytes, part of Armv8.2 on most processors and of Armv8.4 on all.
[[maybe_unused]] bool has_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value != 0;
#else
  return false;
#endif
}

Levels find_levels() {
  Levels levels;
#if defined(FATHOM_HAS_neondot)
  if (has_dot_products()) levels.push_back(&kernels_neondot);
#endif
  levels.push_back(&kernels_neon);
  return levels;
}

#else

Levels find_levels() { return {&kernels_portable}; }

#endif

const Kernels*& current() {
  static const Kernels* level = usable_levels().front();
  return level;
}

}  // namespace

const std::vector<const Kernels*>& usable_levels() {
  static const Levels levels = find_levels();
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
