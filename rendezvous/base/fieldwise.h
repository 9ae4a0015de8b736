// SPDX-License-Identifier: Apache-2.0
// Plain structs are equal where their members are (Boost.PFR finds those). The namespace of the structs says
// `using fieldwise::operator==;`, which finds them wherever they are compared.
#pragma once

#include <type_traits>

#include <boost/pfr/ops_fields.hpp>

namespace muster::fieldwise {

template <class T>
requires std::is_class_v<T> && std::is_aggregate_v<T>
[[nodiscard]] bool operator==(const T& a, const T& b) {
  return boost::pfr::eq_fields(a, b);
}

}  // namespace muster::fieldwise
