// Lines: how codes of 4, 5, 6 and 8 bits lie in a panel, and how they come out (fathom/quant/packed.py has the layout).
// Included by dot.h.

template <int kBits>
struct Lines {
  static constexpr int kHighBits = kBits == 8 ? 0 : kBits - 4;             // that lie apart, in a line of their own
  static constexpr int kHalves = kHighBits == 0 ? 1 : 4 / kHighBits;       // lines before that one
  static constexpr int kColumns = kBits == 8 ? 4 : 8 * kHalves;            // of all these lines together
  static constexpr int kBytes = (kHalves + (kHighBits > 0)) * kLineBytes;  // likewise
};

// Two quads of a line.
struct Halves {
  Bytes low, high;
};

inline Bytes low_halves(Bytes packed) { return packed & 15; }
inline Bytes high_halves(Bytes packed) { return packed >> 4; }

// The high bits of a quad, at their place above the lower four.
template <int kBits>
inline Bytes high_bits(Bytes plane, int quad) {
  typedef uint16_t Shorts __attribute__((vector_size(kPartBytes)));  // few processors shift bytes
  constexpr int kHighBits = Lines<kBits>::kHighBits;
  constexpr uint8_t kMask = ((1 << kHighBits) - 1) << 4;
  const int shift = 4 - quad * kHighBits;
  const Shorts bits = reinterpret_cast<Shorts>(plane);
  return reinterpret_cast<Bytes>(shift > 0 ? bits << shift : bits >> -shift) & kMask;
}

// The codes of line number `line`, of fewer than 8 bits. `lines`: a register's part of the first.
template <int kBits>
inline Halves unpack_line(const uint8_t* lines, int line) {
  const Bytes packed = load_bytes(lines + line * kLineBytes);
  Halves codes = {low_halves(packed), high_halves(packed)};
  if constexpr (kBits > 4) {
    const Bytes plane = load_bytes(lines + Lines<kBits>::kHalves * kLineBytes);
    codes.low |= high_bits<kBits>(plane, 2 * line);
    codes.high |= high_bits<kBits>(plane, 2 * line + 1);
  }
  return codes;
}

// Where a register's part of the first line is, of panels that lie panel_bytes apart.
inline int64_t part_offset(int part, int64_t panel_bytes) {
  return part / kParts * panel_bytes + part % kParts * kPartBytes;
}

// Where products find line number `line`: in a panel, or in panels beside each other,
template <int kBits>
struct PackedLines {
  const uint8_t* codes;
  int64_t panel_bytes = 0;

  Halves load(int line, int part) const {
    typedef Lines<kBits> Here;
    const uint8_t* lines = codes + line / Here::kHalves * Here::kBytes;
    return unpack_line<kBits>(lines + part_offset(part, panel_bytes), line % Here::kHalves);
  }
};

// or as two lines of bytes, unpacked before.
struct UnpackedLines {
  const uint8_t* bytes;

  Halves load(int line, int part) const {
    const uint8_t* low = bytes + 2 * line * kLineBytes + part * kPartBytes;
    return {load_bytes(low), load_bytes(low + kLineBytes)};
  }
};

inline void store_line(uint8_t* bytes, int line, int part, const Halves& codes) {
  uint8_t* low = bytes + 2 * line * kLineBytes + part * kPartBytes;
  store_bytes(low, codes.low);
  store_bytes(low + kLineBytes, codes.high);
}

// One row's code of a column of the panel.
template <int kBits>
inline int code_at(const uint8_t* panel, int64_t row, int64_t column) {
  typedef Lines<kBits> Here;
  const uint8_t* bytes = panel + column / Here::kColumns * Here::kBytes + row * 4 + column % 4;
  if constexpr (kBits == 8) return *bytes;
  const int quad = static_cast<int>(column % Here::kColumns / 4), packed = bytes[quad / 2 * kLineBytes];
  int code = quad % 2 == 0 ? packed & 15 : packed >> 4;
  if constexpr (Here::kHighBits > 0) {
    const int high = bytes[Here::kHalves * kLineBytes] >> quad * Here::kHighBits;
    code |= (high & ((1 << Here::kHighBits) - 1)) << 4;
  }
  return code;
}
