// Data from files to sequences. Expected ids, targets and positions are written out by hand.
#include "io/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "files.h"
#include "io/documents.h"
#include "io/input_file.h"
#include "io/inspect.h"
#include "io/json.h"
#include "io/packing.h"
#include "io/rows.h"

namespace untied {
namespace {

namespace fs = std::filesystem;
using Ints = std::vector<std::int32_t>;
constexpr std::int32_t X = kIgnored;

class DatasetTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, const std::string& content) const {
    write_text(path(name), content);
    return path(name);
  }

  TemporaryFolder folder_;
};
using SlowDatasetTest = DatasetTest;

DataOptions options(dim_t context, dim_t vocab = 100) { return {.context = context, .vocab = vocab}; }

// Rows of the given lengths; the ids count up from 1 over all of them.
std::string rows(const std::vector<dim_t>& lengths) {
  std::string out;
  int id = 0;
  for (const dim_t length : lengths) {
    out += "{\"input_ids\": [";
    for (dim_t i = 0; i < length; ++i) out += format("{}{}", i > 0 ? ", " : "", ++id);
    out += "]}\n";
  }
  return out;
}

std::string open_error(const std::string& file, const DataOptions& options) {
  return message_of([&] { Dataset::open({file}, options); });
}

struct Expected {
  Ints ids, targets, positions;
  std::vector<dim_t> starts;
  dim_t tokens, valid;
};
void expect_sequence(const Sequence& s, const Expected& e) {
  EXPECT_EQ(s.ids, e.ids);
  EXPECT_EQ(s.targets, e.targets);
  EXPECT_EQ(s.positions, e.positions);
  EXPECT_EQ(s.document_starts, e.starts);
  EXPECT_EQ(s.tokens, e.tokens);
  EXPECT_EQ(s.valid_targets, e.valid);
}

// --- sequences, by hand ---

TEST_F(DatasetTest, PackedDocuments) {
  const auto data = Dataset::open({write("a.jsonl", rows({3, 1, 0, 7, 2, 3}))}, options(8));
  ASSERT_EQ(data->report().sequences, 3);
  expect_sequence(*data->sequence(0),
                  {{1, 2, 3, 4, 0, 0, 0, 0}, {2, 3, X, X, X, X, X, X}, {0, 1, 2, 0, 0, 1, 2, 3}, {0, 3, 4}, 4, 2});
  expect_sequence(*data->sequence(1),
                  {{5, 6, 7, 8, 9, 10, 11, 0}, {6, 7, 8, 9, 10, 11, X, X}, {0, 1, 2, 3, 4, 5, 6, 0}, {0, 7}, 7, 6});
  expect_sequence(
      *data->sequence(2),
      {{12, 13, 14, 15, 16, 0, 0, 0}, {13, X, 15, 16, X, X, X, X}, {0, 1, 0, 1, 2, 0, 1, 2}, {0, 2, 5}, 5, 3});
  const DataReport& report = data->report();
  EXPECT_EQ(report.documents, 5);
  EXPECT_EQ(report.empty_documents, 1);
  EXPECT_EQ(report.tokens, 16);
  EXPECT_EQ(report.padding, 8);
  EXPECT_EQ(report.valid_targets, 2 + 6 + 3);
}

TEST_F(DatasetTest, Concatenated) {
  DataOptions concat = options(8);
  concat.packing = Packing::kConcat;
  const auto data = Dataset::open({write("a.jsonl", rows({3, 1, 7, 0, 2, 3, 1}))}, concat);
  ASSERT_EQ(data->report().sequences, 3);
  expect_sequence(*data->sequence(0),
                  {{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9}, {0, 1, 2, 3, 4, 5, 6, 7}, {0}, 8, 8});
  expect_sequence(
      *data->sequence(1),
      {{9, 10, 11, 12, 13, 14, 15, 16}, {10, 11, 12, 13, 14, 15, 16, 17}, {0, 1, 2, 3, 4, 5, 6, 7}, {0}, 8, 8});
  expect_sequence(*data->sequence(2),
                  {{17, 0, 0, 0, 0, 0, 0, 0}, {X, X, X, X, X, X, X, X}, {0, 0, 1, 2, 3, 4, 5, 6}, {0, 1}, 1, 0});
  EXPECT_EQ(data->report().valid_targets, 16);
}

