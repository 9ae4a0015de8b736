// SPDX-License-Identifier: Apache-2.0
// Text from outside (other machines, workers, files) as it may be shown: in a log line, an error, on a
// terminal. Everything that shows such text passes it through one of these. Pure; nothing here fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// Bytes that need not be text, as of a key: what is no printable ASCII becomes \xNN; cut after `max_bytes`,
/// with how many there are.
[[nodiscard]] std::string printable(std::string_view bytes, std::size_t max_bytes = 128);

/// Text of people and programs: control bytes become blanks, terminal sequences (ESC [ ... letter) go, UTF-8
/// stays; cut after `max_bytes`, between two characters.
[[nodiscard]] std::string one_line(std::string_view text, std::size_t max_bytes = 4096);

/// "1 node", "3 nodes". `noun`: in the singular; its plural ends in s.
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);

/// "0-2,5" for {0, 1, 2, 5}. `sorted`: each once.
[[nodiscard]] std::string to_ranges(std::span<const int> sorted, std::string_view separator = ",");

/// "rank 3", "ranks 0-2,5", of `numbers` in any order.
[[nodiscard]] std::string numbered(std::string_view noun, std::vector<int> numbers,
                                   std::string_view separator = ",");

/// "host:port", "[v6]:port"
[[nodiscard]] std::string endpoint_text(std::string_view host, std::uint16_t port);

/// "localhost", "::1", "127.0.0.1" and what else is an address like that.
[[nodiscard]] bool is_loopback(std::string_view host);

}  // namespace muster
