// SPDX-License-Identifier: Apache-2.0
// StoreWriter: a client that sends a StoreScript to a daemon that may die at any moment, and knows which of
// its requests were acknowledged and whether what the daemon has afterwards can be what they made. Blocking,
// with RawClient's deadlines; one thread. Failure: a REQUIRE that shows what differs.
#pragma once

#include <deque>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/text.h"
#include "tests/support/catch.h"
#include "tests/support/kept_musterd.h"
#include "tests/support/seed.h"
#include "tests/support/store_script.h"

namespace muster::test {

inline std::string text_from(RawClient& client) {
  const auto size = static_cast<std::size_t>(number_from(client));
  std::string out = client.receive(size);
  REQUIRE(out.size() == size);
  return out;
}

// Takes everything out of a queue; in one go, since each pop alone waits for the disk.
inline std::deque<std::string> empty_queue(RawClient& client, std::string_view queue) {
  client.send({.op = wire::Op::kQueueLen, .key = queue});
  const auto length = number_from(client);
  std::string pops;
  for (auto left = length; left > 0; --left) wire::encode({.op = wire::Op::kQueuePop, .key = queue}, pops);
  client.send(pops);
  std::deque<std::string> out;
  for (auto left = length; left > 0; --left) {
    REQUIRE(number_from(client) == left);
    out.push_back(text_from(client));
  }
  return out;
}

// Everything there is under a prefix. A queue is read by taking it out and putting it back.
inline StoreContents read_contents(RawClient& client, const StoreScript& script) {
  StoreContents out;
  client.send({.op = wire::Op::kListKeys});
  std::vector<std::string> names;
  for (auto left = number_from(client); left > 0; --left) {
    std::string name = text_from(client);
    if (name.starts_with(script.prefix())) names.push_back(std::move(name));
  }
  for (const std::string& name : names) out.keys[name] = value_of(client, name);
  std::string pushes;
  for (const std::string& queue : script.queues()) {
    std::deque<std::string> elements = empty_queue(client, queue);
    if (elements.empty()) continue;
    for (const std::string& element : elements)
      wire::encode({.op = wire::Op::kQueuePush, .key = queue, .value = element}, pushes);
    out.queues[queue] = std::move(elements);
  }
  client.send(pushes);
  REQUIRE(client.alive());
  return out;
}

inline std::string differences(const StoreContents& expected, const StoreContents& found) {
  std::ostringstream out;
  const auto each = [&](const StoreContents& from, const char* who) {
    for (const auto& [key, value] : from.keys) {
      const auto& other = (&from == &expected ? found : expected).keys;
      if (!other.contains(key) || other.at(key) != value)
        out << who << ' ' << key << ": " << printable(value, 40) << '\n';
    }
    for (const auto& [queue, elements] : from.queues)
      out << who << ' ' << queue << ": " << elements.size() << '\n';
  };
  each(expected, "expected");
  each(found, "found");
  return out.str();
}

// One client's script, how far it was sent, and what came back.
struct StoreWriter {
  explicit StoreWriter(std::string prefix) : script(std::move(prefix)) {}

  void connect(std::uint16_t port) {
    client.emplace(RawClient::modern(port));
    requests.clear();
    sent = num_bytes = acknowledged = 0;
    received.clear();
  }
  void send(std::size_t count) {
    std::string bytes;
    for (; count > 0 && sent < requests.size(); --count) encode(requests[sent++], bytes);
    client->send(bytes);
    num_bytes += bytes.size();
  }
  // Bytes of the answers to the first `count` requests.
  [[nodiscard]] std::size_t answers_to(std::size_t count) const {
    StoreContents model = contents;
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; ++i) size += apply(requests[i], model).size();
    return size;
  }
  void receive_until(std::size_t size) {
    if (size <= received.size()) return;
    received += client->receive(size - received.size());
    REQUIRE(received.size() == size);
  }
  // What arrived is acknowledged, also after the end of the one who sent it.
  void drain() {
    try {
      received += client->receive(std::size_t{1} << 30);
    } catch (const std::exception&) {
      // reset: what had arrived before may be lost with it
    }
  }

  // Compares what was received with what the requests must be answered; how many are acknowledged: an answer
  // tells of everything before it on the connection.
  void compare_answers() {
    StoreContents model = contents;
    std::string_view rest = received;
    for (std::size_t i = 0; i < sent; ++i) {
      const std::string answer = apply(requests[i], model);
      if (answer.empty()) continue;
      CAPTURE(i, op_info(requests[i].op).name, requests[i].words);
      REQUIRE(rest.substr(0, answer.size()) == std::string_view(answer).substr(0, rest.size()));
      if (rest.size() < answer.size()) return;
      rest.remove_prefix(answer.size());
      acknowledged = i + 1;
    }
    REQUIRE(rest.empty());
  }

  // The store has what the first `from` to `sent` requests have made of it, and nothing between two of them.
  void adopt(const StoreContents& found, std::size_t from) {
    StoreContents model = contents;
    std::string near;
    for (std::size_t i = 0;; ++i) {
      if (i >= from && model == found) break;
      if (i == from) near = differences(model, found);
      INFO("acknowledged " << acknowledged << " of " << sent << " that were sent; after those:\n" << near);
      REQUIRE(i < sent);
      (void)apply(requests[i], model);
    }
    contents = found;
  }

  StoreScript script;
  StoreContents contents;  // before `requests`
  std::optional<RawClient> client;
  std::vector<ScriptedRequest> requests;
  std::size_t sent = 0;
  std::size_t num_bytes = 0;  // of those
  std::size_t acknowledged = 0;
  std::string received;
};

}  // namespace muster::test
