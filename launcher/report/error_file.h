// SPDX-License-Identifier: Apache-2.0
// Error files: the JSON that torch.distributed.elastic's @record writes to TORCHELASTIC_ERROR_FILE. Pure. A
// file that cannot be understood is shown as it is rather than hiding the failure. Source:
// torch/distributed/elastic/multiprocessing/errors/__init__.py and error_handler.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::launcher {

struct RecordedError {
  std::string message;
  std::string callstack;                    // empty: none recorded
  std::optional<std::int64_t> timestamp_s;  // since the epoch

  friend bool operator==(const RecordedError&, const RecordedError&) = default;
};

[[nodiscard]] RecordedError parse_error_file(std::string_view text);

/// The text for the launcher's own error file: with message.errorCode added where the message is an object.
[[nodiscard]] std::string with_error_code(std::string_view text, int code);

}  // namespace muster::launcher
