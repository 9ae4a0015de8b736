// SPDX-License-Identifier: Apache-2.0
// Whatever a stranger sends to a status listener: a request or an error, within the limits, and the same for
// the same bytes in other pieces; and whatever names end up in a label, a line of metrics stays one line. The
// first byte seeds where the bytes are split.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/net/http_request.h"
#include "rendezvous/status/process_usage.h"

namespace {

using namespace muster;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Heard {
  bool whole = false;
  bool broken = false;
  std::string method, path;

  friend bool operator==(const Heard&, const Heard&) = default;
};

Heard hear(std::string_view bytes, std::size_t most, std::uint32_t seed) {
  Heard out;
  net::HttpRequest request;
  while (!bytes.empty() && !out.whole && !out.broken) {
    seed = seed * 1664525 + 1013904223;
    const std::size_t size = std::min<std::size_t>(bytes.size(), 1 + (seed >> 8) % most);
    const auto taken = request.receive(bytes.substr(0, size));
    bytes.remove_prefix(size);
    out.broken = !taken;
    out.whole = taken && *taken;
    if (!taken) {
      check(!taken.error().message.empty());
      check(!request.receive("GET / HTTP/1.1\r\n\r\n"));  // final
    }
  }
  if (!out.whole) return out;
  out.method = request.method();
  out.path = request.path();
  check(out.method.size() + out.path.size() <= net::HttpRequest::kMaxHeadBytes);
  check(out.path.find('\n') == std::string::npos && out.path.find('?') == std::string::npos);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  // As large as one read of the server. What is no request may be recognised by its beginning, or at its end.
  const Heard at_once = hear(bytes, 4096, data[0]);
  const Heard pieces = hear(bytes, 7, data[0]);
  check(at_once.whole == pieces.whole);
  if (at_once.whole) check(at_once == pieces);

  MetricsText out;
  out.family("m", MetricType::kGauge, "M.");
  out.sample(1, {{"l", bytes}});
  const std::string text = out.take();
  check(std::count(text.begin(), text.end(), '\n') == 3 && text.ends_with("\"} 1\n"));
  if (const auto usage = parse_process_stat(bytes, 100, 4096))
    check(usage->cpu_seconds >= 0 && usage->parent >= 0);
  return 0;
}
