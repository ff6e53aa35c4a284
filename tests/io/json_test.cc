#include "io/json.h"

#include "files.h"

namespace untied {
namespace {

std::string error_in(const std::string& text) {
  return message_of([&] { parse_json(text, "f.json"); });
}

TEST(Json, KeepsOrderAndValues) {
  const std::string text = R"({"b":1,"a":[true,null,-2,18446744073709551615,0.5,"\u00e9\ud83d\ude00"],"":{"b":{}}})";
  const Json json = parse_json(" \n\t" + text + "\r\n ", "f.json");
  EXPECT_EQ(json, Json::parse(text));
  EXPECT_EQ(json.begin().key(), "b");
  EXPECT_EQ(json["a"][3].get<std::uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(json["a"][5], "\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(parse_json("7", "f.json"), 7);
  EXPECT_EQ(parse_json("\xef\xbb\xbf{}", "f.json"), Json::object());  // RFC 8259 lets a reader skip a byte order mark
}

TEST(Json, RefusesInOneLineThatNamesThePlace) {
  const std::string deep64 = std::string(64, '[') + std::string(64, ']');
  const std::string deep65 = std::string(65, '[') + std::string(65, ']');
  EXPECT_EQ(error_in(deep64), "");
  const std::pair<std::string, const char*> rows[] = {
      {"", "f.json: not valid JSON at column 1: syntax error while parsing value - unexpected end of input"},
      {"{\"a\": 1,\n \"b\": x}", "line 2, column 7: syntax error while parsing value - invalid literal"},
      {R"({"a": 1, "b": 2, "a": 3})", "column 20: the key \"a\" occurs twice in one object"},
      {R"({"a": {"b": 1, "\u0062": 2}})", "the key \"b\" occurs twice"},
      {deep65, "column 65: nested deeper than 64 levels"},
      {"{} {}", "column 4"},
      {"{},", "column 3"},
      {std::string("{}\0{}", 5), "column 3: a NUL byte"},
      {"[1,]", "column 4"},
      {"{'a': 1}", "column 2"},
      {"// c\n{}", "line 1, column 1"},
      {"NaN", "column 1"},
      {"[01]", "column 4"},
      {"1e999", "number overflow"},
      {"\"\xff\"", "UTF-8"},
      {"\"\xc0\xaf\"", "UTF-8"},      // overlong
      {"\"\xed\xa0\x80\"", "UTF-8"},  // a surrogate
      {R"("\ud800")", "surrogate"},
      {"\"a\nb\"", "control character"},
      {"\"" + std::string(5000, 'x'), "missing closing quote"},
  };
  for (const auto& [text, expected] : rows) {
    const std::string error = error_in(text);
    EXPECT_TRUE(contains(error, expected)) << text.substr(0, 80);
    EXPECT_LT(error.size(), 250u);
  }
}

TEST(Json, TakesLinearTime) {  // a searched object would take minutes here
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i ? ",\"key" : "\"key") + std::to_string(i) + "\":0";
  EXPECT_EQ(parse_json(text + "}", "f.json").size(), 300'000u);
}

TEST(Json, ShownIsShortAndPrintable) {
  EXPECT_EQ(shown("a\n\x1b\xc3\xa9"), R"("a\n\u001b\u00e9")");
  EXPECT_EQ(shown("\xff"), R"("\ufffd")");
  EXPECT_EQ(shown({{"a", {1, nullptr}}}), R"({"a":[1,null]})");
  EXPECT_EQ(shown(std::string(1000, 'x')).size(), 123u);
}

}  // namespace
}  // namespace untied
