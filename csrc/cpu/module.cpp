// Python bindings. Addresses and sizes come as integers; fathom/kernels/*/cpu.py are the only callers and have checked
// types, shapes and contiguity. The GIL is released while a kernel runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "choice.h"
#include "dispatch.h"
#include "graph.h"
#include "step_rows.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using fathom::FloatArgs;
using fathom::KVCache;
using fathom::KVFormat;
using fathom::PackedMatrix;

namespace {

using Address = uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const fathom::Kernels* level : fathom::usable_levels()) names.emplace_back(level->name);
  return names;
}

// A function that runs a kernel, and adds the call to the graph that is being recorded, if one is.
template <typename... Args>
void def_kernel(nb::module_& module, const char* name, void (*kernel)(Args...)) {
  module.def(name, [kernel](Args... args) {
    const nb::gil_scoped_release released;
    kernel(args...);
    if (fathom::recording() != nullptr) fathom::recording()->add(kernel, args...);
  });
}

void rms_norm(Address output, Address input, Address weight, int64_t rows, int64_t size, float epsilon) {
  fathom::kernels().rms_norm(at<float>(output), at<float>(input), at<float>(weight), rows, size, epsilon);
}

void add_rms_norm(Address output, Address sum, Address input, Address residual, Address weight, int64_t rows,
                  int64_t size, float epsilon) {
  fathom::kernels().add_rms_norm(at<float>(output), at<float>(sum), at<float>(input), at<float>(residual),
                                 at<float>(weight), rows, size, epsilon);
}

void silu_and_mul(Address output, Address gate_up, int64_t rows, int64_t size) {
  fathom::kernels().silu_and_mul(at<float>(output), at<float>(gate_up), rows, size);
}

void gelu_tanh_and_mul(Address output, Address gate_up, int64_t rows, int64_t size) {
  fathom::kernels().gelu_tanh_and_mul(at<float>(output), at<float>(gate_up), rows, size);
}

KVCache kv_cache(Address keys, Address values, Address scales, int64_t page_bytes, int64_t block_size,
                 int64_t num_kv_heads, int64_t head_dim, int64_t format) {
  return {at<uint8_t>(keys), at<uint8_t>(values), at<uint8_t>(scales),         page_bytes,
          block_size,        num_kv_heads,        head_dim, static_cast<KVFormat>(format)};
}

void rotate_and_store(Address keys, Address values, Address scales, int64_t page_bytes, int64_t block_size,
                      int64_t num_kv_heads, int64_t head_dim, int64_t format, Address query, Address qkv,
                      Address positions, Address slots, Address cos, Address sin, Address query_norm, Address key_norm,
                      float epsilon, int64_t num_tokens, int64_t qkv_stride, int64_t num_heads) {
  fathom::kernels().rotate_and_store(
      {at<float>(query), at<float>(qkv), at<int64_t>(positions), at<int64_t>(slots), at<float>(cos), at<float>(sin),
       at<float>(query_norm), at<float>(key_norm), epsilon, num_tokens, qkv_stride, num_heads,
       kv_cache(keys, values, scales, page_bytes, block_size, num_kv_heads, head_dim, format)});
}

void paged_attention(Address keys, Address values, Address scales, int64_t page_bytes, int64_t block_size,
                     int64_t num_kv_heads, int64_t head_dim, int64_t format, Address output, Address query,
                     Address block_table, Address query_start_loc, Address seq_lens, int64_t query_stride,
                     int64_t block_table_stride, int64_t num_requests, int64_t num_heads, float scale, int64_t window,
                     float softcap) {
  fathom::kernels().paged_attention(
      {at<float>(output), at<float>(query),
       kv_cache(keys, values, scales, page_bytes, block_size, num_kv_heads, head_dim, format),
       at<int32_t>(block_table), at<int32_t>(query_start_loc), at<int32_t>(seq_lens), query_stride,
       block_table_stride, num_requests, num_heads, scale, window, softcap});
}

void gather_rows(Address output, Address table, Address row_ids, int64_t num_rows, int64_t columns, float factor) {
  fathom::kernels().gather_rows(at<float>(output), at<float>(table), at<int64_t>(row_ids), num_rows, columns, factor);
}

PackedMatrix packed_matrix(Address quants, Address scales, Address scale_steps, Address minimums, Address minimum_steps,
                           int64_t rows, int64_t columns, int64_t bits, int64_t group) {
  return {at<uint8_t>(quants), at<void>(scales), at<uint16_t>(scale_steps), at<void>(minimums),
          at<uint16_t>(minimum_steps), rows, columns, bits, group};
}

void unpack_rows(Address output, Address row_ids, int64_t num_rows, float factor, Address quants, Address scales,
                 Address scale_steps, Address minimums, Address minimum_steps, int64_t rows, int64_t columns,
                 int64_t bits, int64_t group) {
  fathom::kernels().unpack_rows(
      {at<float>(output), at<int64_t>(row_ids), num_rows, factor,
       packed_matrix(quants, scales, scale_steps, minimums, minimum_steps, rows, columns, bits, group)});
}

