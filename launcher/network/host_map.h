// SPDX-License-Identifier: Apache-2.0
// HostMap: --host-map, what is to be looked for instead of the names that a job is given or Slurm has:
// entries NAME=HOST, HOST being a name or an address. One * in a NAME stands for any text and takes its place
// where HOST has a *: "*=*i" adds an i to all names. Addresses and localhost are no names for a *. Called
// while the job is planned, before anything is resolved. Pure but for the file. Errors are kInvalidArgument.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

class HostMap {
 public:
  /// Entries with commas between them; or, without any '=', a file of them, one on a line, '#' beginning a
  /// comment.
  [[nodiscard]] static Result<HostMap> read(const std::string& value);
  /// `where` begins each error.
  [[nodiscard]] static Result<HostMap> parse(std::string_view entries, char separator,
                                             std::string_view where);

  /// The entry with this very name, else the first whose * fits; else the name itself. Once: what comes out
  /// is not looked for again.
  [[nodiscard]] std::string find(const std::string& name) const;

 private:
  struct Entry {
    std::string name;
    std::string host;
  };
  std::vector<Entry> entries_;
};

}  // namespace muster::launcher
