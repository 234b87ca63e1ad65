#include "core/base/strict_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text, JsonLimits limits = {}) {
  auto parsed = ParseStrictJson(text, "x.json", limits);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(parsed.status().message());
}

TEST(ParseStrictJson, ReadsWhatIsPlain) {
  auto parsed = ParseStrictJson(R"({"a": [1, -2, 0.5, true, null, "é"]})", "x.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)["a"].size(), 6u);
}

TEST(ParseStrictJson, RefusesWhatOtherReadersWouldReadDifferently) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 1})"), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(ErrorOf(R"({"b": {"a": 1, "a": 2}})"), HasSubstr("appears twice"));
  EXPECT_THAT(ErrorOf("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(ErrorOf(R"({"a": NaN})"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(ErrorOf(R"({"a": 1e999})"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{\"a\": \"\xff\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("not JSON"));
}

TEST(ParseStrictJson, TheSameKeyInTwoObjectsIsFine) {
  EXPECT_TRUE(ParseStrictJson(R"([{"a": 1}, {"a": 1}])", "x.json").ok());
}

TEST(ParseStrictJson, DepthAndSizeAreBounded) {
  const std::string deep(100000, '[');
  EXPECT_THAT(ErrorOf(deep), HasSubstr("deeper than 32"));
  EXPECT_THAT(ErrorOf("[1,2,3]", {.max_bytes = 3}), HasSubstr("expected at most 3 bytes, got 7"));
}

TEST(TypedAccess, QuotesNoHalfCharacters) {
  Json object;
  object["s"] = std::string(63, 'x') + "\u00e9\u00e9";
  const std::string message(GetInt(object, "s", "m", 0, 9).status().message());
  EXPECT_THAT(message, HasSubstr("\"" + std::string(63, 'x') + "\""));
}

TEST(CanonicalJson, SortsKeysAndEscapesLikePythonsJson) {
  auto parsed = ParseStrictJson("{\"b\": 1, \"a\": \"\u00e9\\n\", \"c\": [true, null]}", "x.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(CanonicalJson(*parsed), R"({"a":"\u00e9\n","b":1,"c":[true,null]})");
}

TEST(TypedAccess, NamesThePathWhatWasExpectedAndWhatCame) {
  const Json object =
      Json::parse(R"({"n": 1.0, "t": true, "s": "x", "big": 18446744073709551615})");
  auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_THAT(message(GetInt(object, "n", "m", 0, 9)),
              HasSubstr("m.n: expected an integer in 0..9, got the number 1.0"));
  EXPECT_THAT(message(GetInt(object, "t", "m", 0, 9)), HasSubstr("got true"));
  EXPECT_THAT(message(GetInt(object, "big", "m", 0, INT64_MAX)), HasSubstr("18446744073709551615"));
  EXPECT_THAT(message(GetInt(object, "none", "m", 0, 9)),
              HasSubstr("m.none: expected an integer in 0..9, got nothing"));
  EXPECT_THAT(message(GetBool(object, "s", "m")),
              HasSubstr("m.s: expected true or false, got the string \"x\""));
  EXPECT_EQ(*GetFinite(object, "n", "m"), 1.0);
  EXPECT_THAT(std::string(RefuseUnknownKeys(object, {"n", "t", "s"}, "m").message()),
              HasSubstr("m.big: unknown key"));
}

}  // namespace
}  // namespace kvbridge::base
