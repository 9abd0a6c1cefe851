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
  // all have. Which thread runs which part is not determined, so parts must not depend on it; but each thread starts with
  // a share of its own, the same in jobs of all sizes, so that it tends to find in its cache the rows that it wrote in
  // the job before.
  template <typename Part>
  void run(int64_t num_parts, const Part& part) {
    run_shares(num_threads(), num_parts, part);
  }

  // The same, but parts are started in their order, so that the last ones can be made small.
  template <typename Part>
  void run_in_order(int64_t num_parts, const Part& part) {
    run_shares(1, num_parts, part);
  }

 private:
  using Call = void (*)(const void* context, int64_t index);

  // Parts that follow each other. Aligned so that threads do not take cache lines from each other.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  template <typename Part>
  void run_shares(int num_shares, int64_t num_parts, const Part& part) {
    if (num_parts <= 1 || workers_.empty()) {
      for (int64_t index = 0; index < num_parts; ++index) part(index);
      return;
    }
    const Call call = [](const void* context, int64_t index) { (*static_cast<const Part*>(context))(index); };
    run_shared(num_shares, num_parts, call, &part);
  }

  void run_shared(int num_shares, int64_t num_parts, Call call, const void* context);
  void work(int thread);
  void take_parts(int thread);

  std::vector<Share> shares_;  // of the current job, the first num_shares_
  int num_shares_ = 0;
  std::vector<std::thread> workers_;
  std::atomic<uint32_t> job_{0};  // counts jobs; a change wakes the workers
  std::atomic<bool> open_{false};  // whether a worker may still join the current job
  std::atomic<int> num_joined_{0};
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
};

// The process's pool; 1 thread until set_num_threads is called. Not to be changed while kernels run.
ThreadPool& pool();
void set_num_threads(int num_threads, const std::vector<int>& cores);

}  // namespace fathom
