// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/tcp/tcp_hello.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/split.h"

namespace muster::groups {
namespace {

// Every byte is looked at, so that the time tells nothing.
bool equal(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < size; ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

Error defect(std::string_view what) {
  return {ErrorCode::kProtocol,
          fmt::format("a member of the group told {} through the store; do all ranks run the same release?",
                      what)};
}

}  // namespace

std::array<std::uint8_t, kHelloBytes> make_hello(const Nonce& nonce, std::uint32_t from, std::uint32_t to) {
  std::array<std::uint8_t, kHelloBytes> out{};
  std::copy_n(nonce.begin(), kReplyBytes, out.begin());
  std::memcpy(out.data() + kReplyBytes, &from, sizeof from);
  std::memcpy(out.data() + kReplyBytes + sizeof from, &to, sizeof to);
  return out;
}

std::array<std::uint8_t, kReplyBytes> make_reply(const Nonce& nonce) {
  std::array<std::uint8_t, kReplyBytes> out{};
  std::copy_n(nonce.begin() + kReplyBytes, out.size(), out.begin());
  return out;
}

bool is_reply(const std::array<std::uint8_t, kReplyBytes>& reply, const Nonce& nonce) {
  return equal(reply.data(), nonce.data() + kReplyBytes, reply.size());
}

HelloReader::State HelloReader::receive(const std::uint8_t* bytes, std::size_t size) {
  size = std::min(size, num_missing());
  std::copy_n(bytes, size, bytes_.begin() + static_cast<std::ptrdiff_t>(done_));
  done_ += size;
  if (num_missing() > 0) return State::kNeedMore;
  std::uint32_t to = 0;
  std::memcpy(&member_, bytes_.data() + kReplyBytes, sizeof member_);
  std::memcpy(&to, bytes_.data() + kReplyBytes + sizeof member_, sizeof to);
  const bool known = equal(bytes_.data(), nonce_->data(), kReplyBytes);
  return known && to == me_ && member_ > me_ && member_ < num_members_ ? State::kMember
                                                                       : State::kUnauthenticated;
}

std::string write_whereabouts(const Whereabouts& where) {
  return std::string(where.nonce.begin(), where.nonce.end()) +
         fmt::format("{} {}", where.port, fmt::join(where.addresses, " "));
}

Result<Whereabouts> read_whereabouts(std::string_view text) {
  Whereabouts out;
  if (text.size() < out.nonce.size()) return fail(defect("a nonce of a wrong length"));
  std::copy_n(text.begin(), out.nonce.size(), out.nonce.begin());
  text.remove_prefix(out.nonce.size());
  const auto port = parse_integer("port", take_front(text, ' '), 1, 65535);
  if (!port) return fail(defect("no port"));
  out.port = static_cast<std::uint16_t>(*port);
  while (!text.empty())
    if (const auto address = take_front(text, ' '); !address.empty()) out.addresses.emplace_back(address);
  return out;
}

}  // namespace muster::groups
