// Graph: a sequence of kernel calls with their arguments, recorded while they run, to be run again by one call, for as many
// tokens and requests as then are asked for.
//
// What Python does between two kernels (allocate, slice, look up attributes, check) costs more than a small kernel
// itself. A step that repeats the calls of an earlier one, at the same addresses, need not repeat that. Which arguments
// are a step's size shows when it is recorded twice, in different sizes: they differ, and nothing else may.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fathom {

struct StepSize {
  int64_t num_tokens, num_requests;
};

class Call {
 public:
  virtual ~Call() = default;
  virtual void run(const StepSize& size) const = 0;
  // Finds out which arguments depend on the step's size, from the same call in a step of another size. False if they do
  // otherwise than by being one of its numbers.
  virtual bool compare(const StepSize& size, const Call& other, const StepSize& other_size) = 0;
};

template <typename... Args>
class KernelCall final : public Call {
 public:
  typedef void (*Kernel)(Args...);

  KernelCall(Kernel kernel, Args... args) : kernel_(kernel), args_(args...) {}

  void run(const StepSize& size) const override { run(size, std::index_sequence_for<Args...>()); }

  bool compare(const StepSize& size, const Call& other, const StepSize& other_size) override {
    const auto* same = dynamic_cast<const KernelCall*>(&other);
    return same != nullptr && same->kernel_ == kernel_ &&
           compare(size, *same, other_size, std::index_sequence_for<Args...>());
  }

 private:
  typedef int64_t StepSize::*Number;  // null: the argument is always the same

  template <size_t... kIndex>
  void run(const StepSize& size, std::index_sequence<kIndex...>) const {
    kernel_(argument<kIndex>(size)...);
  }

  template <size_t kIndex>
  auto argument(const StepSize& size) const {
    const auto recorded = std::get<kIndex>(args_);
    if constexpr (std::is_same_v<decltype(recorded), const int64_t>)
      return numbers_[kIndex] == nullptr ? recorded : size.*numbers_[kIndex];
    else
      return recorded;
  }

  template <size_t... kIndex>
  bool compare(const StepSize& size, const KernelCall& other, const StepSize& other_size,
               std::index_sequence<kIndex...>) {
    return (compare_argument<kIndex>(size, other, other_size) && ...);
  }

  template <size_t kIndex>
  bool compare_argument(const StepSize& size, const KernelCall& other, const StepSize& other_size) {
    const auto here = std::get<kIndex>(args_), there = std::get<kIndex>(other.args_);
    if (here == there) return true;
    if constexpr (std::is_same_v<decltype(here), const int64_t>) {
      for (const Number number : {&StepSize::num_tokens, &StepSize::num_requests}) {
        if (here != size.*number || there != other_size.*number) continue;
        numbers_[kIndex] = number;
        return true;
      }
    }
    return false;
  }

  Kernel kernel_;
  std::tuple<Args...> args_;
  std::array<Number, sizeof...(Args)> numbers_ = {};
};

class Graph {
 public:
  // Of a step of this size.
  explicit Graph(StepSize size) : size_(size) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  template <typename... Args>
  void add(void (*kernel)(Args...), Args... args) {
    calls_.push_back(std::make_unique<KernelCall<Args...>>(kernel, args...));
  }

  // Makes it one for steps of all sizes, given the recording of another whose tokens and requests are other numbers, or
  // always the same. False if the two differ in more than their sizes: then it cannot be replayed.
  bool generalise(const Graph& other) {
    if (calls_.size() != other.calls_.size()) return false;
    for (size_t index = 0; index < calls_.size(); ++index)
      if (!calls_[index]->compare(size_, *other.calls_[index], other.size_)) return false;
    return true;
  }

  void replay(int64_t num_tokens, int64_t num_requests) const {
    for (const auto& call : calls_) call->run({num_tokens, num_requests});
  }

  size_t size() const { return calls_.size(); }

 private:
  StepSize size_;
  std::vector<std::unique_ptr<Call>> calls_;
};

// The graph that the calling thread's kernel calls are added to; null while it records nothing.
inline std::unique_ptr<Graph>& recording() {
  static thread_local std::unique_ptr<Graph> graph;
  return graph;
}

}  // namespace fathom
