// Sums of products of integers: one group of columns of a panel, against the activations of a few tokens.
// Included inside the level's namespace.
//
// A register holds four columns of kLanes rows; a token's activations for these columns, four bytes, are broadcast to
// every row. So each row's sum grows in a lane of its own. What differs between the levels is how four bytes times
// four bytes become a 32-bit sum: dot_quads.h, dot_pairs.h, dot_long.h and dot_plain.h have the ways. Each defines
//
//   kCodeShift     codes of 8 bits are multiplied as code + kCodeShift; the caller's sums start from what makes up for it
//   dot_group_w8   adds a group's products with codes of 8 bits to the sums [tokens][parts]
//   dot_group_narrow   the same for codes of fewer bits, as they are

constexpr int kPanel = 16;                // rows
constexpr int kParts = kPanel / kLanes;   // registers that hold the panel's rows
constexpr int kPartBytes = kLanes * 4;    // four columns of a register's rows
constexpr int kLineBytes = kPanel * 4;    // four bytes of each of the panel's rows

typedef uint8_t Bytes __attribute__((vector_size(kPartBytes)));

inline Bytes load_bytes(const uint8_t* from) {
  Bytes value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store_bytes(uint8_t* to, Bytes value) { __builtin_memcpy(to, &value, sizeof value); }

inline IntVector broadcast_int(int32_t value) { return value - IntVector{}; }

// The four activations at `from`, beside every row.
inline Bytes broadcast_quad(const int8_t* from) {
  int32_t quad;
  __builtin_memcpy(&quad, from, sizeof quad);
  return reinterpret_cast<Bytes>(broadcast_int(quad));
}

#include "code_lines.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#include "dot_quads.h"
#elif defined(__ARM_NEON)
#include "dot_long.h"
#elif defined(__AVX2__)
#include "dot_pairs.h"
#else
#include "dot_plain.h"
#endif