TEST_F(DatasetTest, LabelsAreShiftedInsideTheirDocument) {
  const std::string file = write("a.jsonl", R"({"input_ids": [1, 2, 3, 4], "labels": [51, -100, 53, 54]}
{"input_ids": [5, 6], "labels": [55, -100], "attention_mask": [1, 1]}
{"labels": [57, 58, 59], "input_ids": [7, 8, 9]}
)");
  const auto data = Dataset::open({file}, options(10));
  expect_sequence(*data->sequence(0), {{1, 2, 3, 4, 5, 6, 7, 8, 9, 0},
                                       {X, 53, 54, X, X, X, 58, 59, X, X},
                                       {0, 1, 2, 3, 0, 1, 0, 1, 2, 0},
                                       {0, 4, 6, 9},
                                       9,
                                       4});
  EXPECT_EQ(data->report().valid_targets, 4);

  DataOptions concat = options(6);
  concat.packing = Packing::kConcat;
  const auto stream = Dataset::open({file}, concat);
  EXPECT_EQ(stream->sequence(0)->targets, (Ints{X, 53, 54, 55, X, 57}));
  EXPECT_EQ(stream->sequence(1)->targets, (Ints{58, 59, X, X, X, X}));
  EXPECT_EQ(stream->report().valid_targets, 6);
}

TEST_F(DatasetTest, ALabelIsNotCarriedAcrossACut) {
  const auto data = Dataset::open({write("a.jsonl", rows({6, 2}))}, options(4));
  expect_sequence(*data->sequence(0), {{1, 2, 3, 4}, {2, 3, 4, X}, {0, 1, 2, 3}, {0}, 4, 3});
  expect_sequence(*data->sequence(1), {{5, 6, 7, 8}, {6, X, 8, X}, {0, 1, 0, 1}, {0, 2}, 4, 2});
}

// What training sees of a document of any length: [context, policy] -> sequences, valid targets, tokens lost.
TEST_F(DatasetTest, LongDocuments) {
  struct Case {
    dim_t length;
    LongDocuments policy;
    dim_t sequences, valid, split, truncated, dropped, dropped_tokens;
  };
  const Case cases[] = {
      {2, LongDocuments::kSplit, 1, 1, 0, 0, 0, 0},    {7, LongDocuments::kError, 1, 6, 0, 0, 0, 0},
      {8, LongDocuments::kError, 1, 7, 0, 0, 0, 0},    {9, LongDocuments::kSplit, 2, 7, 1, 0, 0, 0},
      {16, LongDocuments::kSplit, 2, 14, 1, 0, 0, 0},  {19, LongDocuments::kSplit, 3, 16, 1, 0, 0, 0},
      {9, LongDocuments::kTruncate, 1, 7, 0, 1, 0, 1}, {30, LongDocuments::kTruncate, 1, 7, 0, 1, 0, 22},
      {9, LongDocuments::kDrop, 0, 0, 0, 0, 1, 9},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(format("{} tokens, policy {}", c.length, static_cast<int>(c.policy)));
    DataOptions with = options(8);
    with.long_documents = c.policy;
    // A full document in front, so that even the dropped one leaves something to train on.
    const auto data = Dataset::open({write("a.jsonl", rows({8, c.length}))}, with);
    const DataReport& report = data->report();
    EXPECT_EQ(report.sequences, 1 + c.sequences);
    EXPECT_EQ(report.valid_targets, 7 + c.valid);
    EXPECT_EQ(report.split_documents, c.split);
    EXPECT_EQ(report.truncated_documents, c.truncated);
    EXPECT_EQ(report.dropped_documents, c.dropped);
    EXPECT_EQ(report.dropped_tokens, c.dropped_tokens);
    EXPECT_EQ(report.tokens, 8 + c.length);
    dim_t valid = 0, tokens = 0;
    for (dim_t i = 0; i < report.sequences; ++i) {
      valid += data->sequence(i)->valid_targets;
      tokens += data->sequence(i)->tokens;
    }
    EXPECT_EQ(valid, report.valid_targets);
    EXPECT_EQ(tokens, report.tokens - report.dropped_tokens);
    EXPECT_EQ(tokens + report.padding, 8 * report.sequences);
  }
  DataOptions strict = options(8);
  strict.long_documents = LongDocuments::kError;
  EXPECT_TRUE(
      contains(open_error(write("a.jsonl", rows({8, 9})), strict), "a.jsonl, row 2: 9 tokens, more than the context"));
}

// --- what a row may be ---

