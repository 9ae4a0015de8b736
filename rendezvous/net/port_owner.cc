// SPDX-License-Identifier: Apache-2.0
// Who listens on a TCP port of this host, for error texts: /proc/net/tcp{,6} gives the socket, /proc/*/fd its
// holder. Processes of other users are found only by root.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/net/listener.h"

namespace muster::net {
namespace {

namespace fs = std::filesystem;
namespace ip = boost::asio::ip;

// IPv4 is mapped into IPv6, and there is no scope; unspecified: every address, of either.
ip::address_v6 normalized(const ip::address& address) {
  if (address.is_unspecified()) return {};
  if (address.is_v4()) return ip::make_address_v6(ip::v4_mapped, address.to_v4());
  ip::address_v6 out = address.to_v6();
  out.scope_id(0);
  return out.is_v4_mapped() ? normalized(ip::make_address_v4(ip::v4_mapped, out)) : out;
}

// As in /proc/net/tcp: words of four bytes in this host's order, as hexadecimal numbers.
ip::address_v6 parse_table_address(std::string_view hex) {
  ip::address_v6::bytes_type bytes{};
  if (hex.size() != 8 && hex.size() != 32) return {};
  for (std::size_t i = 0; i < hex.size(); i += 8) {
    const auto word =
        static_cast<std::uint32_t>(std::strtoul(std::string(hex.substr(i, 8)).c_str(), nullptr, 16));
    std::memcpy(bytes.data() + i / 2, &word, sizeof word);
  }
  if (hex.size() == 32) return normalized(ip::address_v6(bytes));
  return normalized(ip::address_v4({bytes[0], bytes[1], bytes[2], bytes[3]}));
}

// "socket:[inode]" of every socket that listens there.
std::vector<std::string> listening_sockets(const ip::address_v6& address, std::uint16_t port) {
  std::vector<std::string> out;
  const std::string port_field = fmt::format(":{:04X}", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto text = read_file(table);
    if (!text) continue;
    std::istringstream lines(*text);
    std::string line;
    while (std::getline(lines, line)) {
      // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
      std::istringstream fields(line);
      std::string sl, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> sl >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      if (state != "0A" || !local.ends_with(port_field)) continue;
      const auto bound = parse_table_address(std::string_view(local).substr(0, local.size() - 5));
      if (address == bound || address.is_unspecified() || bound.is_unspecified())
        out.push_back("socket:[" + inode + "]");
    }
  }
  return out;
}

bool holds(const fs::path& process, const std::vector<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end; at.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(at->path(), closed).string();
    if (std::ranges::find(sockets, target) != sockets.end()) return true;
  }
  return false;
}

std::string command_of(const std::string& pid) {
  std::string text = read_file("/proc/" + pid + "/cmdline", 65536).value_or(std::string());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.empty() ? "?" : one_line(text, 120);
}

std::string describe_port_owner(std::string_view address, std::uint16_t port) {
  boost::system::error_code none;  // an address that is none counts as every one
  const auto sockets = listening_sockets(normalized(ip::make_address(address, none)), port);
  if (sockets.empty()) return "a socket in no listening state";
  constexpr int kMost = 3;
  int count = 0;
  std::string out;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string pid = at->path().filename().string();
    if (pid.find_first_not_of("0123456789") != pid.npos || !holds(at->path(), sockets)) continue;
    out += fmt::format("{}pid {} ({})", out.empty() ? "" : " and ", pid, command_of(pid));
    if (++count == kMost) break;
  }
  return out.empty() ? "a process of another user" : out;
}

}  // namespace

std::string busy_port_advice(std::string_view address, std::uint16_t port, bool known_to_others) {
  return fmt::format("; the port is held by {}; end that process or choose another port{}",
                     describe_port_owner(address, port),
                     known_to_others ? ", on all nodes" : " (0 takes any free one)");
}

}  // namespace muster::net
