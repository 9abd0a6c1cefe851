#include "thread_pool.h"

#include <memory>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace fathom {
namespace {

constexpr int kSpins = 4000;  // up to a hundred microseconds

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

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cores) : shares_(num_threads) {
  for (int index = 1; index < num_threads; ++index) {
    workers_.emplace_back([this, index] { work(index); });
    if (!cores.empty()) bind(workers_.back(), cores.at(index));
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_shared(int num_shares, int64_t num_parts, Call call, const void* context) {
  for (int share = 0; share < num_shares; ++share) {
    shares_[share].next.store(num_parts * share / num_shares, std::memory_order_relaxed);
    shares_[share].end = num_parts * (share + 1) / num_shares;
  }
  num_shares_ = num_shares;
  call_ = call;
  context_ = context;
  open_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  take_parts(0);
  // All parts are taken; those who joined finish theirs soon. A worker that is still asleep is not waited for.
  open_.store(false);
  while (num_joined_.load() > 0) pause();
}

// A thread's own share first, then what is left of the others'.
void ThreadPool::take_parts(int thread) {
  for (int count = 0; count < num_shares_; ++count) {
    Share& share = shares_[(thread + count) % num_shares_];
    for (int64_t part; (part = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) call_(context_, part);
  }
}

void ThreadPool::work(int thread) {
  uint32_t done = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && job_.load(std::memory_order_relaxed) == done; ++spin) pause();
    job_.wait(done);
    done = job_.load();
    if (stopping_.load()) return;
    // Joining before looking: the caller, who closes before it looks, cannot miss us, and cannot start the next job.
    num_joined_.fetch_add(1);
    if (open_.load()) take_parts(thread);
    num_joined_.fetch_sub(1);
  }
}

ThreadPool& pool() { return *the_pool(); }

void set_num_threads(int num_threads, const std::vector<int>& cores) {
  if (num_threads != pool().num_threads() || !cores.empty())
    the_pool() = std::make_unique<ThreadPool>(num_threads, cores);
}

}  // namespace fathom