TEST_F(DatasetTest, AcceptedRows) {
  struct Case {
    std::string content;
    Ints ids;  // of the first sequence of 6, without padding
  };
  const Case cases[] = {
      {"{\"input_ids\": [1, 2]}", {1, 2}},  // no newline at the end
      {"{\"input_ids\": [1, 2]}\r\n\r\n{\"input_ids\":[3]}\r\n", {1, 2, 3}},
      {"\n  \t\n{\"input_ids\": [1, 2]}\n\n", {1, 2}},
      {"\xEF\xBB\xBF{\"input_ids\": [1, 2]}\n{\"input_ids\": [3]}\n", {1, 2, 3}},
      {"\xEF\xBB\xBF\n{\"input_ids\": [1, 2]}\n", {1, 2}},
      {" { \"input_ids\" : [ 0 ,99\t, 5] } ", {0, 99, 5}},
      {R"({"meta": {"input_ids": [777], "a": [[1.5, {}]], "a": null}, "input_ids": [1, 2], "n": 1e3, "b": true})",
       {1, 2}},
      {R"({"input_ids": [1, 2], "labels": null, "attention_mask": null, "position_ids": null})", {1, 2}},
      {R"({"input_ids": [1, 2], "attention_mask": [1, 1], "text": "the text of it", "messages": []})", {1, 2}},
      {R"({"text": "ab\u0000\u00e9\n"})", {'a', 'b', 0, 0xC3, 0xA9, '\n'}},
      {"{\"text\": \"\xC3\xA9\"}\n{\"text\": \"\"}\n{\"text\": \"z\"}", {0xC3, 0xA9, 'z'}},
  };
  DataOptions bytes = options(6, 256);
  bytes.byte_tokenizer = true;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.content);
    const auto sequence = Dataset::open({write("a.jsonl", c.content)}, bytes)->sequence(0);
    EXPECT_EQ(Ints(sequence->ids.begin(), sequence->ids.begin() + sequence->tokens), c.ids);
  }
}

