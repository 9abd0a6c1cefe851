// Choice: the token of each of some rows of logits, chosen in step after step by the same settings: the best one, or
// one that is drawn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch.h"

namespace fathom {

class Choice {
 public:
  // rows, is_random and the settings: [num_rows]. All are copied.
  Choice(const bool* is_random, const DrawArgs& args)
      : num_rows_(args.num_rows),
        vocab_size_(args.vocab_size),
        is_random_(std::make_unique<bool[]>(num_rows_)),
        rows_(args.rows, args.rows + num_rows_),
        top_k_(args.top_k, args.top_k + num_rows_),
        temperature_(args.temperature, args.temperature + num_rows_),
        log_min_p_(args.log_min_p, args.log_min_p + num_rows_),
        top_p_(args.top_p, args.top_p + num_rows_) {
    std::copy_n(is_random, num_rows_, is_random_.get());
  }

  // uniforms: one for each row whose token is drawn. Returns a token for each row, -1 for one that is not finite.
  // to, places: as of the kernel.
  std::vector<int64_t> choose(float* logits, const std::vector<double>& uniforms, const ScoreArgs* to = nullptr,
                              const int64_t* places = nullptr) const {
    std::vector<int64_t> token_ids(num_rows_);
    std::vector<double> numbers(num_rows_);
    auto next = uniforms.begin();
    for (int64_t index = 0; index < num_rows_; ++index)
      if (is_random_[index]) numbers[index] = *next++;
    const DrawArgs args{logits,        rows_.data(),  temperature_.data(), log_min_p_.data(),
                        top_k_.data(), top_p_.data(), num_rows_,           vocab_size_};
    kernels().choose_tokens(token_ids.data(), numbers.data(), is_random_.get(), args, to, places);
    return token_ids;
  }

 private:
  int64_t num_rows_, vocab_size_;
  std::unique_ptr<bool[]> is_random_;
  std::vector<int64_t> rows_, top_k_;
  std::vector<float> temperature_, log_min_p_;
  std::vector<double> top_p_;
};

}  // namespace fathom
