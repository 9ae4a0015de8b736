// SPDX-License-Identifier: Apache-2.0
// Whether the tests and the programs they start carry a sanitizer, which brings libraries and memory of its
// own.
#pragma once

namespace muster::test {

#ifdef MUSTER_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace muster::test
