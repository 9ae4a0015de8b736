// SPDX-License-Identifier: Apache-2.0
// Findings of muster --doctor as values, and their JSON, in which nodes hand them to the first one through
// the job's store: what a node offers (DoctorNode), what came of its tries to reach the others (DoctorRow).
// Pure. Failure: kProtocol for JSON that is none of these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

struct OfferedAddress {
  std::string address;    // numeric, without a scope
  std::string interface;  // "eth0"; empty: not known

  friend bool operator==(const OfferedAddress&, const OfferedAddress&) = default;
};

struct DoctorNode {
  std::string host;
  std::string token;  // who answers at its port says it
  std::uint16_t port = 0;
  std::vector<OfferedAddress> addresses;  // best first

  friend bool operator==(const DoctorNode&, const DoctorNode&) = default;
};

/// What came of one address.
struct Reach {
  enum class Outcome : std::uint8_t {
    kWorks,
    kTimeout,   // no answer at all
    kRefused,   // by a host or a firewall
    kNoRoute,   // this host's or a router's word
    kSomebody,  // whoever answers is another
    kSilent,    // connects, and then nothing comes
    kBigLost,   // small messages pass, a big one does not
    kOther      // see text
  };
  std::string address;
  std::string interface;  // of this host, by which it went; empty: not known
  Outcome outcome = Outcome::kOther;
  double round_trip_ms = -1;
  double clock_ms = 0;  // the other's wall clock is so far ahead; where it works
  std::string text;     // of the system, for kOther

  friend bool operator==(const Reach&, const Reach&) = default;
};
[[nodiscard]] std::string_view to_string(Reach::Outcome outcome);

/// From one node to another.
struct Way {
  std::vector<Reach> tried;           // in the order of the tries
  std::string name_error;             // why the other's host name means nothing here; empty: it does
  std::vector<std::string> named_as;  // to which addresses it resolves here

  /// The quickest that works; nullptr: none.
  [[nodiscard]] const Reach* best() const;
  friend bool operator==(const Way&, const Way&) = default;
};

/// Its ways to all nodes, by rank; the one to itself is empty.
struct DoctorRow {
  std::vector<Way> ways;

  friend bool operator==(const DoctorRow&, const DoctorRow&) = default;
};

[[nodiscard]] std::string to_json(const DoctorNode& node);
[[nodiscard]] std::string to_json(const DoctorRow& row);
[[nodiscard]] Result<DoctorNode> parse_doctor_node(std::string_view text);
/// Of a job of `nodes` nodes.
[[nodiscard]] Result<DoctorRow> parse_doctor_row(std::string_view text, std::size_t nodes);

}  // namespace muster::launcher
