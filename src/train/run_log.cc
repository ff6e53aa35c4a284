#include "train/run_log.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace untied {

RunLog::RunLog(const std::string& path, bool append) : terminal_(isatty(STDERR_FILENO) != 0) {
  if (path.empty()) return;
  file_ = std::fopen(path.c_str(), append ? "a" : "w");
  if (!file_) throw ConfigError("--log {}: cannot be written: {}", path, std::strerror(errno));
}

RunLog::~RunLog() {
  if (file_) std::fclose(file_);
}

void RunLog::record(const Json& line) {
  std::lock_guard lock(mutex_);
  if (!file_) return;
  const std::string text = line.dump() + "\n";  // the library writes NaN and infinities as null
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    throw RunError("the log cannot be written: {}", std::strerror(errno));
}

void RunLog::say(const std::string& line) {
  std::lock_guard lock(mutex_);
  clear_progress();
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

void RunLog::note(const std::string& line) {
  std::lock_guard lock(mutex_);
  clear_progress();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void RunLog::warn(const std::string& line) {
  note("untied: warning: " + line);
  record({{"kind", "warning"}, {"message", line}});
}

void RunLog::progress(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (!terminal_) {
    if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  clear_progress();
  if (text.empty()) return;
  std::fprintf(stderr, "%s", text.c_str());
  progress_shown_ = true;
}

void RunLog::clear_progress() {
  if (progress_shown_) std::fprintf(stderr, "\r\033[K");
  progress_shown_ = false;
}

}  // namespace untied
