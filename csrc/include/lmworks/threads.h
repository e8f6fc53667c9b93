#pragma once
// Threads that live for one call: whatever one of them throws is thrown to the caller.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lmworks {

constexpr std::chrono::milliseconds kPollInterval{50};

// Runs work(thread index) on num_threads threads; poll(), if any, is called meanwhile on this one.
inline void run_threads(size_t num_threads, const std::function<void(size_t)>& work,
                        const std::function<void()>& poll) {
  if (num_threads == 1 && !poll) return work(0);
  std::mutex mutex;
  std::condition_variable done;
  size_t num_running = num_threads;
  std::exception_ptr error;
  // Joined when anything below throws: also when the system refuses one more thread.
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      std::exception_ptr mine;
      try {
        work(i);
      } catch (...) {
        mine = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (mine) error = mine;
      --num_running;
      done.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  while (!done.wait_for(lock, kPollInterval, [&] { return num_running == 0; })) {
    if (!poll) continue;
    lock.unlock();
    poll();
    lock.lock();
  }
  lock.unlock();
  threads.clear();  // joins
  if (error) std::rethrow_exception(error);
}

}  // namespace lmworks
