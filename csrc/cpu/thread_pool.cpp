#include "thread_pool.h"

#include <memory>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace fathom {
namespace {

constexpr int kSpins = 4000;  // some ten microseconds

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits about as long as x86's pause; "yield" does nothing on processors without hyperthreads
#endif
}

// Does nothing where threads cannot be bound.
void bind([[maybe_unused]] std::thread& thread, [[maybe_unused]] int core) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
#endif
}

// Never destroyed: at exit, and in a process that was forked from this one, there may be no threads to join.
std::unique_ptr<ThreadPool>& the_pool() {
  static auto* instance = new std::unique_ptr<ThreadPool>(std::make_unique<ThreadPool>(1));
  return *instance;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cores) {
  for (int index = 1; index < num_threads; ++index) {
    workers_.emplace_back([this] { work(); });
    if (!cores.empty()) bind(workers_.back(), cores.at(index));
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_shared(int64_t num_parts, Call call, const void* context) {
  num_parts_ = num_parts;
  call_ = call;
  context_ = context;
  next_part_.store(0, std::memory_order_relaxed);
  open_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  take_parts();
  // All parts are taken; those who joined finish theirs soon. A worker that is still asleep is not waited for.
  open_.store(false);
  while (num_joined_.load() > 0) pause();
}

void ThreadPool::take_parts() {
  for (int64_t index; (index = next_part_.fetch_add(1, std::memory_order_relaxed)) < num_parts_;) call_(context_, index);
}

void ThreadPool::work() {
  uint32_t done = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && job_.load(std::memory_order_relaxed) == done; ++spin) pause();
    job_.wait(done);
    done = job_.load();
    if (stopping_.load()) return;
    // Joining before looking: the caller, who closes before it looks, cannot miss us, and cannot start the next job.
    num_joined_.fetch_add(1);
    if (open_.load()) take_parts();
    num_joined_.fetch_sub(1);
  }
}

ThreadPool& pool() { return *the_pool(); }

void set_num_threads(int num_threads, const std::vector<int>& cores) {
  if (num_threads != pool().num_threads() || !cores.empty())
    the_pool() = std::make_unique<ThreadPool>(num_threads, cores);
}

}  // namespace fathom
