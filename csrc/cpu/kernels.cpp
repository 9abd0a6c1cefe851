// All kernels at one instruction set level; CMake compiles this file once per level, with FATHOM_LEVEL its name.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "thread_pool.h"

#define FATHOM_JOIN_(a, b) a##b
#define FATHOM_JOIN(a, b) FATHOM_JOIN_(a, b)
#define FATHOM_TEXT_(a) #a
#define FATHOM_TEXT(a) FATHOM_TEXT_(a)

namespace fathom {
namespace FATHOM_LEVEL {

#include "simd.h"
// clang-format off: simd.h comes first
#include "scratch.h"
#include "number_formats.h"
#include "kv_page.h"
#include "bfloat16_pairs.h"
#include "integer_pairs.h"
#include "attention_factors.h"
#include "attention_tile.h"
#include "attention_state.h"
#include "attention_plan.h"
#include "read_ahead.h"
#include "attention.h"
#include "dot.h"
#include "packed_format.h"
#include "norm.h"
#include "hadamard.h"
#include "rotate_and_store.h"
#include "activation.h"
#include "embedding.h"
#include "quantise.h"
#include "quant_matmul.h"
#include "float_matmul.h"
#include "bfloat16_matmul.h"
#include "quantise_weights.h"
#include "penalties.h"
#include "row_scan.h"
#include "softmax_weights.h"
#include "selection.h"
#include "sampling.h"
#include "log_sum.h"
#include "token_logprobs.h"

}  // namespace FATHOM_LEVEL

extern const Kernels FATHOM_JOIN(kernels_, FATHOM_LEVEL);
const Kernels FATHOM_JOIN(kernels_, FATHOM_LEVEL) = {
    .name = FATHOM_TEXT(FATHOM_LEVEL),
    .rms_norm = FATHOM_LEVEL::rms_norm,
    .add_rms_norm = FATHOM_LEVEL::add_rms_norm,
    .silu_and_mul = FATHOM_LEVEL::activate_and_mul<FATHOM_LEVEL::Silu>,
    .gelu_tanh_and_mul = FATHOM_LEVEL::activate_and_mul<FATHOM_LEVEL::GeluTanh>,
    .rotate_and_store = FATHOM_LEVEL::rotate_and_store,
    .paged_attention = FATHOM_LEVEL::paged_attention,
    .gather_rows = FATHOM_LEVEL::gather_rows,
    .unpack_rows = FATHOM_LEVEL::unpack_rows,
    .quant_matmul = FATHOM_LEVEL::quant_matmul,
    .best_tokens = FATHOM_LEVEL::best_tokens,
    .draw_tokens = FATHOM_LEVEL::draw_tokens,
    .choose_tokens = FATHOM_LEVEL::choose_tokens,
    .truncate_logits = FATHOM_LEVEL::truncate_logits,
    .token_logprobs = FATHOM_LEVEL::token_logprobs,
    .apply_penalties = FATHOM_LEVEL::apply_penalties,
    .decoded_matmul = FATHOM_LEVEL::decoded_matmul,
    .float_matmul = FATHOM_LEVEL::float_matmul,
    .bfloat16_matmul = FATHOM_LEVEL::bfloat16_matmul,
    .float_rows = FATHOM_LEVEL::float_rows,
    .quantise_weights = FATHOM_LEVEL::quantise_weights,
};

}  // namespace fathom
