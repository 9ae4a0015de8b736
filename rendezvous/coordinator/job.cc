// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job.h"

#include <algorithm>

namespace muster {
namespace {

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

}  // namespace

std::string cause_text(const membership::Cause& cause) {
  std::string out(membership::to_string(cause.kind));
  if (!cause.host.empty()) out += " on " + cause.host;
  if (!cause.text.empty()) out += ": " + cause.text;
  return out;
}

std::vector<std::string> reachable_addresses(const std::vector<std::string>& offered,
                                             const std::string& seen) {
  std::vector<std::string> out;
  const bool has_others =
      std::any_of(offered.begin(), offered.end(), [](auto& each) { return !is_loopback(each); });
  const bool is_offered = std::find(offered.begin(), offered.end(), seen) != offered.end();
  if (!seen.empty() && (!has_others || (is_offered && !is_loopback(seen)))) out.push_back(seen);
  for (const std::string& address : offered)
    if (std::find(out.begin(), out.end(), address) == out.end()) out.push_back(address);
  return out;
}

}  // namespace muster