TEST_F(DatasetTest, RefusedRows) {
  struct Case {
    std::string row, message;
  };
  const Case cases[] = {
      {R"({"input_ids": [1, 100]})", "input_ids[1] is 100: an id is an integer in [0, 100)"},
      {R"({"input_ids": [-1]})", "input_ids[0] is -1"},
      {R"({"input_ids": [1, 4294967297]})", "input_ids[1] is 4294967297"},
      {R"({"input_ids": [18446744073709551615]})", "input_ids[0] is 18446744073709551615"},
      {R"({"input_ids": [1, 2, 99999999999999999999999]})", "input_ids[2] is 99999999999999999999999"},
      {R"({"input_ids": [1, 2.0]})", "input_ids[1] is 2.0"},
      {R"({"input_ids": [1e1]})", "input_ids[0] is 1e1"},
      {R"({"input_ids": ["1"]})", "input_ids[0] is a string"},
      {R"({"input_ids": [1, null]})", "input_ids[1] is null"},
      {R"({"input_ids": [1, true]})", "input_ids[1] is true"},
      {R"({"input_ids": [[1, 2]]})", "input_ids[0] is a list"},
      {R"({"input_ids": [{}]})", "input_ids[0] is an object"},
      {R"({"input_ids": 5})", "input_ids is a number where a list"},
      {R"({"input_ids": "1 2"})", "input_ids is a string where a list"},
      {R"({"input_ids": [1, 2], "labels": [1, -1]})",
       "labels[1] is -1: a label is -100 (ignored) or an id in [0, 100)"},
      {R"({"input_ids": [1, 2], "labels": [100, 1]})", "labels[0] is 100"},
      {R"({"input_ids": [1, 2], "labels": [1, -100.0]})", "labels[1] is -100.0"},
      {R"({"input_ids": [1, 2], "labels": [1]})", "1 labels for 2 input_ids"},
      {R"({"input_ids": [1, 2], "labels": []})", "0 labels for 2 input_ids"},
      {R"({"input_ids": [], "labels": [1]})", "1 labels for 0 input_ids"},
      {R"({"input_ids": [1, 2], "attention_mask": [1, 0]})", "attention_mask[1] is 0: only ones"},
      {R"({"input_ids": [1, 2], "attention_mask": [1]})", "attention_mask has 1 entries for 2"},
      {R"({"input_ids": [1, 2], "position_ids": [0, 1]})", "position_ids is not supported"},
      {R"({"input_ids": [1, 2], "loss_mask": [0, 1]})", "loss_mask is not supported: mark ignored"},
      {R"({"labels": [1, 2]})", "labels without input_ids"},
      {R"({"input_ids": [1], "input_ids": [2]})", "column \"input_ids\" is there twice"},
      {R"({"input_ids": [1], "a": 1, "a": 1})", "column \"a\" is there twice"},
      {R"({"text": "a"})", "text without a tokenizer: `--tokenizer bytes`"},
      {R"({"text": 5})", "text is a number where a string"},
      {R"({"prompt": "a", "completion": "b"})", "rows of {\"prompt\", \"completion\"} are not supported yet"},
      {R"({"messages": [{"role": "user"}]})", "rows of {\"messages\"} are not supported yet"},
      {R"({"tokens": [1]})", "neither input_ids nor text"},
      {"{}", "neither input_ids nor text"},
      {"[1, 2]", "a row is an object"},
      {"null", "a row is an object"},
      {"7", "a row is an object"},
      // Broken JSON, above all where lists are read by the short way.
      {R"({"input_ids": [1, 2)", ", byte 19: syntax error"},
      {R"({"input_ids": [1,)", ", byte 17: syntax error"},
      {R"({"input_ids": [1, 2,]})", ", byte 21: syntax error"},
      {R"({"input_ids": [1, , 2]})", ", byte 19: syntax error"},
      {R"({"input_ids": [, 1]})", ", byte 16: syntax error"},
      {R"({"input_ids": [1 2]})", ", byte 19: syntax error"},
      {R"({"input_ids": [01, 2]})", ", byte 18: syntax error"},
      {R"({"input_ids": [1, +2]})", ", byte 19: syntax error"},
      {R"({"input_ids": [1, -]})", ", byte 20: syntax error"},
      {R"({"input_ids": [1, 2}})", ", byte 20: syntax error"},
      {R"({"input_ids": [1, 2]]})", ", byte 21: syntax error"},
      {R"({"input_ids": [NaN]})", ", byte 16: syntax error"},
      {R"({"input_ids": [1]} {"input_ids": [2]})", ", byte 20: syntax error"},
      {R"({"input_ids": [1],})", ", byte 19: syntax error"},
      {R"({'input_ids': [1]})", ", byte 2: syntax error"},
      {R"({"input_ids": [1], "text": "\ud800"})", "syntax error"},
      {"{\"input_ids\": [1], \"x\": \"\xFF\"}", ", byte 26: syntax error"},
      {"{\"input_ids\": [1], \"x\": \"\xC0\x80\"}", "syntax error"},
      {"{\"input_ids\": [1], \"x\": \"a\tb\"}", "syntax error"},
      {std::string("{\"input_ids\": [1]}\0{", 20), ", byte 19: a zero byte"},
      {std::string(70, '['), "a row is an object"},
      {R"({"input_ids": [1], "x": )" + std::string(64, '[') + std::string(64, ']') + "}", "nested deeper than 64"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.row);
    const std::string error = open_error(write("a.jsonl", "{\"input_ids\": [1, 2]}\r\n\n" + c.row + "\n"), options(8));
    EXPECT_TRUE(contains(error, "a.jsonl, row 3"));
    EXPECT_TRUE(contains(error, c.message));
    EXPECT_LT(error.size(), 400u);
  }
}

// Lists of integers are read by own code as far as they are plain. Random lists, most of them broken, against the
// library.
TEST_F(DatasetTest, ListsAreReadAsTheLibraryReadsThem) {
  const std::string_view alphabet[] = {"0", "1", "42", "99", "100", "-", ",", ", ", ",", " ", "\t", "]", ".5", "e1"};
  dim_t accepted = 0;
  for (dim_t round = 0; round < 3000; ++round) {
    std::string row = "{\"input_ids\":[";
    const auto draws = shuffled_order(14, 5, round);
    for (dim_t i = 0; i < 1 + round % 7; ++i) row += alphabet[draws[i]];
    row += "]}";
    Ints expected;
    bool legal = Json::accept(row);
    if (legal) {
      const Json parsed = Json::parse(row);
      for (const Json& id : parsed["input_ids"]) {
        legal = legal && id.is_number_integer() && id >= 0 && id < 100;
        if (legal) expected.push_back(id);
      }
    }
    try {
      EXPECT_EQ(parse_row(row, {.vocab = 100, .byte_tokenizer = false}, "row").ids, expected) << row;
      EXPECT_TRUE(legal) << row;
      ++accepted;
    } catch (const InputError& error) {
      EXPECT_FALSE(legal) << row << ": " << error.what();
    }
  }
  EXPECT_GT(accepted, 200);
}

TEST_F(DatasetTest, TheErrorOfALongRowIsShort) {
  const std::string row = "{\"input_ids\": [1], \"x\": \"" + std::string(1 << 20, 'y');
  EXPECT_LT(open_error(write("a.jsonl", row), options(8)).size(), 400u);
}

