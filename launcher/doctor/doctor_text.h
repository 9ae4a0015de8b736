// SPDX-License-Identifier: Apache-2.0
// Doctor text: what muster --doctor prints about the paths between N nodes: a table of N x N where
// it fits a terminal, what does not work and what might help, and a verdict. Pure. Nothing here fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/archive.h"

namespace muster::launcher {

// Findings of muster --doctor as values, which nodes hand to the first one through the job's store: what a
// node offers (DoctorNode), what came of its tries to reach the others (DoctorRow). Pure. Failure: kProtocol
// for bytes that are none of these.

struct OfferedAddress {
  std::string address;    // numeric, without a scope
  std::string interface;  // "eth0"; empty: not known
};

struct DoctorNode {
  std::string host;
  std::string token;  // sent by who answers at its port
  std::uint16_t port = 0;
  std::vector<OfferedAddress> addresses;  // best first
};

/// The result of one address.
struct Reach {
  /// The further the try got, the earlier.
  enum class Outcome : std::uint8_t {
    kWorks,
    kBigLost,    // small messages pass, a big one does not
    kSilent,     // connects, and then nothing comes
    kTimeout,    // no answer at all
    kRejected,   // by a host or a firewall
    kNoRoute,    // as this host or a router says
    kOtherHost,  // another host answers
    kOther,      // see text
    kLast = kOther
  };
  std::string address;
  std::string interface;  // of this host, by which it went; empty: not known
  Outcome outcome = Outcome::kOther;
  std::int64_t round_trip_us = -1;  // where it works
  std::string text;                 // of the system, for kOther
};

/// From one node to another.
struct Path {
  std::vector<Reach> tried;  // in the order of the tries

  /// The quickest that works; nullptr: none.
  [[nodiscard]] const Reach* best() const {
    const Reach* out = nullptr;
    for (const Reach& each : tried)
      if (each.outcome == Reach::Outcome::kWorks && (!out || each.round_trip_us < out->round_trip_us))
        out = &each;
    return out;
  }
};

/// The paths of one node to all nodes, by rank; the one to itself is empty.
using DoctorRow = std::vector<Path>;

template <class T>
[[nodiscard]] Result<T> decode_finding(std::string_view bytes) {
  if (auto out = from_archive<T>(bytes)) return *std::move(out);
  return fail(ErrorCode::kProtocol, "a node sent findings of another version of muster");
}

struct Diagnosis {
  std::string text;
  bool healthy = false;  ///< every node reaches every other
};

/// By rank; a row that never came is nothing.
[[nodiscard]] Diagnosis diagnose(const std::vector<DoctorNode>& nodes,
                                 const std::vector<std::optional<DoctorRow>>& rows);

}  // namespace muster::launcher
