// The built program from outside.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

extern char** environ;

namespace untied::test {

namespace fs = std::filesystem;

inline std::string read(const fs::path& path) {
  if (!fs::is_regular_file(path)) return "";  // /dev/full has no end
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("untied_cli_test." + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    hide_gpus();
  }
  void TearDown() override {
    show_gpus();
    fs::remove_all(folder_);
  }
  // From the programs that are started: what these tests say of them is said of the cpu.
  void hide_gpus() {
    show_gpus();
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) visible_ = visible;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    hidden_ = true;
  }
  void show_gpus() {
    if (!std::exchange(hidden_, false)) return;
    if (visible_) setenv("CUDA_VISIBLE_DEVICES", visible_->c_str(), 1);
    else unsetenv("CUDA_VISIBLE_DEVICES");
  }

  fs::path path(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  // Words are separated by spaces; no shell is involved.
  Outcome run(const std::string& line) const { return wait(start(line)); }

  pid_t start(const std::string& line) const {
    std::istringstream in(line);
    std::vector<std::string> words{UNTIED_BINARY};
    words.insert(words.end(), std::istream_iterator<std::string>(in), {});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    const std::string out = path("stdout"), err = path("stderr");
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, UNTIED_BINARY, &files, nullptr, argv.data(), environ), 0) << UNTIED_BINARY;
    posix_spawn_file_actions_destroy(&files);
    return child;
  }

  Outcome wait(pid_t child) const {
    int status = -1;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("stdout")), read(path("stderr"))};
  }

 private:
  fs::path folder_;
  std::optional<std::string> visible_;
  bool hidden_ = false;
};

}  // namespace untied::test