TEST_F(DatasetTest, NoTarget) {
  DataOptions concat = options(8);
  concat.packing = Packing::kConcat;
  DataOptions drop = options(2);
  drop.long_documents = LongDocuments::kDrop;
  struct Case {
    std::string content;
    DataOptions options;
  };
  const Case cases[] = {
      {"", options(8)},
      {"\n\n", options(8)},
      {"{\"input_ids\": []}\n", options(8)},
      {"{\"input_ids\": [1]}\n{\"input_ids\": [2]}\n", options(8)},
      {"{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n", options(8)},
      {"{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n", options(8)},  // a first label is nobody's target
      {"{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n", concat},
      {"{\"input_ids\": [1, 2, 3]}\n", drop},
      {"{\"input_ids\": [1, 2, 3]}\n", options(1)},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.content);
    const std::string file = write("a.jsonl", c.content);
    EXPECT_TRUE(contains(message_of([&] { Dataset::open({file}, c.options); }), "no target to train on"));
  }
  try {
    Dataset::open({write("a.jsonl", "")}, options(8));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
  }
}

// --- text ---

TEST_F(DatasetTest, PlainTextIsItsBytes) {
  DataOptions bytes = options(5, 256);
  bytes.byte_tokenizer = true;
  const auto data =
      Dataset::open({write("a.txt", "ab\r\n\xFFz"), write("empty", ""), write("dir.x/b", "\xEF\xBB\xBFq")}, bytes);
  expect_sequence(*data->sequence(0),
                  {{'a', 'b', '\r', '\n', 0xFF}, {'b', '\r', '\n', 0xFF, X}, {0, 1, 2, 3, 4}, {0}, 5, 4});
  expect_sequence(*data->sequence(1),
                  {{'z', 0xEF, 0xBB, 0xBF, 'q'}, {X, 0xBB, 0xBF, 'q', X}, {0, 0, 1, 2, 3}, {0, 1}, 5, 3});
  EXPECT_EQ(data->report().empty_documents, 1);
  EXPECT_EQ(data->report().split_documents, 1);
  EXPECT_EQ(data->report().valid_targets, 7);

  EXPECT_TRUE(contains(open_error(path("a.txt"), options(5, 256)), "text without a tokenizer: `--tokenizer bytes`"));
  bytes.vocab = 255;
  EXPECT_TRUE(contains(open_error(path("a.txt"), bytes), "byte 4 is 255, and the vocabulary [0, 255)"));
  EXPECT_TRUE(contains(open_error(write("a.jsonl", "{\"text\": \"a\xF4\x80\x80\x80\"}"), (bytes.vocab = 200, bytes)),
                       "a.jsonl, row 1, text: byte 1 is 244"));
}

// --- files ---

TEST_F(DatasetTest, Files) {
  const std::string row = rows({2});
  for (const char* name : {"d/b.jsonl", "d/a.jsonl", "d/B.JSONL", "d/c[1].jsonl"}) write(name, row);
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::string> out;
    for (const DataFile& file : find_data_files(patterns)) {
      EXPECT_EQ(file.kind, FileKind::kRows);
      out.push_back(fs::path(file.path).filename());
    }
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({path("d/*")}), (Names{"B.JSONL", "a.jsonl", "b.jsonl", "c[1].jsonl"}));
  EXPECT_EQ(names({path("*/[ab].jsonl"), path("d/a.jsonl")}), (Names{"a.jsonl", "b.jsonl", "a.jsonl"}));
  EXPECT_EQ(names({path("d/c[1].jsonl")}), (Names{"c[1].jsonl"}));  // a file of that name comes before the pattern
  EXPECT_EQ(Dataset::open({path("d/*"), path("d/a.jsonl")}, options(8))->report().repeated_files, 1);

  struct Case {
    std::string name, message;
  };
  const Case cases[] = {
      {path("d"), "a folder; name its files"},
      {path("d/none.jsonl"), "none.jsonl: no such file"},
      {path("d/*.txt"), "no file matches"},
      {path("d/a.jsonl/x"), "no such file"},
      {"/dev/null", "not a regular file"},
      {write("t.npy", ""), ".npy files are not supported yet"},
      {write("t.BIN", ""), ".bin files"},
      {write("t.idx", ""), ".idx files"},
      {write("t.jsonl.gz", ""), ".gz files"},
      {write("t.parquet", ""), ".parquet files"},
      {path("*"), "a folder"},  // patterns do not pass over what they cannot use
      {write("lfs.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS pointer"},
  };
  for (const Case& c : cases) EXPECT_TRUE(contains(open_error(c.name, options(8)), c.message));
  EXPECT_THROW(Dataset::open({}, options(8)), InputError);
  EXPECT_THROW(Dataset::open({path("d/a.jsonl")}, options(0)), ConfigError);
  EXPECT_THROW(Dataset::open({path("d/a.jsonl")}, options(dim_t{1} << 31)), ConfigError);
  EXPECT_THROW(Dataset::open({path("d/a.jsonl")}, options(8, dim_t{1} << 31)), ConfigError);
}

