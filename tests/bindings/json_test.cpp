// JSON as the files of checkpoints and weights have it: what is read, what is refused and where, what is written.
#include "bindings/json.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "engine/error.h"

namespace moonflow {

namespace {

Json read(const std::string& text) {
  Json value;
  JsonFault fault;
  INFO(text);
  REQUIRE(read_json(text, value, fault));
  return value;
}

JsonFault fault_of(const std::string& text) {
  Json value;
  JsonFault fault;
  INFO(text);
  REQUIRE_FALSE(read_json(text, value, fault));
  return fault;
}

std::string line(const Json& value) { return write_json(value, JsonStyle::Line); }

}  // namespace

TEST_CASE("JSON that is read and written stays what it was") {
  for (const char* text : {"null", "true", "-7", "[]", "{}", R"(["",[[1,2.5],{}]])", R"({"a":{"b":[false]},"c":"d"})",
                           R"("tab\tquote\"zero\u0000\u001f")", R"({"a\u0000b":"ü"})"})
    CHECK(line(read(text)) == text);
  CHECK(line(read(" { \"b\" : 1 , \"a\" : 2 , \"b\" : 3 } ")) == R"({"a":2,"b":3})");
  const Json value = Json::Object{{"a", Json::Array{1, Json::Object()}}, {"b", Json::Object{{"c", "null"}}}};
  CHECK(write_json(value, JsonStyle::Indented) ==
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": {\n    \"c\": \"null\"\n  }\n}");
}

TEST_CASE("numbers in JSON read back exactly") {
  for (const int64_t number : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                               int64_t{1} << 53, int64_t{0}, int64_t{-1}})
    CHECK(*read(line(number)).as<int64_t>() == number);
  for (const double number : {0.1, -0.0, 1.0, 1e300, 5e-324, 2.2250738585072011e-308, 0.30000000000000004, 1e23,
                              1.7976931348623157e308, 18446744073709551616.0}) {
    const double again = *read(line(number)).as<double>();
    CHECK(again == number);
    CHECK(std::signbit(again) == std::signbit(number));
  }
  CHECK(*read("18446744073709551615").as<double>() == 18446744073709551616.0);
  CHECK(line(std::nan("")) == "null");
  CHECK(line(HUGE_VAL) == "null");
}

TEST_CASE("what is no JSON is refused, with the place") {
  CHECK(fault_of("").position == 1);
  CHECK(fault_of("[1,]").position == 4);
  CHECK(fault_of("{} x").position == 4);
  CHECK(fault_of("{\"a\":\"\xff\"}").position == 7);
  CHECK(fault_of("[NaN]").what == "not valid JSON");
  CHECK(fault_of("[1e999]").what == "not valid JSON: a number is too large");
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(line(read(nested(kJsonDepth))) == nested(kJsonDepth));
  CHECK(fault_of(nested(kJsonDepth + 1)).what == "nested more than 64 deep");
  CHECK(fault_of(std::string(1000000, '[')).what == "nested more than 64 deep");
}

TEST_CASE("text that is not UTF-8 is refused in JSON, or replaced where that was asked for") {
  CHECK_THROWS_AS(line("\xff"), Error);
  CHECK_THROWS_AS(line(Json::Object{{"\xff", 1}}), Error);
  CHECK(write_json("a\xff", JsonStyle::Line, InvalidUtf8::Replace) == "\"a\xef\xbf\xbd\"");
}

}  // namespace moonflow
