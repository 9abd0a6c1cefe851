// Kernels: the table of functions that each instruction set level fills in.
//
// All tensors are contiguous float32 unless said; sizes are in elements. Every function gives a row the same bits
// whatever other rows there are: the order of each sum depends on the element alone.
#pragma once

#include <cstdint>

namespace fathom {

enum class KVFormat : int64_t { kFloat32, kFloat16, kBFloat16, kInt8 };

// A layer's pages, one for each block, page_bytes apart; kv_page.h has the order of the numbers in one.
struct KVCache {
  uint8_t* keys;    // block 0's
  uint8_t* values;  // block 0's
  uint8_t* scales;  // block 0's [2, num_kv_heads, block_size] floats, of keys and of values; null: the format has none
  int64_t page_bytes;
  int64_t block_size, num_kv_heads, head_dim;
  KVFormat format;
};

struct AttentionArgs {
  float* output;                   // [num_tokens, num_heads, head_dim]
  const float* query;              // [num_tokens, num_heads, head_dim], tokens query_stride apart
  KVCache cache;
  const int32_t* block_table;      // [num_requests, ...], rows block_table_stride apart
  const int32_t* query_start_loc;  // [num_requests + 1]
  const int32_t* seq_lens;         // [num_requests]
  int64_t query_stride, block_table_stride;
  int64_t num_requests, num_heads;
  float scale;
  int64_t window;  // 0: none
  float softcap;   // 0: none
};

struct RotateAndStoreArgs {
  float* query;              // [num_tokens, num_heads, head_dim]
  const float* qkv;          // [num_tokens, num_heads + 2 * num_kv_heads, head_dim], tokens qkv_stride apart
  const int64_t* positions;  // [num_tokens]
  const int64_t* slots;      // [num_tokens], block * block_size + offset
  const float* cos;          // [..., head_dim / 2], a row for each position
  const float* sin;          // the same
  const float* query_norm;   // [head_dim]; null: none
  const float* key_norm;     // the same
  float epsilon;
  int64_t num_tokens, qkv_stride, num_heads;
  KVCache cache;
};

// A packed weight; fathom/quant/packed.py has the layout.
struct PackedMatrix {
  const uint8_t* quants;
  const void* scales;           // float16, or int8 where there are steps
  const uint16_t* scale_steps;  // float16, or null
  const void* minimums;         // as scales; null: none
  const uint16_t* minimum_steps;
  int64_t rows, columns, bits, group;
};

// A product with a packed weight.
struct PackedArgs {
  float* output;          // [num_tokens, rows], rows output_stride apart
  int64_t output_stride;
  const float* input;     // [num_tokens, columns]
  const float* bias;      // [rows] or null
  int64_t num_tokens;
  PackedMatrix matrix;
};

// Rows of a packed weight, in float32, times a factor.
struct PackedRowsArgs {
  float* output;           // [num_rows, columns]
  const int64_t* row_ids;  // [num_rows]
  int64_t num_rows;
  float factor;
  PackedMatrix matrix;
};

// Rows of logits and how each is truncated and drawn from; fathom/kernels/sampling has the rules.
struct DrawArgs {
  float* logits;             // [..., vocab_size]
  const int64_t* rows;       // [num_rows], which rows of the logits
  const float* temperature;  // [num_rows], as the next three
  const float* log_min_p;    // -infinity: none
  const int64_t* top_k;      // vocab_size: none
  const double* top_p;       // 1: none
  int64_t num_rows, vocab_size;
};

// Where scores go, and which: of each row its own token, the target, and then the k best.
struct ScoreArgs {
  int32_t* token_ids;  // [num_scored, 1 + k]
  float* scores;       // the same
  int32_t* ranks;      // [num_scored], of the targets
  int64_t k;
  bool normalised;
};

struct LogprobsArgs {
  ScoreArgs to;
  const float* logits;     // [..., vocab_size]
  const int64_t* rows;     // [num_rows], which rows of the logits
  const int64_t* targets;  // [num_rows]
  int64_t num_rows, vocab_size;
};

// The tokens that a row has seen, and how often its output has each.
struct PenalisedRow {
  int64_t row;
  const int64_t* token_ids;
  const float* counts;
  int64_t num_tokens;
};

enum class FloatType : int64_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// A product with a matrix of floats [rows, columns]; fathom/quant/float_weight.py has the layout.
struct FloatArgs {
  float* output;          // [num_tokens, rows], rows output_stride apart
  int64_t output_stride;
  const float* input;     // [num_tokens, columns]
  const void* values;     // of the type
  const float* bias;      // [rows] or null
  int64_t num_tokens, rows, columns;
  FloatType type;
};

// Rows of a matrix of floats, in float32, times a factor.
struct FloatRowsArgs {
  float* output;           // [num_rows, columns]
  const int64_t* row_ids;  // [num_rows]
  const void* values;      // of the type
  int64_t num_rows, columns;
  FloatType type;
  float factor;
};

struct Kernels {
  const char* name;
  void (*rms_norm)(float* output, const float* input, const float* weight, int64_t rows, int64_t size, float epsilon);
  // sum = input + residual; output = rms_norm(sum).
  void (*add_rms_norm)(float* output, float* sum, const float* input, const float* residual, const float* weight,
                       int64_t rows, int64_t size, float epsilon);
  // gate_up [rows, 2 * size].
  void (*silu_and_mul)(float* output, const float* gate_up, int64_t rows, int64_t size);
  void (*gelu_tanh_and_mul)(float* output, const float* gate_up, int64_t rows, int64_t size);
  // Normalises and rotates queries and keys, and stores keys and values in the cache.
  void (*rotate_and_store)(const RotateAndStoreArgs& args);
  void (*paged_attention)(const AttentionArgs& args);
  // output[i] = table[row_ids[i]] * factor, table [..., columns].
  void (*gather_rows)(float* output, const float* table, const int64_t* row_ids, int64_t num_rows, int64_t columns,
                      float factor);
  void (*unpack_rows)(const PackedRowsArgs& args);
  void (*quant_matmul)(const PackedArgs& args);
  // token_ids [num_rows]; -1 for a row that is not finite. Here and in the next two.
  void (*best_tokens)(int64_t* token_ids, const float* logits, const int64_t* rows, int64_t num_rows,
                      int64_t vocab_size);
  void (*draw_tokens)(int64_t* token_ids, const double* uniforms, const DrawArgs& args);
  // A token for each row, drawn where is_random [num_rows] holds; uniforms [num_rows]. With `to`, also the scores of
  // rows whose places [num_rows], among the scored ones, are not -1.
  void (*choose_tokens)(int64_t* token_ids, const double* uniforms, const bool* is_random, const DrawArgs& args,
                        const ScoreArgs* to, const int64_t* places);
  void (*truncate_logits)(const DrawArgs& args);
  void (*token_logprobs)(const LogprobsArgs& args);
  // penalties [num_rows, 3]: repetition, frequency, presence.
  void (*apply_penalties)(float* logits, const PenalisedRow* rows, const float* penalties, int64_t num_rows,
                          int64_t vocab_size);
  // The same product, with activations as they are.
  void (*decoded_matmul)(const PackedArgs& args);
  void (*float_matmul)(const FloatArgs& args);
  // The same product with activations rounded to bfloat16, as the matrix is.
  void (*bfloat16_matmul)(const FloatArgs& args);
  void (*float_rows)(const FloatRowsArgs& args);
  // matrix [rows, columns] -> codes [rows, columns], scales and minimums float16 [rows, columns / 32]. With minimums
  // codes of 4 bits, without (null) of 8.
  void (*quantise_weights)(uint8_t* codes, uint16_t* scales, uint16_t* minimums, const float* matrix, int64_t rows,
                           int64_t columns);
};

}  // namespace fathom