TEST_F(DatasetTest, FilesThatChangeWhileWeTrain) {
  const auto reopened = [&](const std::string& content) {
    const std::string file = write("a.jsonl", rows({5, 5, 5}));
    const auto data = Dataset::open({file}, options(5));
    write_text(file, content);
    return message_of([&] { data->sequence(2); });
  };
  EXPECT_TRUE(contains(reopened(rows({5, 5})), "a.jsonl: shorter than when it was first read"));
  EXPECT_TRUE(contains(reopened(""), "shorter than when it was first read"));
  EXPECT_TRUE(contains(reopened(rows({5, 5}) + "{\"input_ids\": [1, 2, 3]}                                       "),
                       "a.jsonl, changed since it was first read, at offset 63: 3 tokens where there were 5"));
  EXPECT_TRUE(contains(reopened(rows({5, 5}) + std::string(100, 'x')),
                       "changed since it was first read, at offset 63, byte 1"));

  const auto grown = Dataset::open({write("b.jsonl", rows({5, 5}))}, options(5));
  std::ofstream(path("b.jsonl"), std::ios::app) << "half a ro";
  EXPECT_EQ(grown->sequence(1)->ids, (Ints{6, 7, 8, 9, 10}));

  DataOptions bytes = options(5, 256);
  bytes.byte_tokenizer = true;
  const auto text = Dataset::open({write("c.txt", "0123456789")}, bytes);
  fs::resize_file(path("c.txt"), 7);
  EXPECT_EQ(text->sequence(0)->ids.back(), '4');
  EXPECT_TRUE(contains(message_of([&] { text->sequence(1); }), "c.txt: shorter than"));

  const auto gone = Dataset::open({write("d.jsonl", rows({5}))}, options(5));
  fs::remove(path("d.jsonl"));
  EXPECT_TRUE(contains(message_of([&] { gone->sequence(0); }), "d.jsonl: No such file"));
}

// --- order ---

TEST_F(DatasetTest, WrapsInFileOrder) {
  const auto data = Dataset::open({write("a.jsonl", rows({4, 3})), write("b.jsonl", rows({2}))}, options(4));
  ASSERT_EQ(data->report().sequences, 3);
  for (const dim_t index : std::vector<dim_t>{0, 5, 2, 3000000001, 4, 1}) {
    const Ints expected[] = {{1, 2, 3, 4}, {5, 6, 7, 0}, {1, 2, 0, 0}};
    EXPECT_EQ(data->sequence(index)->ids, expected[index % 3]) << index;
  }
  EXPECT_THROW(data->sequence(-1), InternalError);
}

// Documents of distinct first ids: an epoch holds each document once, in the order of the permutation, whatever the
// order of calls, and another epoch or seed has another order.
TEST_F(DatasetTest, ShufflesBySeedAndEpoch) {
  const std::vector<dim_t> lengths = {3, 1, 7, 2, 3, 6, 5, 4, 8, 1, 2, 2};
  const std::string file = write("a.jsonl", rows(lengths));
  for (const Packing packing : {Packing::kDocuments, Packing::kConcat}) {
    DataOptions shuffled = options(8);
    shuffled.shuffle = true;
    shuffled.packing = packing;
    shuffled.seed = 11;
    const auto data = Dataset::open({file}, shuffled);

    std::vector<Ints> ids;  // by index, over three epochs
    for (dim_t epoch = 0; epoch < 3; ++epoch) {
      const auto order = shuffled_order(static_cast<dim_t>(lengths.size()), 11, epoch);
      Ints expected, seen;
      for (const dim_t document : order) {
        std::int32_t id = 1;
        for (dim_t i = 0; i < document; ++i) id += static_cast<std::int32_t>(lengths[i]);
        for (dim_t i = 0; i < lengths[document]; ++i) expected.push_back(id++);
      }
      while (seen.size() < expected.size()) {
        const auto sequence = data->sequence(static_cast<dim_t>(ids.size()));
        ids.push_back(sequence->ids);
        seen.insert(seen.end(), sequence->ids.begin(), sequence->ids.begin() + sequence->tokens);
      }
      EXPECT_EQ(seen, expected) << "epoch " << epoch;
    }
    const auto again = Dataset::open({file}, shuffled);
    for (dim_t i = static_cast<dim_t>(ids.size()) - 1; i >= 0; --i) EXPECT_EQ(again->sequence(i)->ids, ids[i]) << i;
    shuffled.seed = 12;
    EXPECT_NE(Dataset::open({file}, shuffled)->sequence(0)->ids, ids[0]);
  }
}