void quant_matmul(Address output, int64_t output_stride, Address input, Address bias, int64_t num_tokens,
                  Address quants, Address scales, Address scale_steps, Address minimums, Address minimum_steps,
                  int64_t rows, int64_t columns, int64_t bits, int64_t group) {
  fathom::kernels().quant_matmul(
      {at<float>(output), output_stride, at<float>(input), at<float>(bias), num_tokens,
       packed_matrix(quants, scales, scale_steps, minimums, minimum_steps, rows, columns, bits, group)});
}

fathom::DrawArgs draw_args(Address logits, Address rows, Address temperature, Address log_min_p, Address top_k,
                           Address top_p, int64_t num_rows, int64_t vocab_size) {
  return {at<float>(logits), at<int64_t>(rows), at<float>(temperature), at<float>(log_min_p),
          at<int64_t>(top_k), at<double>(top_p), num_rows, vocab_size};
}

void best_tokens(Address token_ids, Address logits, Address rows, int64_t num_rows, int64_t vocab_size) {
  fathom::kernels().best_tokens(at<int64_t>(token_ids), at<float>(logits), at<int64_t>(rows), num_rows, vocab_size);
}

void draw_tokens(Address token_ids, Address uniforms, Address logits, Address rows, Address temperature,
                 Address log_min_p, Address top_k, Address top_p, int64_t num_rows, int64_t vocab_size) {
  fathom::kernels().draw_tokens(at<int64_t>(token_ids), at<double>(uniforms),
                                draw_args(logits, rows, temperature, log_min_p, top_k, top_p, num_rows, vocab_size));
}

void truncate_logits(Address logits, Address rows, Address temperature, Address log_min_p, Address top_k, Address top_p,
              int64_t num_rows, int64_t vocab_size) {
  fathom::kernels().truncate_logits(draw_args(logits, rows, temperature, log_min_p, top_k, top_p, num_rows, vocab_size));
}

void token_logprobs(Address token_ids, Address scores, Address ranks, Address logits, Address rows, Address targets,
                    int64_t num_rows, int64_t vocab_size, int64_t k, bool normalised) {
  fathom::kernels().token_logprobs({{at<int32_t>(token_ids), at<float>(scores), at<int32_t>(ranks), k, normalised},
                                    at<float>(logits),
                                    at<int64_t>(rows),
                                    at<int64_t>(targets),
                                    num_rows,
                                    vocab_size});
}

void apply_penalties(Address logits, Address rows, Address penalties, int64_t num_rows, int64_t vocab_size) {
  fathom::kernels().apply_penalties(at<float>(logits), at<fathom::PenalisedRow>(rows), at<float>(penalties), num_rows,
                                    vocab_size);
}

void decoded_matmul(Address output, int64_t output_stride, Address input, Address bias, int64_t num_tokens,
                    Address quants, Address scales, Address scale_steps, Address minimums, Address minimum_steps,
                    int64_t rows, int64_t columns, int64_t bits, int64_t group) {
  fathom::kernels().decoded_matmul(
      {at<float>(output), output_stride, at<float>(input), at<float>(bias), num_tokens,
       packed_matrix(quants, scales, scale_steps, minimums, minimum_steps, rows, columns, bits, group)});
}

// type: 0 float32, 1 float16, 2 bfloat16.
void float_matmul(Address output, int64_t output_stride, Address input, Address values, Address bias,
                  int64_t num_tokens, int64_t rows, int64_t columns, int64_t type) {
  fathom::kernels().float_matmul({at<float>(output), output_stride, at<float>(input), at<void>(values),
                                  at<float>(bias), num_tokens, rows, columns, static_cast<fathom::FloatType>(type)});
}

void bfloat16_matmul(Address output, int64_t output_stride, Address input, Address values, Address bias,
                     int64_t num_tokens, int64_t rows, int64_t columns) {
  fathom::kernels().bfloat16_matmul({at<float>(output), output_stride, at<float>(input), at<void>(values),
                                     at<float>(bias), num_tokens, rows, columns, fathom::FloatType::kBFloat16});
}

void float_rows(Address output, Address row_ids, Address values, int64_t num_rows, int64_t columns, int64_t type,
                float factor) {
  fathom::kernels().float_rows({at<float>(output), at<int64_t>(row_ids), at<void>(values), num_rows, columns,
                                static_cast<fathom::FloatType>(type), factor});
}

void quantise_weights(Address codes, Address scales, Address minimums, Address matrix, int64_t rows, int64_t columns) {
  fathom::kernels().quantise_weights(at<uint8_t>(codes), at<uint16_t>(scales), at<uint16_t>(minimums),
                                     at<float>(matrix), rows, columns);
}

template <typename T>
std::vector<T*> all_at(const std::vector<Address>& addresses) {
  std::vector<T*> pointers;
  for (const Address address : addresses) pointers.push_back(at<T>(address));
  return pointers;
}

using Addresses = std::vector<Address>;

