// SPDX-License-Identifier: Apache-2.0
// Each line of stdin is a node list; each line of stdout its names with commas between, or "refused: <why>".
#include <iostream>
#include <string>

#include "rendezvous/base/hostlist.h"

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto names = muster::expand_hostlist(line);
    std::string text;
    if (names)
      for (const std::string& name : *names) text += (text.empty() ? "" : ",") + name;
    std::cout << (names ? text : "refused: " + names.error().message) << '\n';
  }
  return 0;
}
