// SPDX-License-Identifier: Apache-2.0
// sha256() without OpenSSL, for GPU hosts (MUSTER_GPU_HOST), as FIPS 180-4 writes it.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "worker_runtime/core/sha256.h"

namespace muster {
namespace {

using Words = std::array<std::uint32_t, 64>;

/// The first 32 bits of the fractional parts of the roots of the first 64 primes.
template <class Root>
Words fractions(Root root) {
  Words words{};
  std::size_t count = 0;
  for (unsigned n = 2; count < words.size(); ++n) {
    bool prime = true;
    for (unsigned d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const long double value = root(static_cast<long double>(n));
    words[count++] = static_cast<std::uint32_t>((value - std::floor(value)) * 4294967296.0L);
  }
  return words;
}

struct Context {
  const Words k = fractions([](long double n) { return std::cbrt(n); });
  Words state = fractions([](long double n) { return std::sqrt(n); });  // of which eight count
  std::string block;
  std::uint64_t size_bytes = 0;

  void add(char byte) {
    block.push_back(byte);
    if (block.size() < 64) return;
    Words w{};
    for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8U | static_cast<unsigned char>(block[i]);
    block.clear();
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
    }
    auto [a, b, c, d, e, f, g, h] =
        std::to_array({state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7]});
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t first =
          h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const std::uint32_t second =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    std::size_t i = 0;
    for (const std::uint32_t word : {a, b, c, d, e, f, g, h}) state[i++] += word;
  }
};

}  // namespace

std::string sha256(std::span<const std::string_view> pieces) {
  Context context;
  for (const std::string_view piece : pieces)
    for (const char byte : piece) {
      context.add(byte);
      ++context.size_bytes;
    }
  context.add('\x80');
  while (context.block.size() != 56) context.add('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    context.add(static_cast<char>(context.size_bytes * 8 >> shift));
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) {
    std::array<char, 9> hex{};
    std::snprintf(hex.data(), hex.size(), "%08x", context.state[i]);
    text += hex.data();
  }
  return text;
}

}  // namespace muster