TEST_F(DatasetTest, RanksShareSequences) {
  DataOptions shuffled = options(8);
  shuffled.shuffle = true;
  std::vector<dim_t> lengths(40);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = 1 + static_cast<dim_t>(i % 4);
  const auto data = Dataset::open({write("a.jsonl", rows(lengths))}, options(8, 1000));
  EXPECT_EQ(data->sequence(3), data->sequence(3));

  shuffled.vocab = 1000;
  const auto expected = Dataset::open({path("a.jsonl")}, shuffled), shared = Dataset::open({path("a.jsonl")}, shuffled);
  std::vector<std::vector<Ints>> seen(8);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    ranks.emplace_back([&, rank] {
      for (dim_t i = 0; i < 60; ++i) seen[rank].push_back(shared->sequence(rank % 2 ? 59 - i : i)->targets);
    });
  for (std::thread& rank : ranks) rank.join();
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    for (dim_t i = 0; i < 60; ++i) ASSERT_EQ(seen[rank][i], expected->sequence(rank % 2 ? 59 - i : i)->targets);
}

// --- sizes ---

// Lines that end before, at and behind the end of the reader's first block of 1 MiB.
TEST_F(DatasetTest, LinesAcrossBlocks) {
  for (dim_t before = 0; before < 12; ++before) {
    const std::string first(static_cast<std::size_t>((dim_t{1} << 20) - before), 'x');
    for (const bool newline_at_end : {false, true}) {
      const std::string content = "\xEF\xBB\xBF" + first + "\nab\n\ncd" + (newline_at_end ? "\n" : "");
      const InputFile file(write("a", content));
      std::vector<std::string> lines;
      for (LineReader reader(file); reader.next();) {
        lines.emplace_back(reader.line());
        EXPECT_EQ(reader.number(), static_cast<dim_t>(lines.size()));
        EXPECT_EQ(file.read_exactly(reader.offset(), static_cast<dim_t>(reader.line().size())), reader.line());
      }
      EXPECT_EQ(lines, (std::vector<std::string>{first, "ab", "", "cd"})) << before;
    }
  }
}

