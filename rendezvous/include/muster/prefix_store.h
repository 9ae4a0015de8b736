// SPDX-License-Identifier: Apache-2.0
// PrefixStore: another store seen through "prefix/" in front of every key. num_keys is the whole store's.
#pragma once

#include <memory>
#include <string>

#include <muster/store.h>

namespace muster {

[[nodiscard]] std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> store);

}  // namespace muster
