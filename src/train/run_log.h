// What a run says: one JSON object a line in --log, one human line a step on stdout, progress on stderr.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "io/json.h"

namespace untied {

class RunLog {
 public:
  // An empty path: no file. Appends when `append`, else starts anew. Throws ConfigError when the file cannot be opened.
  RunLog(const std::string& path, bool append);
  ~RunLog();
  RunLog(const RunLog&) = delete;

  void record(const Json& line);       // {"kind": ..., ...}; numbers that are not finite become null
  void say(const std::string& line);   // stdout
  void note(const std::string& line);  // stderr
  void warn(const std::string& line);  // stderr, and {"kind":"warning"}
  // Where the run is, on a terminal's last line; an empty text clears it.
  void progress(const std::string& text);

 private:
  void clear_progress();
  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  bool terminal_, progress_shown_ = false;
};

}  // namespace untied
