// SPDX-License-Identifier: Apache-2.0
// What the members of a tcp group say to each other before its first message, and what each tells the others
// through the store: bytes and texts of others become values or a refusal. Pure. Used by tcp_connect; one
// thread. Failure: who does not know the group's nonce, or names another place than is free, is
// unauthenticated; texts are kProtocol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::groups {

/// Random, of one group; it travels through the store only.
using Nonce = std::array<std::uint8_t, 32>;

/// 24 bytes: the nonce's first half, u32 from, u32 to: members, in the order of this machine as all of a
/// group's data.
inline constexpr std::size_t kHelloBytes = 24;
/// The nonce's second half: an answer that only a member knows.
inline constexpr std::size_t kReplyBytes = 16;
[[nodiscard]] std::array<std::uint8_t, kHelloBytes> make_hello(const Nonce& nonce, std::uint32_t from,
                                                               std::uint32_t to);
[[nodiscard]] std::array<std::uint8_t, kReplyBytes> make_reply(const Nonce& nonce);
/// In time that does not depend on where they differ.
[[nodiscard]] bool is_reply(const std::array<std::uint8_t, kReplyBytes>& reply, const Nonce& nonce);

/// The hello of one caller, as it comes. A member is called by those after it.
class HelloReader {
 public:
  enum class State { kNeedMore, kMember, kUnauthenticated };
  HelloReader(const Nonce& nonce, std::uint32_t me, std::uint32_t num_members)
      : nonce_(&nonce), me_(me), num_members_(num_members) {}

  /// No more than this is to be read of the caller.
  [[nodiscard]] std::size_t num_missing() const { return bytes_.size() - done_; }
  /// At most num_missing() bytes. `nonce` has to live until then.
  [[nodiscard]] State receive(const std::uint8_t* bytes, std::size_t size);
  /// Who calls, after kMember.
  [[nodiscard]] std::uint32_t member() const { return member_; }

 private:
  const Nonce* nonce_;
  std::uint32_t me_;
  std::uint32_t num_members_;
  std::array<std::uint8_t, kHelloBytes> bytes_{};
  std::size_t done_ = 0;
  std::uint32_t member_ = 0;
};

/// How a member is reached; in the store the nonce's bytes, then "port address address ...". Of all members'
/// nonces the first one's counts.
struct Whereabouts {
  Nonce nonce{};
  std::uint16_t port = 0;
  std::vector<std::string> addresses;  ///< numeric or names
  friend bool operator==(const Whereabouts&, const Whereabouts&) = default;
};
[[nodiscard]] std::string write_whereabouts(const Whereabouts& where);
[[nodiscard]] Result<Whereabouts> read_whereabouts(std::string_view text);

}  // namespace muster::groups
