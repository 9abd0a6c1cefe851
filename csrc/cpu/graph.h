// Graph: a sequence of kernel calls with their arguments, recorded while they run, to be run again by one call.
//
// What Python does between two kernels (allocate, slice, look up attributes, check) costs more than a small kernel
// itself. A step that repeats the calls of an earlier one, with the same addresses and sizes, need not repeat that.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fathom {

class Graph {
 public:
  void add(std::function<void()> call) { calls_.push_back(std::move(call)); }
  void replay() const {
    for (const auto& call : calls_) call();
  }
  size_t size() const { return calls_.size(); }

 private:
  std::vector<std::function<void()>> calls_;
};

// The graph that the calling thread's kernel calls are added to; null while it records nothing.
inline std::unique_ptr<Graph>& recording() {
  static thread_local std::unique_ptr<Graph> graph;
  return graph;
}

}  // namespace fathom
