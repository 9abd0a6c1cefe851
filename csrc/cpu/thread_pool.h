// ThreadPool: a few threads that run the parts of one job at a time.
//
// A waiting thread spins for some microseconds, since the next job of a step comes soon, and then sleeps, since the
// core may be wanted by somebody else.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fathom {

class ThreadPool {
 public:
  // cores: thread i is bound to core cores[i], the calling thread excepted; none are bound if it is empty.
  explicit ThreadPool(int num_threads, const std::vector<int>& cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls part(0) ... part(num_parts - 1), each once, from the pool's threads and the calling one, and returns when
  // all have. Which thread runs which part is not determined, so parts must not depend on it.
  template <typename Part>
  void run(int64_t num_parts, const Part& part) {
    if (num_parts <= 1 || workers_.empty()) {
      for (int64_t index = 0; index < num_parts; ++index) part(index);
      return;
    }
    run_shared(num_parts, [](const void* context, int64_t index) { (*static_cast<const Part*>(context))(index); }, &part);
  }

 private:
  using Call = void (*)(const void* context, int64_t index);

  void run_shared(int64_t num_parts, Call call, const void* context);
  void work();
  void take_parts();

  std::vector<std::thread> workers_;
  std::atomic<uint32_t> job_{0};  // counts jobs; a change wakes the workers
  std::atomic<bool> open_{false};  // whether a worker may still join the current job
  std::atomic<int> num_joined_{0};
  std::atomic<int64_t> next_part_{0};
  int64_t num_parts_ = 0;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
};

// The process's pool; 1 thread until set_num_threads is called. Not to be changed while kernels run.
ThreadPool& pool();
void set_num_threads(int num_threads, const std::vector<int>& cores);

}  // namespace fathom
