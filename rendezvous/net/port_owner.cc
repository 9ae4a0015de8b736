// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/port_owner.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"

namespace muster::net {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

bool is_number(const char* text) {
  return *text != '\0' && std::all_of(text, text + std::char_traits<char>::length(text),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Of IPv6, or IPv4 mapped into it; all zeros: every address, of either.
using Address = std::array<unsigned char, 16>;
constexpr std::array<unsigned char, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Address everywhere_if_zero(Address address) {
  const bool is_zero = std::all_of(address.begin() + 12, address.end(), [](auto byte) { return byte == 0; });
  if (is_zero && std::equal(kMapped.begin(), kMapped.end(), address.begin())) return {};
  return address;
}

Address parse_address(std::string_view text) {
  Address out{};
  const std::string copy(text);
  if (::inet_pton(AF_INET6, copy.c_str(), out.data()) == 1) return everywhere_if_zero(out);
  out = {};
  if (::inet_pton(AF_INET, copy.c_str(), out.data() + 12) != 1) return {};
  std::copy(kMapped.begin(), kMapped.end(), out.begin());
  return everywhere_if_zero(out);
}

// As in /proc/net/tcp: words of four bytes in this host's order, as hexadecimal numbers.
Address parse_table_address(std::string_view hex) {
  Address out{};
  if (hex.size() != 8 && hex.size() != 32) return out;
  std::size_t at = hex.size() == 8 ? 12 : 0;
  if (at == 12) std::copy(kMapped.begin(), kMapped.end(), out.begin());
  for (std::size_t i = 0; i < hex.size(); i += 8, at += 4) {
    const auto word =
        static_cast<std::uint32_t>(std::strtoul(std::string(hex.substr(i, 8)).c_str(), nullptr, 16));
    std::memcpy(out.data() + at, &word, sizeof word);
  }
  return everywhere_if_zero(out);
}

bool conflict(const Address& a, const Address& b) {
  return a == b || a == Address{} || b == Address{};
}

// "socket:[inode]" of every socket that listens there.
std::vector<std::string> listening_sockets(const Address& address, std::uint16_t port) {
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
      if (conflict(address, parse_table_address(std::string_view(local).substr(0, local.size() - 5))))
        out.push_back("socket:[" + inode + "]");
    }
  }
  return out;
}

bool holds(const std::string& fd_folder, const std::vector<std::string>& sockets) {
  const Dir folder(::opendir(fd_folder.c_str()));
  if (!folder) return false;
  while (const dirent* entry = ::readdir(folder.get())) {
    char target[64];
    const ssize_t size = ::readlink((fd_folder + "/" + entry->d_name).c_str(), target, sizeof target);
    if (size <= 0) continue;
    if (std::find(sockets.begin(), sockets.end(), std::string_view(target, static_cast<std::size_t>(size))) !=
        sockets.end())
      return true;
  }
  return false;
}

std::string command_of(const std::string& pid) {
  std::string text = read_file("/proc/" + pid + "/cmdline", 65536).value_or(std::string());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.empty() ? "?" : one_line(text, 120);
}

}  // namespace

std::string describe_port_owner(std::string_view address, std::uint16_t port) {
  const auto sockets = listening_sockets(parse_address(address), port);
  if (sockets.empty()) return {};
  constexpr int kMost = 3;
  int count = 0;
  std::string out;
  const Dir proc(::opendir("/proc"));
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    if (!is_number(entry->d_name)) continue;
    const std::string pid = entry->d_name;
    if (!holds("/proc/" + pid + "/fd", sockets)) continue;
    out += fmt::format("{}pid {} ({})", out.empty() ? "" : " and ", pid, command_of(pid));
    if (++count == kMost) break;
  }
  return out.empty() ? "a process of another user" : out;
}

std::string busy_port_advice(std::string_view address, std::uint16_t port, bool known_to_others) {
  const std::string owner = describe_port_owner(address, port);
  return fmt::format("; the port is held by {}; end that process or choose another port{}",
                     owner.empty() ? "a socket in no listening state" : owner,
                     known_to_others ? ", on all nodes" : " (0 takes any free one)");
}

}  // namespace muster::net
