// Choice: the token of each of some rows of logits, chosen in step after step by the same settings: the best one, or
// one that is drawn.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch.h"

namespace fathom {

class Choice {
 public:
  // rows, is_random and the settings: [num_rows]. All are copied.
  Choice(const bool* is_random, const DrawArgs& args) : num_rows_(args.num_rows), vocab_size_(args.vocab_size) {
    for (int64_t index = 0; index < num_rows_; ++index) {
      Some& some = is_random[index] ? drawn_ : best_;
      some.indices.push_back(index);
      some.rows.push_back(args.rows[index]);
      if (!is_random[index]) continue;
      temperature_.push_back(args.temperature[index]);
      log_min_p_.push_back(args.log_min_p[index]);
      top_k_.push_back(args.top_k[index]);
      top_p_.push_back(args.top_p[index]);
    }
  }

  // uniforms: one for each row whose token is drawn. Returns a token for each row, -1 for one that is not finite.
  std::vector<int64_t> choose(float* logits, const std::vector<double>& uniforms) const {
    std::vector<int64_t> token_ids(num_rows_), some(num_rows_);
    if (!best_.rows.empty()) {
      kernels().best_tokens(some.data(), logits, best_.rows.data(), best_.size(), vocab_size_);
      best_.scatter(some, token_ids);
    }
    if (!drawn_.rows.empty()) {
      kernels().draw_tokens(some.data(), uniforms.data(),
                            {logits, drawn_.rows.data(), temperature_.data(), log_min_p_.data(), top_k_.data(),
                             top_p_.data(), drawn_.size(), vocab_size_});
      drawn_.scatter(some, token_ids);
    }
    return token_ids;
  }

 private:
  struct Some {
    std::vector<int64_t> indices, rows;

    int64_t size() const { return static_cast<int64_t>(rows.size()); }
    void scatter(const std::vector<int64_t>& from, std::vector<int64_t>& to) const {
      for (size_t at = 0; at < indices.size(); ++at) to[indices[at]] = from[at];
    }
  };

  int64_t num_rows_, vocab_size_;
  Some best_, drawn_;
  std::vector<float> temperature_, log_min_p_;
  std::vector<int64_t> top_k_;
  std::vector<double> top_p_;
};

}  // namespace fathom
