// SPDX-License-Identifier: Apache-2.0
// The numbers of the NVIDIA driver's error reports (Xid) that training meets, each with what it means in a
// few words. Pure. Source: "XID Errors" and "Analyzing Xid Errors with the Xid Catalog" of NVIDIA's GPU
// deployment documentation; the meaning of a number is the same in all versions of the driver.
#pragma once

#include <string_view>

namespace muster::launcher {

/// "GPU has fallen off the bus"; empty: not in the table.
[[nodiscard]] std::string_view meaning_of_xid(int number);

/// The GPU or its connections are broken; a program's own faults have Xids too.
[[nodiscard]] bool is_hardware_xid(int number);

/// The driver tidies up after another error, or after a process that was killed: no evidence of a fault.
[[nodiscard]] constexpr bool is_cleanup_xid(int number) {
  return number == 45;
}

}  // namespace muster::launcher
