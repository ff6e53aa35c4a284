// Where a rank's program is, in words: written by the rank, read by whoever shows progress.
#pragma once

#include <mutex>
#include <string>

namespace untied {

class Place {
 public:
  void set(std::string text) {
    std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string snapshot() const {
    std::lock_guard lock(mutex_);
    return text_;
  }
  const std::string& text() const { return text_; }  // for the thread that sets it

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace untied
