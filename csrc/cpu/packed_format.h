// The formats of packed weights, as types: the width of codes, the size of groups, how scales and minimums are kept.
// fathom/quant/packed.py has the layout and the same list. Included inside the level's namespace.

// A panel's scales, or its minimums: of a group's rows.
struct HalfFactors {
  const Half* values;

  HalfFactors(const void* of_matrix, const uint16_t*, int64_t panel, int64_t num_groups)
      : values(static_cast<const Half*>(of_matrix) + panel * num_groups * kPanel) {}

  Vector load_part(int64_t group, int part) const { return load(values + group * kPanel + part * kLanes); }
  float of_row(int64_t group, int64_t row) const { return widen(values[group * kPanel + row]); }
};

// The same as multiples of steps, each for kGroups groups. A step has 11 bits and a multiple 7: the product is exact.
template <int kGroups>
struct SteppedFactors {
  const int8_t* multiples;
  const Half* steps;

  SteppedFactors(const void* of_matrix, const uint16_t* its_steps, int64_t panel, int64_t num_groups)
      : multiples(static_cast<const int8_t*>(of_matrix) + panel * num_groups * kPanel),
        steps(reinterpret_cast<const Half*>(its_steps) + panel * (num_groups / kGroups) * kPanel) {}

  Vector load_part(int64_t group, int part) const {
    const Vector step = load(steps + group / kGroups * kPanel + part * kLanes);
    return load(multiples + group * kPanel + part * kLanes) * step;
  }
  float of_row(int64_t group, int64_t row) const {
    return static_cast<float>(multiples[group * kPanel + row]) * widen(steps[group / kGroups * kPanel + row]);
  }
};

template <int kCodeBits, int kGroupSize, bool kWithMinimums, bool kWithSteps>
struct Format {
  typedef std::conditional_t<kWithSteps, SteppedFactors<256 / kGroupSize>, HalfFactors> Factors;
  static constexpr int kBits = kCodeBits;
  static constexpr int kGroup = kGroupSize;
  static constexpr bool kMinimums = kWithMinimums;
  static constexpr int kGroupBytes = kPanel * kGroup * kBits / 8;
  // What the codes stand for is code - kZero. dot_group_w8 multiplies by code + kCodeShift.
  static constexpr int kZero = kMinimums ? 0 : 1 << (kBits - 1);
  static constexpr int32_t kStartFactor = -kZero - (kBits == 8 ? kCodeShift : 0);

  // A group of a panel; or of panels that lie beside each other, given how far apart they are, where dot.h takes them.
  template <int kTokens, int kWide, typename... PanelBytes>
  static void dot_group(const uint8_t* codes, const int8_t* activations, IntVector (&sums)[kTokens][kWide],
                        PanelBytes... panel_bytes) {
    if constexpr (kBits == 8) {
      dot_group_w8<kGroup, kTokens>(codes, activations, sums, panel_bytes...);
    } else {
      dot_group_narrow<kBits, kGroup, kTokens>(codes, activations, sums, panel_bytes...);
    }
  }
};

// A panel of a matrix in this format.
template <typename Format>
struct Panel {
  const uint8_t* codes;
  typename Format::Factors scales, minimums;

  Panel(const PackedMatrix& matrix, int64_t number) : Panel(matrix, number, matrix.columns / Format::kGroup) {}

  // Of one row, columns [first, end), as floats, times a factor; to numbers `stride` apart.
  void decode_row(float* to, int64_t stride, int64_t row, int64_t first, int64_t end, float factor) const {
    for (int64_t column = first; column < end; ++column) {
      const int64_t group = column / Format::kGroup;
      float number = scales.of_row(group, row) * static_cast<float>(code_at<Format::kBits>(codes, row, column) - Format::kZero);
      if constexpr (Format::kMinimums) number += minimums.of_row(group, row);
      to[(column - first) * stride] = number * factor;
    }
  }

 private:
  Panel(const PackedMatrix& matrix, int64_t number, int64_t num_groups)
      : codes(matrix.quants + number * num_groups * Format::kGroupBytes),
        scales(matrix.scales, matrix.scale_steps, number, num_groups),
        minimums(matrix.minimums, matrix.minimum_steps, number, Format::kMinimums ? num_groups : 0) {}
};

// Calls function(Format()) with the matrix's format.
template <typename Function>
inline void with_format(const PackedMatrix& matrix, const Function& function) {
  const bool minimums = matrix.minimums != nullptr;
  if (matrix.scale_steps == nullptr) {
    if (matrix.bits == 8) return function(Format<8, 32, false, false>());
    if (matrix.bits == 5) return minimums ? function(Format<5, 32, true, false>()) : function(Format<5, 32, false, false>());
    return minimums ? function(Format<4, 32, true, false>()) : function(Format<4, 32, false, false>());
  }
  if (matrix.bits == 6) return function(Format<6, 16, false, true>());
  if (matrix.bits == 5) return function(Format<5, 32, true, true>());
  if (matrix.group == 32) return function(Format<4, 32, true, true>());
  return minimums ? function(Format<4, 16, true, true>()) : function(Format<4, 16, false, true>());
}