TEST_F(DatasetTest, RowsOfMegabytes) {
  std::string content = rows({3}) + "{\"pad\": \"" + std::string(3 << 20, 'x') + "\", \"input_ids\": [7, 8]}\n";
  for (int i = 0; i < 20; ++i) content += format("{{\"input_ids\": [{}, 9]}}\n", i);
  content += "{\"input_ids\": [5";
  for (int i = 1; i < 1'000'000; ++i) content += format(", {}", 10 + i % 90);
  content += "]}\n{\"input_ids\": [1, 2, 3]}";
  const auto data = Dataset::open({write("a.jsonl", content)}, options(1'000'000));
  EXPECT_EQ(data->report().documents, 24);
  EXPECT_EQ(data->report().sequences, 3);
  const auto sequence = data->sequence(0);
  EXPECT_EQ(Ints(sequence->ids.begin(), sequence->ids.begin() + 9), (Ints{1, 2, 3, 7, 8, 0, 9, 1, 9}));
  EXPECT_EQ(data->sequence(1)->valid_targets, 999'999);
  EXPECT_EQ(data->sequence(1)->ids.back(), 10 + 999'999 % 90);
  EXPECT_EQ(data->sequence(2)->ids[2], 3);
  EXPECT_TRUE(contains(open_error(write("b.jsonl", content + "x"), options(8)), "b.jsonl, row 24, byte 25"));
}

TEST_F(SlowDatasetTest, ARowOf100Megabytes) {
  std::string content = "{\"input_ids\": [1";
  while (content.size() < 100'000'000) content += ",2,34,56,78,90";
  const auto data = Dataset::open({write("a.jsonl", content + "]}\n" + rows({2}))}, options(1 << 20));
  EXPECT_EQ(data->report().documents, 2);
  EXPECT_EQ(data->report().split_documents, 1);
  EXPECT_GT(data->report().sequences, 30);
  EXPECT_EQ(data->sequence(data->report().sequences - 1)->valid_targets + 1,
            (data->report().tokens - 2) % (1 << 20) - 1 + 2);
}

// Sparse files: the length is real, the disk is not touched.
TEST_F(DatasetTest, OffsetsBeyond32Bits) {
  const dim_t size = 5 * (dim_t{1} << 30) + 3;
  const auto write_at = [&](const std::string& name, dim_t offset, std::string_view bytes) {
    fs::resize_file(write(name, ""), static_cast<std::uintmax_t>(size));
    std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file << bytes;
  };
  DataOptions bytes = options(1 << 20, 256);
  bytes.byte_tokenizer = true;
  write_at("a.txt", size - 3, "abc");
  const auto data = Dataset::open({path("a.txt")}, bytes);
  EXPECT_EQ(data->report().tokens, size);
  ASSERT_EQ(data->report().sequences, 5121);
  EXPECT_EQ(data->report().valid_targets, size - 5121);
  EXPECT_EQ(data->sequence(4100)->tokens, 1 << 20);
  const auto last = data->sequence(5120);
  EXPECT_EQ(Ints(last->ids.begin(), last->ids.begin() + 4), (Ints{'a', 'b', 'c', 0}));
  EXPECT_EQ(last->valid_targets, 2);

  const std::string row = R"({"input_ids": [4, 5, 6]})";
  write_at("b.jsonl", size - 100, row);
  DocumentReader reader(find_data_files({path("b.jsonl")}), {.vocab = 100, .byte_tokenizer = false});
  Ints ids, labels;
  reader.append({.offset = size - 100, .length = static_cast<dim_t>(row.size()), .file = 0}, 3, {1, 3}, ids, labels);
  EXPECT_EQ(ids, (Ints{5, 6}));
  EXPECT_EQ(labels, ids);
}

// --- what is said ---

TEST_F(DatasetTest, ReportSaysEveryCountThatIsNotZero) {
  EXPECT_EQ(Dataset::open({write("a.jsonl", rows({8}))}, options(8))->report().str(),
            "data: 1 file, 1 document, 8 tokens\n"
            "packed: 1 sequence per epoch, 7 targets to train on");
  const std::string file = write("b.jsonl", rows({3, 0, 12, 2}));
  DataOptions with = options(8);
  EXPECT_EQ(Dataset::open({file, file}, with)->report().str(),
            "data: 2 files, 6 documents, 34 tokens\n"
            "packed: 6 sequences per epoch, 26 targets to train on, 14 positions of padding (29 %)\n"
            "1 file named more than once: read as often\n"
            "2 empty documents skipped\n"
            "2 documents longer than the context: split");
  with.long_documents = LongDocuments::kTruncate;
  EXPECT_EQ(Dataset::open({file}, with)->report().str(),
            "data: 1 file, 3 documents, 17 tokens\n"
            "packed: 3 sequences per epoch, 10 targets to train on, 11 positions of padding (46 %)\n"
            "1 empty document skipped\n"
            "1 document longer than the context: truncated\n"
            "4 tokens lost by that");
}

TEST_F(DatasetTest, Inspect) {
  DataOptions bytes = options(8, 256);
  bytes.byte_tokenizer = true;
  const auto data =
      Dataset::open({write("a.jsonl", "{\"text\": \"a'\\n\"}\n{\"input_ids\": [200, 7], \"labels\": [1, 300]}\n")},
                    (bytes.vocab = 301, bytes));
  EXPECT_EQ(inspect(*data->sequence(0), {0, 100}, true),
            "8 positions: 5 tokens in 2 documents, 3 targets, 3 of padding\n"
            "     index document   position         id    byte     target\n"
            "         0        0          0         97     'a'         39 '\\''\n"
            "         1        0          1         39    '\\''         10 '\\n'\n"
            "         2        0          2         10    '\\n'    ignored\n"
            "         3        1          0        200  '\\xc8'        300\n"
            "         4        1          1          7  '\\x07'    ignored\n"
            "         5  padding          0          0            ignored\n"
            "         6  padding          1          0            ignored\n"
            "         7  padding          2          0            ignored\n");
  EXPECT_EQ(inspect(*data->sequence(0), {3, 4}, false),
            "8 positions: 5 tokens in 2 documents, 3 targets, 3 of padding\n"
            "     index document   position         id     target\n"
            "         3        1          0        200        300\n");
}

}  // namespace
}  // namespace untied
