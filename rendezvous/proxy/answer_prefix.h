// SPDX-License-Identifier: Apache-2.0
// AnswerPrefix: how much of an answer a worker has that has not come whole. A new coordinator process knows
// nothing of it and gives the answer again from its start: what the worker has is left out, if it is what it
// was. Owned by a StoreRelay's worker; one thread. Failure: the value has changed since, and the worker can
// be given neither the rest of the old one nor the new one. Cost: 64 bits are mixed in 1 ns; an answer that
// comes whole, as all of 64 KiB do, costs nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace muster {

class AnswerPrefix {
 public:
  /// The answer comes again.
  void start_over() { again_ = {}; }

  /// A piece of the answer: what the worker has is taken from its front. `whole`: it ends with this piece.
  /// False: it is another answer.
  [[nodiscard]] bool take(std::string_view& piece, bool whole) {
    if (again_.size < known_.size) {
      const std::uint64_t missing = known_.size - again_.size;
      const std::string_view front = piece.substr(0, missing);
      again_.add(front);
      piece.remove_prefix(front.size());
      if (again_.size < known_.size) return !whole;
      if (again_.value() != known_.value()) return false;
    }
    if (whole) {
      known_ = again_ = {};
    } else if (!piece.empty()) {
      known_.add(piece);
      again_ = known_;
    }
    return true;
  }

 private:
  // Of bytes, however they are cut. Against chance, not against an enemy: who can change answers is trusted.
  struct Sum {
    std::uint64_t state = 0x9E3779B97F4A7C15;
    std::uint64_t size = 0;
    char tail[8] = {};  // size % 8 bytes

    void add(std::string_view bytes) {
      while (!bytes.empty()) {
        const std::size_t at = size % 8;
        const std::string_view front = bytes.substr(0, 8 - at);
        std::memcpy(tail + at, front.data(), front.size());
        size += front.size();
        bytes.remove_prefix(front.size());
        if (size % 8 == 0) state = mixed(8);
      }
    }
    [[nodiscard]] std::uint64_t value() const { return mixed(size % 8); }
    [[nodiscard]] std::uint64_t mixed(std::size_t count) const {
      std::uint64_t word = 0;
      std::memcpy(&word, tail, count);
      return std::rotl((state ^ word) * 0xD6E8FEB86659FD93, 32) * 0xA0761D6478BD642F;
    }
  };

  Sum known_;  // what the worker has
  Sum again_;  // what came of it this time
};

}  // namespace muster
