#include "io/safetensors.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "files.h"

namespace untied {
namespace {

std::string length_prefix(std::uint64_t length) {
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(length >> shift & 0xff);
  return out;
}

// A file with this header and `data` bytes behind it.
std::string file_with(const std::string& header, std::size_t data) {
  return length_prefix(header.size()) + header + std::string(data, 'x');
}

SafetensorsIndex parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "f");
}

std::string error_in(const std::string& file) {
  return message_of([&] { parse(file); });
}

// One tensor's row.
std::string row(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsHeader, ReadsWhatTheFormatAllows) {
  struct Legal {
    const char* what;
    std::string header;
    std::size_t data;
    std::vector<std::string> names;  // in the order of their bytes
  };
  const Legal rows[] = {
      {"no tensor", "{}", 0, {}},
      {"padding", "{}      ", 0, {}},
      {"scalar", R"({"a":)" + row("F32", "[]", "[0,4]") + "}", 4, {"a"}},
      {"empty tensor", R"({"a":)" + row("F32", "[3,0,2]", "[0,0]") + "}", 0, {"a"}},
      {"huge but empty", R"({"a":)" + row("F32", "[0,9223372036854775807]", "[0,0]") + "}", 0, {"a"}},
      {"empty between two",
       R"({"c":)" + row("U8", "[1]", "[1,2]") + R"(,"b":)" + row("U8", "[0]", "[1,1]") + R"(,"a":)" +
           row("U8", "[1]", "[0,1]") + "}",
       2,
       {"a", "b", "c"}},
      {"file order is not name order",
       R"({"a":)" + row("BF16", "[2]", "[4,8]") + R"(,"b":)" + row("F32", "[1]", "[0,4]") + "}",
       8,
       {"b", "a"}},
      {"unaligned",
       R"({"a":)" + row("U8", "[1]", "[0,1]") + R"(,"b":)" + row("F64", "[1]", "[1,9]") + "}",
       9,
       {"a", "b"}},
      {"null metadata", R"({"__metadata__":null,"a":)" + row("F32", "[1]", "[0,4]") + "}", 4, {"a"}},
      {"packed",
       R"({"a":)" + row("F6_E2M3", "[4]", "[0,3]") + R"(,"b":)" + row("F4", "[2]", "[3,4]") + "}",
       4,
       {"a", "b"}},
      {"types that are not trained",
       R"({"a":)" + row("F8_E4M3FNUZ", "[1]", "[0,1]") + R"(,"b":)" + row("C64", "[1]", "[1,9]") + R"(,"c":)" +
           row("BOOL", "[1]", "[9,10]") + "}",
       10,
       {"a", "b", "c"}},
  };
  for (const Legal& legal : rows) {
    SCOPED_TRACE(legal.what);
    const SafetensorsIndex index = parse(file_with(legal.header, legal.data));
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : index.tensors) names.push_back(entry.name);
    EXPECT_EQ(names, legal.names);
  }
  const SafetensorsIndex index =
      parse(file_with(R"({"__metadata__":{"format":"pt"},"a":)" + row("F16", "[2,3]", "[0,12]") + "}", 12));
  EXPECT_EQ(index.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(index.tensors[0].dtype, FileDType::kF16);
  EXPECT_EQ(index.tensors[0].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(index.tensors[0].end - index.tensors[0].begin, 12u);
}

TEST(SafetensorsHeader, RefusesByName) {
  struct Broken {
    std::string file;
    const char* expected;
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                      std::size_t data) { return file_with(R"({"a":)" + row(dtype, shape, offsets) + "}", data); };
  const Broken rows[] = {
      {"", "f: 0 bytes are too few"},
      {"1234567", "f: 7 bytes are too few"},
      {length_prefix(100), "f: the header is 100 bytes long, but only 0 follow; is the file cut off?"},
      {length_prefix(100'000'001), "the header would be 100000001 bytes long, at most 100000000 are legal"},
      {length_prefix(std::numeric_limits<std::uint64_t>::max()), "at most 100000000 are legal"},
      {length_prefix(0) + "{}", "does not begin with '{'"},
      {file_with(" {}", 0), "does not begin with '{'"},
      {file_with("[]", 0), "does not begin with '{'"},
      {file_with("{\"a", 0), "f (header): not valid JSON"},
      {file_with("{\"\xff\":1}", 0), "UTF-8"},
      {file_with("{}{}", 0), "not valid JSON"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 17\n", "f: is a Git LFS pointer"},
      {"version https://git-lfs", "f: is a Git LFS pointer"},
      {file_with(R"({"a":)" + row("U8", "[1]", "[0,1]") + R"(,"a":)" + row("U8", "[1]", "[1,2]") + "}", 2),
       "the key \"a\" occurs twice"},
      {file_with(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
       "the key \"dtype\" occurs twice"},
      {file_with(R"({"a":7})", 0), "tensor \"a\": is not described by an object"},
      {file_with(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "tensor \"a\": has no dtype"},
      {file_with(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "tensor \"a\": has no shape"},
      {file_with(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "tensor \"a\": has no data_offsets"},
      {file_with(R"({"a\n":{"dtype":"Q7","shape":[1],"data_offsets":[0,1]}})", 1),
       R"(tensor "a\n": dtype "Q7" is not one)"},
      {one("F7", "[1]", "[0,1]", 1), "dtype \"F7\" is not one of the format's"},
      {one("U8", "7", "[0,1]", 1), "shape is not a list"},
      {one("U8", "[-1]", "[0,1]", 1), "shape holds -1, expected a whole number from 0"},
      {one("U8", "[1.0]", "[0,1]", 1), "shape holds 1.0"},
      {one("U8", "[99999999999999999999]", "[0,1]", 1), "shape holds 1e+20"},
      {one("F32", "[4294967296,4294967296]", "[0,0]", 0), "overflows"},  // 2^64 elements: 0 when they wrap
      {one("F32", "[4611686018427387904]", "[0,0]", 0), "overflows"},    // 2^62 elements, 2^67 bits
      {one("F4", "[3]", "[0,2]", 2), "ends inside a byte"},
      {one("F32", "[2]", "[0,4]", 4), "shape [2] of F32 takes 8 bytes, data_offsets give 4"},
      {one("F32", "[1]", "[4,0]", 4), "data_offsets [4, 0] run backwards"},
      {one("F32", "[1]", "[0]", 4), "data_offsets has 1 numbers"},
      {one("F32", "[1]", "[0,2,4]", 4), "data_offsets has 3 numbers"},
      {one("F32", "[1]", "[1,5]", 5), "tensor \"a\" begins at byte 1 of the data, but the one before ends at 0 (hole)"},
      {one("F32", "[1]", "[0,4]", 3), "the tensors end at byte 4 of the data, the file at 3; is the file cut off?"},
      {one("F32", "[1]", "[0,4]", 5), "the tensors end at byte 4 of the data, the file at 5"},
      {one("U8", "[18446744073709551615]", "[0,18446744073709551615]", 0), "overflows"},
      {file_with(R"({"a":)" + row("U8", "[2]", "[0,2]") + R"(,"b":)" + row("U8", "[2]", "[1,3]") + "}", 3),
       "tensor \"b\" begins at byte 1 of the data, but the one before ends at 2 (overlap)"},
      {file_with(R"({"a":)" + row("U8", "[2]", "[0,2]") + R"(,"b":)" + row("U8", "[2]", "[0,2]") + "}", 2),
       "(overlap)"},
      {file_with(R"({"a":)" + row("U8", "[1]", "[0,1]") + R"(,"b":)" + row("U8", "[1]", "[2,3]") + "}", 3), "(hole)"},
      {file_with(R"({"__metadata__":[]})", 0), "__metadata__ is not an object of strings"},
      {file_with(R"({"__metadata__":{"format":1}})", 0), "__metadata__ entry \"format\" is not a string"},
  };
  for (const Broken& broken : rows)
    EXPECT_TRUE(contains(error_in(broken.file), broken.expected)) << broken.file.substr(0, 200);
}

TEST(SafetensorsHeader, LooksAtNothingBehindTheHeader) {
  const std::string start = file_with(R"({"a":)" + row("U8", "[1099511627776]", "[0,1099511627776]") + "}", 0);
  const SafetensorsIndex index =
      parse_safetensors_header(std::as_bytes(std::span(start)), start.size() + (std::uint64_t{1} << 40), "f");
  EXPECT_EQ(index.tensors[0].end, start.size() + (std::uint64_t{1} << 40));
}

TEST(SafetensorsFile, FindsTensorsAtAnyAlignment) {
  const TemporaryFolder folder;
  const std::string header = R"({"a":)" + row("U8", "[1]", "[0,1]") + R"(,"b":)" + row("F32", "[2]", "[1,9]") + "}";
  const float values[] = {1.5f, -2.0f};
  write_text(folder / "f", file_with(header, 1) + std::string(reinterpret_cast<const char*>(values), 8));
  const SafetensorsFile file(folder / "f");
  EXPECT_FALSE(file.find("c"));
  const std::optional<TensorData> b = file.find("b");
  ASSERT_TRUE(b);
  EXPECT_EQ(b->shape, std::vector<std::uint64_t>{2});
  float read[2];
  to_f32(b->bytes.data(), b->dtype, 2, read);
  EXPECT_EQ(read[0], 1.5f);
  EXPECT_EQ(read[1], -2.0f);
}

// The bytes that safetensors.torch.save_file gives for the same tensors.
TEST(SafetensorsWriter, WritesTheReferenceLayout) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "f", {{"z", FileDType::kF32, {1}},
                                          {"b", FileDType::kBF16, {2}},
                                          {"a", FileDType::kBF16, {1, 1}},
                                          {"h", FileDType::kF16, {1}},
                                          {"e", FileDType::kF32, {0, 4}}});
  const float values[] = {1.0f, 2.0f};
  for (const char* name : {"z", "a", "h"}) writer.write(name, 0, values, 1);
  writer.write("b", 1, values + 1, 1);
  writer.write("b", 0, values, 1);
  writer.finish();
  const std::string header = R"({"__metadata__":{"format":"pt"},"e":)" + row("F32", "[0,4]", "[0,0]") + R"(,"z":)" +
                             row("F32", "[1]", "[0,4]") + R"(,"a":)" + row("BF16", "[1,1]", "[4,6]") + R"(,"b":)" +
                             row("BF16", "[2]", "[6,10]") + R"(,"h":)" + row("F16", "[1]", "[10,12]") + "}";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string data("\0\0\x80\x3f\x80\x3f\x80\x3f\0\x40\0\x3c", 12);
  EXPECT_EQ(read_text(folder / "f"), length_prefix(padded.size()) + padded + data);
}

TEST(SafetensorsWriter, RoundTripsInEveryTypeFromSeveralThreads) {
  constexpr std::uint64_t kElements = 600'001;  // more than one chunk of conversion
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i % 255) - 127) / 16;
  const TemporaryFolder folder;
  for (FileDType dtype : {FileDType::kF32, FileDType::kBF16, FileDType::kF16}) {
    const std::string path = folder / name_of(dtype);
    SafetensorsWriter writer(path, {{"a", dtype, {kElements}}, {"b", dtype, {3, 2}}});
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const std::uint64_t begin = kElements * t / 4, end = kElements * (t + 1) / 4;
        writer.write("a", begin, values.data() + begin, end - begin);
      });
    }
    for (std::thread& thread : threads) thread.join();
    writer.write("b", 0, values.data(), 6);
    writer.finish();
    const SafetensorsFile file(path);
    std::vector<float> read(kElements);
    to_f32(file.find("a")->bytes.data(), dtype, kElements, read.data());
    EXPECT_EQ(read, values) << name_of(dtype);
    EXPECT_EQ(file.find("b")->shape, (std::vector<std::uint64_t>{3, 2}));
  }
}

TEST(SafetensorsWriter, CountsEveryElement) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "f", {{"a", FileDType::kF32, {4}}});
  const float values[4] = {};
  writer.write("a", 0, values, 3);
  EXPECT_TRUE(
      contains(message_of<InternalError>([&] { writer.finish(); }), "tensor 'a': 3 of 4 elements were written"));
  EXPECT_THROW(writer.write("a", 3, values, 2), InternalError);
  EXPECT_THROW(writer.write("a", std::numeric_limits<std::uint64_t>::max(), values, 2), InternalError);
  EXPECT_THROW(writer.write("b", 0, values, 1), InternalError);
  writer.write("a", 3, values, 1);
  writer.finish();
  writer.write("a", 3, values, 1);
  EXPECT_THROW(writer.finish(), InternalError);  // one of them twice
  EXPECT_THROW(SafetensorsWriter(folder / "g", {{"a", FileDType::kI8, {4}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(folder / "g", {{"a", FileDType::kF32, {4}}, {"a", FileDType::kF32, {4}}}),
               InternalError);
}

}  // namespace
}  // namespace untied
