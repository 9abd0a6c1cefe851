// Random numbers that depend on nothing but (seed, choice, position): Philox4x32-10, by Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011. fathom/kernels/step_rows/random.py says more.
#pragma once

#include <cstdint>

namespace fathom {

// In [0, 1), with 53 random bits.
inline double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                         static_cast<uint32_t>(choice), static_cast<uint32_t>(choice >> 32)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0], second = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(second);
    counter[2] = static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(first);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{counter[0] >> 5} << 26 | counter[1] >> 6;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace fathom
