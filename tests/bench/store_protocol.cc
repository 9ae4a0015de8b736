// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_protocol.h"

#include <charconv>

#include <fmt/format.h>

#include "rendezvous/store/wire.h"

namespace muster::bench {
namespace {

constexpr std::size_t kWrong = std::string_view::npos;
constexpr std::size_t kNumberBytes = 8;

std::string key_of(std::size_t number) {
  return fmt::format("/default_pg/0//cpu//{:04}", number % 10'000);
}

Exchange bytes(std::string request, std::size_t size) {
  return {std::move(request), Exchange::Reply::kBytes, size};
}

class TcpStore final : public Protocol {
 public:
  TcpStore(wire::Generation generation, const Shape& shape)
      : generation_(generation), shape_(shape), value_(shape.value_bytes, 'v') {}

  std::vector<Exchange> greeting() const override {
    if (generation_ != wire::Generation::kModern) return {};
    return {bytes(encode({.op = wire::Op::kValidate, .number = wire::kMagic}), 0),
            bytes(encode({.op = wire::Op::kPing, .number = 4711}), 4)};
  }

  std::vector<Exchange> operation(std::string_view name, std::size_t number) const override {
    const std::string key = key_of(number);
    const std::size_t value_reply = kNumberBytes + shape_.value_bytes;
    if (name == "set")
      return {bytes(
          encode({.op = wire::Op::kSet, .key = key, .value = value_}) + encode({.op = wire::Op::kGetNumKeys}),
          kNumberBytes)};
    if (name == "get") return {bytes(encode({.op = wire::Op::kGet, .key = key}), value_reply)};
    if (name == "wait_get") {
      const std::string_view keys[] = {key};
      return {bytes(encode({.op = wire::Op::kWait, .items = keys}), 1),
              bytes(encode({.op = wire::Op::kGet, .key = key}), value_reply)};
    }
    if (name == "add")
      return {bytes(encode({.op = wire::Op::kAdd, .key = "/count" + key, .number = 1}), kNumberBytes)};
    if (name == "multi_get" && wire::opcode_byte(wire::Op::kMultiGet, generation_) >= 0) {
      std::vector<std::string> names;
      for (std::size_t i = 0; i < shape_.keys_per_multi_get; ++i) names.push_back(key_of(number + i));
      const std::vector<std::string_view> keys(names.begin(), names.end());
      return {bytes(encode({.op = wire::Op::kMultiGet, .items = keys}), keys.size() * value_reply)};
    }
    return {};
  }

  FanOut fan_out(std::size_t round, std::size_t) const override {
    const std::string key = fmt::format("/go/{}/{}", shape_.run, round);
    const std::string_view keys[] = {key};
    FanOut out;
    // The answer to the ADD tells that the WAIT behind it has arrived.
    out.arm.push_back(bytes(encode({.op = wire::Op::kAdd, .key = "/ready", .number = 1}) +
                                encode({.op = wire::Op::kWait, .items = keys}),
                            kNumberBytes));
    out.fire = bytes(encode({.op = wire::Op::kSet, .key = key, .value = "1"}), 0);
    out.wake_bytes = 1;
    return out;
  }

 private:
  std::string encode(const wire::Request& request) const {
    std::string out;
    wire::encode(request, out, generation_);
    return out;
  }

  wire::Generation generation_;
  Shape shape_;
  std::string value_;
};

class Resp final : public Protocol {
 public:
  explicit Resp(const Shape& shape) : shape_(shape), value_(shape.value_bytes, 'v') {}

  std::vector<Exchange> greeting() const override { return {}; }

  std::vector<Exchange> operation(std::string_view name, std::size_t number) const override {
    const std::string key = key_of(number);
    if (name == "set") return {command({"SET", key, value_})};
    if (name == "get") return {command({"GET", key})};
    if (name == "wait_get") return {command({"EXISTS", key}), command({"GET", key})};
    if (name == "add") return {command({"INCRBY", "/count" + key, "1"})};
    if (name == "multi_get") {
      std::vector<std::string> words = {"MGET"};
      for (std::size_t i = 0; i < shape_.keys_per_multi_get; ++i) words.push_back(key_of(number + i));
      return {command(words)};
    }
    return {};
  }

  // Redis wakes many at once through its channels only.
  FanOut fan_out(std::size_t round, std::size_t num_waiters) const override {
    FanOut out;
    if (round == 0) out.arm.push_back(command({"SUBSCRIBE", "go"}));
    out.fire = command({"PUBLISH", "go", "1"});
    out.fire.reply = Exchange::Reply::kBytes;
    out.fire.reply_bytes = fmt::format(":{}\r\n", num_waiters).size();
    out.wake_bytes = std::string_view("*3\r\n$7\r\nmessage\r\n$2\r\ngo\r\n$1\r\n1\r\n").size();
    return out;
  }

 private:
  static Exchange command(const std::vector<std::string>& words) {
    Exchange out;
    out.request = fmt::format("*{}\r\n", words.size());
    for (const std::string& word : words) out.request += fmt::format("${}\r\n{}\r\n", word.size(), word);
    out.reply = Exchange::Reply::kOneValue;
    return out;
  }

  Shape shape_;
  std::string value_;
};

std::size_t resp_value_size(std::string_view received) {
  const std::size_t line = received.find("\r\n");
  if (line == std::string_view::npos) return 0;
  const char kind = received[0];
  if (kind == '+' || kind == ':') return line + 2;
  long long number = 0;
  if (std::from_chars(received.data() + 1, received.data() + line, number).ec != std::errc() || number < 0)
    return kWrong;
  const auto count = static_cast<std::size_t>(number);
  if (kind == '$') return received.size() < line + 4 + count ? 0 : line + 4 + count;
  if (kind != '*') return kWrong;
  std::size_t at = line + 2;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = resp_value_size(received.substr(at));
    if (size == 0 || size == kWrong) return size;
    at += size;
  }
  return at;
}

}  // namespace

std::unique_ptr<Protocol> make_protocol(std::string_view name, const Shape& shape) {
  if (name == "legacy") return std::make_unique<TcpStore>(wire::Generation::kTorch20, shape);
  if (name == "modern") return std::make_unique<TcpStore>(wire::Generation::kModern, shape);
  if (name == "resp") return std::make_unique<Resp>(shape);
  return nullptr;
}

Exchange batch(const std::vector<Exchange>& requests) {
  Exchange out = requests.front();
  for (std::size_t i = 1; i < requests.size(); ++i) {
    out.request += requests[i].request;
    out.reply_bytes += requests[i].reply_bytes;
    out.num_values += requests[i].num_values;
  }
  return out;
}

std::size_t reply_size(const Exchange& exchange, std::string_view received) {
  if (exchange.reply == Exchange::Reply::kOneValue) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < exchange.num_values; ++i) {
      if (at == received.size()) return 0;
      const std::size_t size = resp_value_size(received.substr(at));
      if (size == 0 || size == kWrong) return size;
      at += size;
    }
    return at;
  }
  return received.size() < exchange.reply_bytes ? 0 : exchange.reply_bytes;
}

}  // namespace muster::bench
