// SPDX-License-Identifier: Apache-2.0
// What PyTorch's clients and servers said to each other, from tests/data/wire (its README describes the
// files).
#pragma once

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace muster::test {

struct WireEvent {
  std::size_t connection;
  char direction;  // '>' to the server, '<' from it, 'x' the client closed
  std::string bytes;
};

inline std::vector<WireEvent> read_wire_recording(const std::string& name) {
  const std::string path = std::string(MUSTER_TEST_DATA) + "/wire/" + name;
  std::ifstream content(path + ".bin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(content), {}};
  std::ifstream index(path + ".index");
  std::vector<WireEvent> events;
  std::size_t at = 0;
  for (std::string line; std::getline(index, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    WireEvent event{};
    std::size_t size = 0;
    if (!(words >> event.connection >> event.direction >> size) || at + size > bytes.size())
      throw std::runtime_error(path + ".index: " + line);
    event.bytes = bytes.substr(at, size);
    at += size;
    // An answer may have come in pieces; how a request was cut stays as it was.
    if (!events.empty() && event.direction == '<' && events.back().direction == '<' &&
        events.back().connection == event.connection)
      events.back().bytes += event.bytes;
    else
      events.push_back(std::move(event));
  }
  if (events.empty() || at != bytes.size())
    throw std::runtime_error(path + ": the index is not of these bytes");
  return events;
}

}  // namespace muster::test
