// SPDX-License-Identifier: Apache-2.0
// KeptMusterd: the built daemon with a state directory, on one port, killed and started again as often as a
// test needs; nobody else gets the port meanwhile.
#pragma once

#include <optional>
#include <signal.h>
#include <string>
#include <vector>

#include "tests/support/held_port.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"
#include "tests/support/temporary_directory.h"

namespace muster::test {

class KeptMusterd {
 public:
  /// `options`: further arguments, of every start.
  explicit KeptMusterd(std::vector<std::string> options = {}) : options_(std::move(options)) { start(); }

  void start() {
    std::vector<std::string> arguments = {"--host",      "127.0.0.1", "--port", std::to_string(port()),
                                          "--state-dir", directory()};
    arguments.insert(arguments.end(), options_.begin(), options_.end());
    daemon_.emplace(std::move(arguments));
    (void)daemon_->wait_for_line("listening on 127.0.0.1:" + std::to_string(port()));
  }
  void kill() {
    daemon_->signal(SIGKILL);
    REQUIRE(daemon_->finish().first == 128 + SIGKILL);
  }

  [[nodiscard]] Musterd& daemon() { return *daemon_; }
  [[nodiscard]] std::uint16_t port() const { return port_.number(); }
  [[nodiscard]] std::string directory() const { return folder_.path() + "/state"; }
  [[nodiscard]] std::string log_path() const { return directory() + "/state.log"; }

 private:
  TemporaryDirectory folder_;
  std::vector<std::string> options_;
  HeldPort port_;
  std::optional<Musterd> daemon_;
};

/// The value of a key; empty where there is none.
inline std::string value_of(RawClient& client, std::string_view key) {
  client.send({.op = wire::Op::kGet, .key = key});
  const std::string size = client.receive(8);
  REQUIRE(size.size() == 8);
  return client.receive(wire::load_u64(size.data()));
}

/// The number that answers the last request.
inline std::int64_t number_from(RawClient& client) {
  const std::string bytes = client.receive(8);
  REQUIRE(bytes.size() == 8);
  return static_cast<std::int64_t>(wire::load_u64(bytes.data()));
}

}  // namespace muster::test
