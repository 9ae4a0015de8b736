// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/port_owner.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <dirent.h>
#include <memory>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

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

// "socket:[inode]" of every socket that listens on the port.
std::vector<std::string> listening_sockets(std::uint16_t port) {
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
      if (state == "0A" && local.ends_with(port_field)) out.push_back("socket:[" + inode + "]");
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
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text.empty() ? "?" : text;
}

}  // namespace

std::string describe_port_owner(std::uint16_t port) {
  const auto sockets = listening_sockets(port);
  if (sockets.empty()) return {};
  const Dir proc(::opendir("/proc"));
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    if (!is_number(entry->d_name)) continue;
    const std::string pid = entry->d_name;
    if (holds("/proc/" + pid + "/fd", sockets)) return fmt::format("pid {} ({})", pid, command_of(pid));
  }
  return "a process of another user";
}

std::string busy_port_advice(std::uint16_t port) {
  const std::string owner = describe_port_owner(port);
  return fmt::format(
      "; the port is held by {}; end that process or choose another port (0 takes any free one)",
      owner.empty() ? "a socket in no listening state" : owner);
}

}  // namespace muster::net