std::unique_ptr<fathom::StepRows> make_step_rows(
    Address token_ids, Address num_tokens, Address num_computed, Address num_prompt_tokens, Address seeds,
    Address choices, const Addresses& tables, Address rows, Address counts, Address complete, Address input_ids,
    Address positions, Address query_start_loc, Address seq_lens, const Addresses& block_tables,
    const Addresses& slot_mappings, int64_t token_stride, int64_t table_stride, int64_t block_table_stride,
    int64_t block_size) {
  return std::make_unique<fathom::StepRows>(fathom::StepRows{
      at<int32_t>(token_ids), at<int64_t>(num_tokens), at<int64_t>(num_computed), at<int64_t>(num_prompt_tokens),
      at<uint64_t>(seeds), at<uint64_t>(choices), all_at<const int32_t>(tables), at<int64_t>(rows),
      at<int64_t>(counts), at<bool>(complete), at<int64_t>(input_ids), at<int64_t>(positions),
      at<int32_t>(query_start_loc), at<int32_t>(seq_lens), all_at<int32_t>(block_tables),
      all_at<int64_t>(slot_mappings), token_stride, table_stride, block_table_stride, block_size});
}

std::unique_ptr<fathom::Choice> make_choice(Address rows, Address is_random, Address temperature, Address log_min_p,
                                            Address top_k, Address top_p, int64_t num_rows, int64_t vocab_size) {
  return std::make_unique<fathom::Choice>(
      at<bool>(is_random), draw_args(0, rows, temperature, log_min_p, top_k, top_p, num_rows, vocab_size));
}

std::vector<int64_t> choose(const fathom::Choice& choice, Address logits, const std::vector<double>& uniforms) {
  const nb::gil_scoped_release released;
  return choice.choose(at<float>(logits), uniforms);
}

std::vector<int64_t> choose_and_score(const fathom::Choice& choice, Address logits, const std::vector<double>& uniforms,
                                      Address places, Address token_ids, Address scores, Address ranks, int64_t k,
                                      bool normalised) {
  const nb::gil_scoped_release released;
  const fathom::ScoreArgs to{at<int32_t>(token_ids), at<float>(scores), at<int32_t>(ranks), k, normalised};
  return choice.choose(at<float>(logits), uniforms, &to, at<int64_t>(places));
}

}  // namespace

NB_MODULE(_cpu, module) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::set_leak_warnings(false);  // an engine may live until its process ends
  module.def("levels", level_names, "Instruction set levels that this processor can run, best first.");
  module.def("level", [] { return std::string(fathom::kernels().name); });
  module.def("use_level", fathom::use_level);
  module.def("set_num_threads", fathom::set_num_threads, "num_threads"_a, "cores"_a = std::vector<int>(), Released());
  module.def("num_threads", [] { return fathom::pool().num_threads(); });
  nb::class_<fathom::Graph>(module, "Graph", "Kernel calls of one thread, in order.")
      .def("generalise", &fathom::Graph::generalise)
      .def("replay", &fathom::Graph::replay, "num_tokens"_a, "num_requests"_a, Released())
      .def("__len__", &fathom::Graph::size);
  module.def(
      "start_recording",
      [](int64_t num_tokens, int64_t num_requests) {
        fathom::recording() = std::make_unique<fathom::Graph>(fathom::StepSize{num_tokens, num_requests});
      },
      "num_tokens"_a, "num_requests"_a);
  module.def("stop_recording", [] { return std::move(fathom::recording()); });
  nb::class_<fathom::StepRows>(module, "StepRows", "What the host does to a step's rows.")
      .def("flatten", &fathom::StepRows::flatten)
      .def("uniforms", &fathom::StepRows::uniforms)
      .def("append", &fathom::StepRows::append);
  module.def("make_step_rows", make_step_rows);
  nb::class_<fathom::Choice>(module, "Choice", "Chooses the tokens of some rows by fixed settings.")
      .def("choose", choose)
      .def("choose_and_score", choose_and_score);
  module.def("make_choice", make_choice);
  def_kernel(module, "rms_norm", rms_norm);
  def_kernel(module, "add_rms_norm", add_rms_norm);
  def_kernel(module, "silu_and_mul", silu_and_mul);
  def_kernel(module, "gelu_tanh_and_mul", gelu_tanh_and_mul);
  def_kernel(module, "rotate_and_store", rotate_and_store);
  def_kernel(module, "paged_attention", paged_attention);
  def_kernel(module, "gather_rows", gather_rows);
  def_kernel(module, "unpack_rows", unpack_rows);
  def_kernel(module, "quant_matmul", quant_matmul);
  module.def("best_tokens", best_tokens, Released());
  module.def("draw_tokens", draw_tokens, Released());
  module.def("truncate_logits", truncate_logits, Released());
  module.def("token_logprobs", token_logprobs, Released());
  module.def("apply_penalties", apply_penalties, Released());
  def_kernel(module, "decoded_matmul", decoded_matmul);
  def_kernel(module, "float_matmul", float_matmul);
  def_kernel(module, "bfloat16_matmul", bfloat16_matmul);
  def_kernel(module, "float_rows", float_rows);
  module.def("quantise_weights", quantise_weights, Released());
}
