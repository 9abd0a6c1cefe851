// StepRows: what the host does to the rows of a batch in each step. fathom/kernels/step_rows has the arrays and rules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "philox.h"

namespace fathom {

struct StepRows {
  // Of the batch, by row.
  int32_t* token_ids;  // [.., token_stride]
  int64_t* num_tokens;
  int64_t* num_computed;
  const int64_t* num_prompt_tokens;
  const uint64_t* seeds;
  const uint64_t* choices;
  std::vector<const int32_t*> tables;  // per KV group [.., table_stride]
  // Of the step.
  const int64_t* rows;
  const int64_t* counts;
  bool* complete;
  int64_t* input_ids;
  int64_t* positions;
  int32_t* query_start_loc;
  int32_t* seq_lens;
  std::vector<int32_t*> block_tables;  // per KV group [.., block_table_stride]
  std::vector<int64_t*> slot_mappings;
  int64_t token_stride, table_stride, block_table_stride, block_size;

  int64_t flatten(int64_t num_requests) const {
    int64_t start = 0, num_complete = 0;
    query_start_loc[0] = 0;
    for (int64_t request = 0; request < num_requests; ++request) {
      const int64_t row = rows[request], count = counts[request];
      const int64_t first = num_computed[row], end = first + count;
      for (int64_t index = 0; index < count; ++index) {
        input_ids[start + index] = token_ids[row * token_stride + first + index];
        positions[start + index] = first + index;
      }
      for (size_t group = 0; group < tables.size(); ++group) {
        const int32_t* table = tables[group] + row * table_stride;
        const int64_t num_blocks = (end + block_size - 1) / block_size;
        std::copy_n(table, num_blocks, block_tables[group] + request * block_table_stride);
        int64_t* slots = slot_mappings[group] + start;
        for (int64_t position = first; position < end; ++position)
          *slots++ = table[position / block_size] * block_size + position % block_size;
      }
      start += count;
      query_start_loc[request + 1] = static_cast<int32_t>(start);
      seq_lens[request] = static_cast<int32_t>(end);
      complete[request] = end == num_tokens[row];
      num_complete += complete[request];
      num_computed[row] = end;
    }
    return num_complete;
  }

  std::vector<double> uniforms(const std::vector<int64_t>& wanted) const {
    std::vector<double> numbers;
    numbers.reserve(wanted.size());
    for (const int64_t row : wanted)
      numbers.push_back(uniform(seeds[row], choices[row], num_tokens[row] - num_prompt_tokens[row]));
    return numbers;
  }

  // sampled: one token for each complete request.
  void append(int64_t num_requests, const std::vector<int64_t>& sampled) const {
    auto token = sampled.begin();
    for (int64_t request = 0; request < num_requests; ++request) {
      if (!complete[request]) continue;
      if (*token >= 0) {
        const int64_t row = rows[request];
        token_ids[row * token_stride + num_tokens[row]++] = static_cast<int32_t>(*token);
      }
      ++token;
    }
  }
};

}  // namespace fathom
