// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/safetensors.h"

#include "tests/support/catch.h"
#include "tests/support/safetensors_file.h"

using namespace muster;
using namespace muster::safetensors;
using Catch::Matchers::Contains;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> (8 * i) & 0xffU));
  return out + header + data;
}

std::string error_of(const std::string& header, const std::string& data = "") {
  const auto result = parse(file_of(header, data));
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kCorrupt);
  REQUIRE_THAT(result.error().message, Contains("not a valid safetensors file: "));
  REQUIRE(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

}  // namespace

TEST_CASE("a written file reads back with its tensors and metadata") {
  const std::vector<TensorView> tensors{{"b", DType::kFloat32, {2, 1}, "abcdefgh"},
                                        {"c", DType::kUInt8, {3}, "xyz"},
                                        {"a", DType::kInt64, {}, "01234567"},
                                        {"empty", DType::kFloat32, {0, 5}, ""}};
  const auto bytes = serialize(tensors, {{"note", "line\n\"two\""}});
  REQUIRE_OK(bytes);
  const auto view = parse(*bytes);
  REQUIRE_OK(view);
  REQUIRE(view->metadata == Metadata{{"note", "line\n\"two\""}});
  REQUIRE(view->tensors.size() == 4);
  for (const TensorView& tensor : tensors) {
    const TensorView* found = view->find(tensor.name);
    REQUIRE(found != nullptr);
    REQUIRE(found->dtype == tensor.dtype);
    REQUIRE(found->shape == tensor.shape);
    REQUIRE(found->bytes == tensor.bytes);
  }
  REQUIRE(view->find("d") == nullptr);
}

TEST_CASE("data starts on a 64-byte boundary, larger alignments first, then by name") {
  for (std::size_t name_length = 1; name_length < 70; ++name_length) {
    const std::string name(name_length, 'n');
    const auto bytes = serialize({{name, DType::kUInt8, {1}, "u"},
                                  {"z", DType::kFloat64, {1}, "dddddddd"},
                                  {"a", DType::kFloat32, {1}, "ffff"},
                                  {"b", DType::kFloat32, {1}, "gggg"}},
                                 {});
    REQUIRE_OK(bytes);
    const std::size_t data = bytes->size() - 17;
    REQUIRE(data % 64 == 0);
    REQUIRE(bytes->substr(data) == "ddddddddffffggggu");
  }
}

TEST_CASE("tensors that cannot be written are refused") {
  REQUIRE_FALSE(serialize({{"a", DType::kUInt8, {1}, "x"}, {"a", DType::kUInt8, {1}, "y"}}, {}));
  REQUIRE_FALSE(serialize({{"__metadata__", DType::kUInt8, {1}, "x"}}, {}));
  REQUIRE_FALSE(serialize({{"a", DType::kFloat32, {2}, "xxxx"}}, {}));
  REQUIRE_FALSE(serialize({{"a", DType::kFloat32, {-1}, "xxxx"}}, {}));
  REQUIRE_FALSE(serialize({{"\xff", DType::kUInt8, {1}, "x"}}, {}));
}

TEST_CASE("a file cut anywhere is refused") {
  const auto bytes = serialize({{"a", DType::kUInt8, {5}, "hello"}}, {{"k", "v"}});
  REQUIRE_OK(bytes);
  for (std::size_t length = 0; length < bytes->size(); ++length) {
    const auto result = parse(std::string_view(*bytes).substr(0, length));
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code == ErrorCode::kCorrupt);
  }
  REQUIRE_THAT(parse(*bytes + "x").error().message, Contains("1 bytes at its end belong to no tensor"));
}

TEST_CASE("a header longer than its cap or than the file is refused before it is read") {
  REQUIRE_THAT(parse(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)).error().message,
               Contains("more than the limit"));
  REQUIRE_THAT(parse(std::string("\x20\0\0\0\0\0\0\0{}", 10)).error().message, Contains("truncated"));
}

TEST_CASE("hostile headers are refused with what is wrong") {
  const std::string u8 = R"("dtype":"U8","shape":[1],"data_offsets":)";
  REQUIRE_THAT(error_of(""), Contains("does not start with '{'"));
  REQUIRE_THAT(error_of(" {}"), Contains("does not start with '{'"));
  REQUIRE_THAT(error_of("{"), Contains("not JSON"));
  REQUIRE_THAT(error_of("{}x"), Contains("not JSON"));
  REQUIRE_THAT(error_of(R"({"a":1})"), Contains("at 'a': it is no object"));
  REQUIRE_THAT(error_of(R"({"a":[]})"), Contains("it is no object"));
  REQUIRE_THAT(error_of(R"({"a":{}})"), Contains("it must have dtype, shape and data_offsets"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1],\"x\":1}}", "x"), Contains("and nothing else"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1],\"dtype\":\"U8\"}}", "x"),
               Contains("'dtype' appears twice"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0]}}", "x"), Contains("two numbers"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1,2]}}", "x"), Contains("two numbers"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[-1,0]}}", "x"), Contains("none below 0"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1.0]}}", "x"), Contains("whole numbers"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,18446744073709551616]}}", "x"), Contains("whole numbers"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[1,0]}}", "x"), Contains("ends before it begins"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,18446744073709551615]}}", "x"), Contains("ends at byte"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[1,2]}}", "xy"), Contains("a hole in front"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1]},\"b\":{" + u8 + "[0,1]}}", "x"), Contains("overlaps"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,1]},\"a\":{" + u8 + "[1,2]}}", "xy"),
               Contains("'a' appears twice"));
  REQUIRE_THAT(error_of("{\"a\":{" + u8 + "[0,2]}}", "xy"),
               Contains("its shape needs 1 bytes, its data has 2"));
  REQUIRE_THAT(error_of(R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,1]}})", "x"),
               Contains("unknown dtype \"F99\""));
  REQUIRE_THAT(error_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
               Contains("its shape is too large"));
  REQUIRE_THAT(error_of(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})"),
               Contains("its shape is too large"));
  REQUIRE_THAT(error_of(R"({"__metadata__":{"a":1}})"), Contains("metadata must be text"));
  REQUIRE_THAT(error_of(R"({"__metadata__":{"a":"1","a":"2"}})"), Contains("appears twice"));
  REQUIRE_THAT(error_of(R"({"__metadata__":{"a":{}}})"), Contains("metadata must be text"));
  REQUIRE_THAT(error_of("{\"a\\nb\":null}"), Contains("it is no object"));
}

TEST_CASE("deep nesting and long lists are refused at once") {
  REQUIRE_THAT(error_of("{\"a\":" + std::string(1'000'000, '[')), Contains("nested too deeply"));
  std::string ones(2'000'000, '1');
  for (std::size_t i = 1; i < ones.size(); i += 2) ones[i] = ',';
  REQUIRE_THAT(error_of("{\"a\":{\"shape\":[" + ones + "1]}}"), Contains("a list is too long"));
}

TEST_CASE("an empty set of tensors and a header padded with spaces are valid") {
  const auto view = parse(file_of("{}   ", ""));
  REQUIRE_OK(view);
  REQUIRE(view->tensors.empty());
}
