#include "io/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "files.h"

namespace untied {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

TEST(MappedFile, ReadsAndMoves) {
  const TemporaryFolder folder;
  write_text(folder / "a", "hello");
  MappedFile a(folder / "a");
  EXPECT_EQ(a.text(), "hello");
  MappedFile b = std::move(a);
  EXPECT_EQ(b.text(), "hello");
  EXPECT_EQ(a.size(), 0u);
  write_text(folder / "c", "bye");
  b = MappedFile(folder / "c");
  EXPECT_EQ(b.text(), "bye");
  EXPECT_EQ(b.path(), folder / "c");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  write_text(folder / "empty", "");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const std::pair<std::string, const char*> rows[] = {{folder / "none", "no such file"},
                                                      {folder.path(), "is a folder, expected a file"},
                                                      {folder / "empty", "the file is empty"},
                                                      {folder / "fifo", "is not a regular file"},
                                                      {folder / "empty/x", "Not a directory"}};
  for (const auto& [path, expected] : rows)
    EXPECT_EQ(message_of([&] { MappedFile file(path); }), path + ": " + expected);
}

TEST(MappedFile, ReachesBeyondFourGiB) {
  const TemporaryFolder folder;
  const std::uint64_t size = (std::uint64_t{4} << 30) + 4096;
  write_text(folder / "sparse", "");
  if (::truncate((folder / "sparse").c_str(), static_cast<off_t>(size)) != 0) GTEST_SKIP() << "no sparse files here";
  {
    std::fstream file(folder / "sparse", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size - 1)).put('z');
  }
  const MappedFile file(folder / "sparse");
  EXPECT_EQ(file.size(), size);
  EXPECT_EQ(file.text().back(), 'z');
}

TEST(OutputFile, WritesAtOffsetsFromSeveralThreads) {
  const TemporaryFolder folder;
  {
    OutputFile file(folder / "a", 8 * 1000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] { file.write(1000 * t, bytes(std::string(1000, static_cast<char>('a' + t)))); });
    for (std::thread& thread : threads) thread.join();
    file.sync();
  }
  std::string expected;
  for (char c = 'a'; c <= 'h'; ++c) expected += std::string(1000, c);
  EXPECT_EQ(read_text(folder / "a"), expected);
  EXPECT_TRUE(contains(message_of<RunError>([&] { OutputFile again(folder / "a", 1); }), "File exists"));
  EXPECT_TRUE(contains(message_of<RunError>([&] { OutputFile file(folder / "no/b", 1); }), "cannot create the file"));
}

TEST(OutputFile, NamesTheFileWhenTheDiskIsFull) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  EXPECT_EQ(message_of<RunError>([&] { write_all(full, 0, bytes("x"), "out/model.safetensors"); }),
            "out/model.safetensors: cannot write: No space left on device");
  ::close(full);
}

// Files of this process may not exceed `bytes` while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_;
  void (*handler_)(int);
};

TEST(OutputFile, FindsOutBeforeTheFirstByte) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(4096);
  EXPECT_EQ(message_of<RunError>([&] { OutputFile file(folder / "a", 8192); }),
            folder / "a" + ": cannot reserve 8 KiB: File too large");
}

TEST(WriteFileAtomically, ReplacesAllOrNothing) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  EXPECT_EQ(read_text(folder / "a"), "two");
  {
    const FileSizeLimit limit(4);
    EXPECT_TRUE(
        contains(message_of<RunError>([&] { write_file_atomically(folder / "a", "much too long"); }), "cannot write"));
  }
  EXPECT_EQ(read_text(folder / "a"), "two");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

TEST(CopyFile, CopiesAndSaysWhyNot) {
  const TemporaryFolder folder;
  write_text(folder / "a", std::string("\0x", 2));
  copy_file(folder / "a", folder / "b");
  EXPECT_EQ(read_text(folder / "b"), std::string("\0x", 2));
  EXPECT_TRUE(contains(message_of<RunError>([&] { copy_file(folder / "none", folder / "c"); }), folder / "none"));
  EXPECT_TRUE(contains(message_of<RunError>([&] { copy_file(folder / "a", folder / "b"); }), "File exists"));
}

}  // namespace
}  // namespace untied
