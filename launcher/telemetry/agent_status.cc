// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/agent_status.h"

#include <fmt/format.h>

namespace muster::launcher {

namespace {

std::string seconds_text(double seconds) {
  if (seconds < 0.00001) return "0 ms";
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", seconds * 1000) : fmt::format("{:.2f} s", seconds);
}

}  // namespace

std::string agent_start_text(std::string_view host, std::span<const AgentPhase> phases) {
  double all = 0;
  std::string out;
  bool open = false;
  for (const AgentPhase& phase : phases) {
    if (open && !phase.within) out += ')';
    const char* const before = out.empty() ? "" : phase.within && !open ? " (" : ", ";
    out += fmt::format("{}{} {}", before, phase.name, seconds_text(phase.seconds));
    open = phase.within;
    if (!phase.within) all += phase.seconds;
  }
  return fmt::format("started on {} in {}: {}{}", host, seconds_text(all), out, open ? ")" : "");
}

}  // namespace muster::launcher
